"""The demo of `treadle demo --simulator`: measures the orderings that the papers report, and whether they hold."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from treadle.bench.simulator import compare
from treadle.engines.simulator import scenario
from treadle.engines.simulator.run import Outcome

LEARNERS = ("roulette", "ucb", "thompson")


@dataclass(frozen=True)
class Claim:
    """A sentence with its numbers, and whether it holds in this run."""

    text: str
    holds: bool


@dataclass(frozen=True)
class Part:
    """One comparison: its outcomes, table and claims."""

    name: str
    outcomes: Sequence[Outcome]
    table: Table
    claims: tuple[Claim, ...]

    def draw(self, path: Path) -> None:
        compare.plot(self.outcomes, path)


def run(
    progress: compare.Progress | None = None, names: Collection[str] | None = None, most_seeds: int = 3
) -> list[Part]:
    """Run all comparisons, or some by name, on up to `most_seeds` seeds each; it takes a minute or two."""
    every = (
        ("haren-multi-class-bursts", 1, urgent_queries_stay_fast),
        ("haren-single-class", 2, papers_orderings),
        ("changing-load", 3, adaptive_keeps_up),
    )
    chosen = [(name, min(seeds, most_seeds), claims) for name, seeds, claims in every if names is None or name in names]
    steps = sum(seeds for _, seeds, _ in chosen)
    parts: list[Part] = []
    done = 0
    for name, seeds, claims in chosen:
        loaded = scenario.load(name)
        runs: list[list[Outcome]] = []
        for seed in range(loaded.seed, loaded.seed + seeds):

            def told(what: str, part: float, done: int = done) -> None:
                if progress is not None:
                    progress(what, (done + part) / steps)

            runs.append(compare.compare(loaded, loaded.policies, seed=seed, progress=told))
            done += 1
        parts.append(Part(name, runs[0], compare.table(runs[0], loaded.title), claims(runs)))
    return parts


def urgent_queries_stay_fast(runs: Sequence[Sequence[Outcome]]) -> tuple[Claim, ...]:
    """Haren section 7.4: HIGH queries have far less latency than under the OS, LOW ones no more on average."""
    alone, treadle = (
        next(outcome for outcome in runs[0] if outcome.label == label).summary() for label in ("os", "multi-class")
    )
    high, low = alone["classes"]["1"], treadle["classes"]["0"]
    mean = high["mean_latency"] / treadle["classes"]["1"]["mean_latency"]
    longest = high["max_latency"] / treadle["classes"]["1"]["max_latency"]
    output = treadle["throughput"] / alone["throughput"]
    return (
        Claim(f"the urgent queries' mean latency is {mean:,.0f} times lower than under the OS", mean > 10),
        Claim(f"their maximum latency is {longest:,.0f} times lower", longest > 10),
        Claim(
            f"the others wait no longer on average: {compare.seconds(low['mean_latency'])} instead of"
            f" {compare.seconds(alone['classes']['0']['mean_latency'])} (at most {compare.seconds(low['max_latency'])}"
            f" instead of {compare.seconds(alone['classes']['0']['max_latency'])})",
            low["mean_latency"] <= alone["classes"]["0"]["mean_latency"],
        ),
        Claim(f"all together give {output:.2f} times as many results", output >= 1.0),
    )


def papers_orderings(runs: Sequence[Sequence[Outcome]]) -> tuple[Claim, ...]:
    """Haren section 7.3 and Lachesis section 6.3: each policy is best at its goal, random no better than the OS."""
    figures = [{outcome.label: outcome.summary() for outcome in outcomes} for outcomes in runs]

    def best(policy: str, key: str, what: str) -> Claim:
        ratios = [
            min(summary[key] for name, summary in run.items() if name != policy) / run[policy][key] for run in figures
        ]
        ratio, won = sum(ratios) / len(ratios), sum(each > 1 for each in ratios)
        return Claim(
            f"{policy} has the lowest {what} on {won} of {len(runs)} seeds; the next has {ratio:.2f} times as much",
            won == len(runs),
        )

    chances = [run["random@nice"]["mean_latency"] / run["os"]["mean_latency"] for run in figures]
    chance = sum(chances) / len(chances)
    helped = sum(each < 0.95 for each in chances)
    return (
        best("chain", "mean_queue", "memory (queued tuples)"),
        best("hr", "mean_latency", "mean latency"),
        best("fcfs", "max_latency", "maximum latency"),
        Claim(
            f"random priorities are no better than the OS: {chance:.2f} times its mean latency{_of(runs)}",
            helped == 0,
        ),
    )


def adaptive_keeps_up(runs: Sequence[Sequence[Outcome]]) -> tuple[Claim, ...]:
    """AMoS section 4.2: an adaptive policy is about as good as the best of its candidates."""
    over: dict[str, list[float]] = {}
    for outcomes in runs:
        means = {_learner(outcome.label): outcome.summary()["mean_latency"] for outcome in outcomes}
        best = min(mean for name, mean in means.items() if name not in LEARNERS)
        for name, mean in means.items():
            over.setdefault(name, []).append(mean / best - 1.0)
    excess = {name: sum(parts) / len(parts) for name, parts in over.items()}
    worst = max((name for name in excess if name not in LEARNERS), key=lambda name: excess[name])
    roulette = excess["roulette"]
    claims = [
        Claim(
            f"AMoS with {name} is within 5 % of the best single policy of each run: {excess[name]:+.1%} in mean latency"
            f"{_of(runs)}; always {worst}: {excess[worst]:+.1%}",
            excess[name] < 0.05,
        )
        for name in LEARNERS[1:]
    ]
    closer = all(excess[name] < roulette for name in LEARNERS[1:])
    claims.append(
        Claim(f"both are closer than AMoS' own roulette wheel, whose pressure is weak: {roulette:+.1%}", closer)
    )
    return tuple(claims)


def _of(runs: Sequence[Sequence[Outcome]]) -> str:
    return f" (mean of {len(runs)} seeds; the table shows the first)" if len(runs) > 1 else ""


def _learner(label: str) -> str:
    """Return the learner of an adaptive policy, or any other policy unchanged."""
    return label.removeprefix("adaptive:learner=").partition(",")[0]

"""What `make demo` shows: the orderings that the papers report, measured here and now, and said to hold or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from treadle.bench import compare
from treadle.engines.simulator import scenario
from treadle.engines.simulator.run import Outcome

LEARNERS = ("roulette", "ucb", "thompson")


@dataclass(frozen=True)
class Claim:
    """A sentence with its numbers, and whether this run bears it out."""

    text: str
    holds: bool


@dataclass(frozen=True)
class Part:
    """One comparison: its table, what is claimed of it, and its picture."""

    name: str
    outcomes: Sequence[Outcome]
    table: Table
    claims: tuple[Claim, ...]

    def draw(self, path: Path) -> None:
        compare.plot(self.outcomes, path)


def run(progress: compare.Progress | None = None) -> list[Part]:
    """All comparisons; a minute or so."""
    parts = []
    chosen: tuple[tuple[str, Callable[[Sequence[Outcome]], tuple[Claim, ...]]], ...] = (
        ("haren-multi-class-bursts", urgent_queries_stay_fast),
        ("haren-single-class", papers_orderings),
        ("changing-load", adaptive_keeps_up),
    )
    for number, (name, claims) in enumerate(chosen):

        def told(what: str, part: float, number: int = number) -> None:
            if progress is not None:
                progress(what, (number + part) / len(chosen))

        loaded = scenario.load(name)
        outcomes = compare.compare(loaded, loaded.policies, progress=told)
        parts.append(Part(name, outcomes, compare.table(outcomes, loaded.title), claims(outcomes)))
    return parts


def urgent_queries_stay_fast(outcomes: Sequence[Outcome]) -> tuple[Claim, ...]:
    """Haren section 7.4: HIGH queries keep their latency through overload, LOW ones pay no more than HIGH ones did."""
    alone, treadle = (
        next(outcome for outcome in outcomes if outcome.label == label).summary() for label in ("os", "multi-class")
    )
    high, low = alone["classes"]["1"], treadle["classes"]["0"]
    mean = high["mean_latency"] / treadle["classes"]["1"]["mean_latency"]
    longest = high["max_latency"] / treadle["classes"]["1"]["max_latency"]
    output = treadle["throughput"] / alone["throughput"]
    return (
        Claim(f"the urgent queries' mean latency is {mean:,.0f} times lower than under the OS", mean > 10),
        Claim(f"their maximum latency is {longest:,.0f} times lower", longest > 10),
        Claim(
            f"the others wait no longer on average ({compare.seconds(low['mean_latency'])}) than under the OS"
            f" ({compare.seconds(alone['classes']['0']['mean_latency'])})",
            low["mean_latency"] <= alone["classes"]["0"]["mean_latency"],
        ),
        Claim(f"all together give {output:.2f} times as many results", output >= 1.0),
    )


def papers_orderings(outcomes: Sequence[Outcome]) -> tuple[Claim, ...]:
    """Haren section 7.3 and Lachesis section 6.3: each policy is best at what it is for, and chance helps nobody."""
    figures = {outcome.label: outcome.summary() for outcome in outcomes}

    def best(policy: str, key: str, what: str) -> Claim:
        others = {name: summary[key] for name, summary in figures.items() if name != policy}
        nearest = min(others, key=lambda name: others[name])
        ratio = others[nearest] / figures[policy][key]
        return Claim(f"{policy} has the lowest {what}: {nearest}, the next, has {ratio:.2f} times as much", ratio > 1.0)

    by_chance = figures["random@nice"]["mean_latency"] / figures["os"]["mean_latency"]
    return (
        best("chain", "mean_queue", "memory (queued tuples)"),
        best("hr", "mean_latency", "mean latency"),
        best("fcfs", "max_latency", "maximum latency"),
        Claim(f"random priorities are no better than the OS: {by_chance:.2f} times its mean latency", by_chance > 0.95),
    )


def adaptive_keeps_up(outcomes: Sequence[Outcome]) -> tuple[Claim, ...]:
    """AMoS section 4.2: the policy that chooses policies is about as good as the best of them, whatever comes."""
    means = {outcome.label: outcome.summary()["mean_latency"] for outcome in outcomes}
    single = {name: mean for name, mean in means.items() if not name.startswith("adaptive")}
    best, worst = min(single, key=lambda n: single[n]), max(single, key=lambda n: single[n])
    over = {learner: means[f"adaptive:learner={learner}"] / single[best] - 1.0 for learner in LEARNERS}
    roulette = over.pop("roulette")
    claims = [
        Claim(
            f"AMoS' roulette is within 5 % of the best single policy: {roulette:+.1%} against {best}"
            f" ({worst}: {single[worst] / single[best] - 1.0:+.0%})",
            roulette < 0.05,
        )
    ]
    claims += [Claim(f"{name} is closer than roulette: {part:+.1%}", part < roulette) for name, part in over.items()]
    return tuple(claims)

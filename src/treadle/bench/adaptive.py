"""`treadle bench adaptive`: learners that choose among policies, on a load that changes its character every minute.

The policy `adaptive`, with its default learner and settings, is compared with each of its candidates alone, and with an
oracle: the candidate that was best in each phase. Other learners and settings are run for comparison. Each variant is
scored by the weighted objective that learners are given, measured on the rows themselves, in each phase relative to the
candidates' mean. The part `gate` runs pipelines, the part `kernel` runs queries in Real-Time Mode under `treadle
attach`, and the part `switch` changes the objectives in the simulator.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.attachment import attach
from treadle.bench.attach.rig import Outcome, Rig
from treadle.bench.claims import SET_UP, Claims, Deaths, at_least, in_turns
from treadle.bench.simulator import switch
from treadle.bench.usage import TICK, Meter
from treadle.decide.adaptive import parse_objectives
from treadle.enforce.gate.slots import usable_cores
from treadle.model import Floats
from treadle.pipelines.hops.latency import Part, summarise
from treadle.workloads import changing, multi_class
from treadle.workloads.burn import calibrate
from treadle.workloads.generator import Generator
from treadle.workloads.realtime import Chain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from treadle.pipelines.run.run import Run

Progress = Callable[[str, float], None]
Figures = dict[str, float]
DEFAULT = "adaptive"
"""The variant that claims are about: `adaptive` with its defaults, except for candidates and objectives."""
CANDIDATES = ("highest-rate", "fcfs", "queue-size")
OBJECTIVES = "min latency_p99 0.8+min total_queue 0.2"
COMPARED = {
    "roulette": "learner=roulette",
    "thompson": "learner=thompson",
    "ucb, for this load": "learner=(ucb:discount=0.85),delay=4",
}
"""Other learners, and one tuned for this load: its delay is a burst and a pause (4 s), its memory about 30 s."""
LOOK = 0.25
"""Seconds between two samples of the queues."""
SLOTS = 2
"""Number of slots: fewer than queries with rows, so that a policy has to choose."""
WITHIN = 1.1
"""The aim: the cost of `adaptive` is at most this many times that of the best candidate alone."""
WARM = 10.0
OTHERS = "others_cores"
QUIET = 0.85
"""The share of the machine that other processes must leave free; with less, the comparison is not fair."""

IN_REAL_TIME = {"long": (20, 60, 30, 100, 40), "short": (60, 60), "narrow": (30, 90)}
"""Queries in Real-Time Mode: the hashes per row of each of their stages."""
SHARES: Mapping[str, Mapping[str, float]] = {
    "depth": {"long": 0.9, "short": 0.1},
    "breadth": {"short": 0.5, "narrow": 0.5},
}
"""By phase and query: the query's share of the load, in hashes per second."""
BUSY = 0.9
"""The load of a phase, as a share of the throughput that the first candidate has in this phase under overload."""
OVER = 1.3
"""Overload: this factor times the throughput when all queries get `FLOOD` rows per second."""
FLOOD = 4000.0
SERVED = ("downstream-first", "queue-size", "congestion-aware")
JUDGED_BY = "max throughput 0.3+min total_queue 0.7"


def variants(candidates: Sequence[str], objectives: str) -> dict[str, str]:
    """Return policies by variant: each candidate alone, `DEFAULT` with all candidates, and those in `COMPARED`."""
    default = f"adaptive:candidates={'+'.join(candidates)},objective={objectives}"
    return {
        **{name: name for name in candidates},
        DEFAULT: default,
        **{name: f"{default},{options}" for name, options in COMPARED.items()},
    }


def run(
    parts: Sequence[str] = ("gate", "kernel"),
    *,
    minute: float = 60.0,
    rounds: int = 2,
    repetitions: int = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return the figures of each part. All phases are run `rounds` times, each for `minute` seconds."""
    tell = progress or (lambda *_: None)
    measures = {"gate": gate, "kernel": kernel, "switch": _switch}
    found: dict[str, Any] = {}
    deaths = Deaths()
    for number, part in enumerate(parts):

        def told(what: str, done: float, part: str = part, number: int = number) -> None:
            tell(f"{part}: {what}", (number + done) / len(parts))

        died = Deaths()
        with died.noted(SET_UP):
            found[part] = measures[part](minute, rounds, repetitions, told, died)
        deaths |= {f"{part}: {name}": why for name, why in died.items()}
    made = [each for part in parts for each in claims(found.get(part, {}), part)]
    return {**found, **deaths.figures(), "claims": made}


def gate(minute: float, rounds: int, repetitions: int, tell: Progress, deaths: Deaths) -> dict[str, Any]:
    """Measure pipelines: all variants take turns in one session."""
    from treadle.pipelines.spark.session import session

    spark = session("bench-adaptive")
    spark.sparkContext.setLogLevel("OFF")  # a batch that is stopped half-way is no error here
    tell("warming up", 0.0)
    unit = calibrate(spark)
    phases = changing.PHASES * rounds
    measure(spark, unit, "fcfs", changing.PHASES, minute=WARM, warm=0.0)  # the JVM compiles what all variants use
    chosen = variants(CANDIDATES, OBJECTIVES)
    try:
        found = _in_turns(
            chosen, repetitions, tell, lambda policy: measure(spark, unit, policy, phases, minute=minute), deaths
        )
    finally:
        spark.stop()
    return judged(found, phases, CANDIDATES, OBJECTIVES)


def kernel(minute: float, rounds: int, repetitions: int, tell: Progress, deaths: Deaths) -> dict[str, Any]:
    """Measure Real-Time Mode on one core: all variants take turns on one application, each with a new attachment."""
    queries = [Chain(name, costs) for name, costs in IN_REAL_TIME.items()]
    phases = tuple(SHARES) * rounds
    tell("warming up", 0.0)
    with Rig(queries) as rig:

        def done(rates: Mapping[str, float]) -> float:
            outcome = rig.measure(rates, WARM)
            return sum(outcome.rows[name] * sum(costs) for name, costs in IN_REAL_TIME.items()) / WARM

        for _ in range(5):  # the JVM compiles now; attached, Treadle holds its compilers back
            at_once = done(dict.fromkeys(IN_REAL_TIME, FLOOD))
        rates: dict[str, dict[str, float]] = {}
        for policy in SERVED[::-1]:
            with _attached(rig, policy):
                rates = {phase: _shared(phase, BUSY * done(_shared(phase, OVER * at_once))) for phase in SHARES}

        def measured(policy: str) -> list[Figures]:
            with _attached(rig, policy):
                return [_of_kernel(each, minute) for each in rig.follow([rates[phase] for phase in phases], minute)]

        chosen = variants(SERVED, JUDGED_BY)
        found = _in_turns(chosen, repetitions, tell, measured, deaths, stop=True)
        return judged(found, phases, SERVED, JUDGED_BY)


def _switch(minute: float, rounds: int, repetitions: int, tell: Progress, deaths: Deaths) -> dict[str, Any]:  # noqa: ARG001
    """Measure in virtual time what follows a change of objectives, and a restart; it has a length of its own."""
    return switch.summary(switch.run(tell=tell))


def measure(
    spark: SparkSession, unit: float, policy: str, phases: Sequence[str], *, minute: float, warm: float = WARM
) -> list[Figures]:
    """Run one policy over all phases, in a folder that is removed afterwards; return the figures of each phase."""
    folder = Path(tempfile.mkdtemp(prefix="treadle-"))
    try:
        pipeline = multi_class.pipeline(changing.queries(unit, phases[0]), "changing")
        options: dict[str, Any] = {"layout": "fused", "limit_rows": 100_000_000, "slots": SLOTS}
        with pipeline.start(spark, folder=folder, policy=policy, **options) as run:
            if warm:
                _let_in(run, unit, phases[0], warm)
            began, queued, others = [time.time()], [], Others(spark)
            for phase in phases:
                queued.append(_let_in(run, unit, phase, minute))
                began.append(time.time())
            rows, disturbed = _rows(run, began[0]), others.read()
            run.stop(timeout=1.0)
        return [
            {
                "latency_p99": summarise(_arrived(rows, start, end)).p99,
                "total_queue": float(np.mean(waits)),
                OTHERS: disturbed,
            }
            for start, end, waits in zip(began, began[1:], queued, strict=False)
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def judged(
    found: Mapping[str, Sequence[Figures]], phases: Sequence[str], candidates: Sequence[str], objectives: str
) -> dict[str, Any]:
    """Return each variant's figures, cost (the weighted objective) and regret (cost / cost of the oracle - 1).

    Candidates that died are left out of the comparison.
    """
    candidates = [name for name in candidates if name in found]
    costs = weighted(found, candidates, objectives)
    whole = {name: float(np.mean(each)) for name, each in costs.items()}
    oracle = float(np.mean(np.min([costs[name] for name in candidates], axis=0)))
    best = min(candidates, key=lambda name: whole[name])
    return {
        "objectives": objectives,
        "phases": list(phases),
        **{
            name: {
                "cost": round(whole[name], 4),
                "regret": round(whole[name] / oracle - 1.0, 4),
                "cost_by_phase": [round(float(cost), 4) for cost in costs[name]],
                **{key: [round(each[key], 4) for each in figures] for key in figures[0]},
            }
            for name, figures in found.items()
        },
        "oracle": {"cost": round(oracle, 4), "by_phase": _best_by_phase(costs, candidates)},
        "best_fixed": best,
    }


def claims(found: Mapping[str, Any], part: str) -> Claims:
    """Return the claims about the default; one of them is that other processes leave enough of the machine free."""
    if part == "switch":
        return switch.claims(dict(found))

    def ratio(over: str) -> float:
        return float(found[over]["cost"]) / float(found[DEFAULT]["cost"])

    disturbed = [max(each[OTHERS]) for each in found.values() if isinstance(each, dict) and OTHERS in each]
    left = 1.0 - max(disturbed, default=0.0) / usable_cores()
    fixed = found.get("best_fixed", "the best policy")
    return [
        *([at_least(f"{part}: share of the machine that nobody else used", left, QUIET)] if disturbed else []),
        at_least(f"{part}: weighted objective, {fixed} alone : {DEFAULT}", partial(ratio, fixed), round(1 / WITHIN, 3)),
        at_least(f"{part}: weighted objective, roulette : {DEFAULT}", partial(ratio, "roulette"), 1.0),
    ]


def weighted(found: Mapping[str, Sequence[Figures]], candidates: Sequence[str], objectives: str) -> dict[str, Floats]:
    """Return each variant's cost by phase: the weighted sum of objectives, relative to the candidates' mean."""
    wanted = parse_objectives(objectives.replace("+", ","))
    table = {
        name: {o.metric: np.array([each[o.metric] for each in runs]) for o in wanted} for name, runs in found.items()
    }
    usual = {o.metric: np.mean([table[name][o.metric] for name in candidates], axis=0) for o in wanted}
    return {
        name: np.sum(
            [
                o.weight * (usual[o.metric] / row[o.metric] if o.maximise else row[o.metric] / usual[o.metric])
                for o in wanted
            ],
            axis=0,
        )
        for name, row in table.items()
    }


def _best_by_phase(costs: Mapping[str, Floats], candidates: Sequence[str]) -> list[str]:
    best = np.argmin([costs[name] for name in candidates], axis=0)
    return [candidates[number] for number in best]


def _let_in(run: Run, unit: float, phase: str, seconds: float) -> list[float]:
    """Generate the load of a phase for some seconds; return the number of waiting rows over time."""
    flows = multi_class.flows(changing.queries(unit, phase), run)
    queued = []
    with Generator([flow for flow in flows if flow.rate > 0]):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            run.check()
            queued.append(float(sum(channel.rows for channel in run.channels.values())))
            time.sleep(LOOK)
    return queued


def _rows(run: Run, since: float) -> list[Part]:
    """Return all rows that came out, and all waiting rows with their age so far."""
    now = time.time()
    found: list[Part] = []
    for hop in run.hops.values():
        found += [] if hop.latency is None else hop.latency.parts(since)
        found += [Part(now, each.rows, now - each.oldest, now - each.mean) for each in hop.backlogs() if each.rows]
    return found


def _arrived(rows: Sequence[Part], start: float, end: float) -> list[Part]:
    """Return the parts with a mean arrival from `start` to `end`; if batches took longer, all that overlap."""
    found = [part for part in rows if start <= part.time - part.mean < end]
    return found or [part for part in rows if part.time - part.oldest < end and part.time > start]


class Others:
    """Measures from its creation on the cores used by processes other than Spark and this one, load generators too."""

    def __init__(self, spark: SparkSession) -> None:
        self._meter = Meter(spark)
        self._busy = _busy_seconds()

    def read(self) -> float:
        used = self._meter.read()
        return max(0.0, (_busy_seconds() - self._busy) / used.seconds - used.spark_cores - used.treadle_cores)


def _busy_seconds() -> float:
    """Return the busy seconds of all cores together since boot."""
    with open("/proc/stat", "rb") as file:
        user, nice, system, _, _, *interrupts = (int(field) for field in file.readline().split()[1:8])
    return (user + nice + system + sum(interrupts)) * TICK


def _shared(phase: str, hashes: float) -> dict[str, float]:
    """Return by query the rows per second that make `hashes` per second in this phase."""
    return {name: hashes * SHARES[phase].get(name, 0.0) / sum(costs) for name, costs in IN_REAL_TIME.items()}


@contextmanager
def _attached(rig: Rig, policy: str) -> Iterator[None]:
    """Attach to the application, and wait until its threads are found."""
    with attach(rig.application.pid, policy=policy, enforce="nice") as attachment:
        limit = time.monotonic() + WARM
        while not attachment.status()["rows"] and time.monotonic() < limit:
            time.sleep(LOOK)
        yield


def _of_kernel(outcome: Outcome, seconds: float) -> Figures:
    """Return the output rows per second and the mean number of rows inside the application, counted at its topics."""
    queued = np.sum(list(outcome.queued.values()), axis=0)
    return {"output_rate": sum(outcome.rows.values()) / seconds, "total_queue": float(np.mean(queued))}


def _in_turns(
    chosen: Mapping[str, str],
    repetitions: int,
    tell: Progress,
    measured: Callable[[str], list[Figures]],
    deaths: Deaths,
    *,
    stop: bool = False,
) -> dict[str, list[Figures]]:
    """Measure all variants in turns; return by variant the medians of the figures of each phase."""
    found: dict[str, list[list[Figures]]] = {name: [] for name in chosen}
    total = repetitions * len(chosen)

    def measure_one(name: str, number: int) -> None:
        tell(f"{name} ({number + 1} of {total})", number / total)
        found[name].append(measured(chosen[name]))

    in_turns(list(chosen), repetitions, measure_one, deaths, stop=stop)
    return {name: _medians(runs) for name, runs in found.items() if runs}


def _medians(runs: Sequence[Sequence[Figures]]) -> list[Figures]:
    """Return the median of each figure of each phase over the repetitions."""
    return [{key: float(np.median([run[n][key] for run in runs])) for key in first} for n, first in enumerate(runs[0])]

"""`treadle bench loop`: the cost of `treadle attach` itself, every 50 ms, on applications with 100 and 1,000 threads.

The cost is the CPU time of Treadle's processes and of its threads inside of the JVM, while a policy decides by rows
that the agent counts five times a second. Turns with and without the agent compare the application's rows per second.
The baseline is the duration of a round made by processes, a `jstack` and a `renice` for each thread, as in the
published code of Lachesis.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from treadle import estimates, jars, jvm
from treadle.attachment import attach
from treadle.bench.attach.rig import Rig
from treadle.bench.claims import Claims, Deaths, at_least, at_most
from treadle.engines.spark.look_due import RARELY
from treadle.engines.spark.threads.thread_names import runs_task
from treadle.engines.spark.threads.thread_table import FRAMES
from treadle.errors import EngineError
from treadle.linux import stat
from treadle.workloads.realtime import Chain

Progress = Callable[[str, float], None]
PERIOD = 0.05
POLICY = "queue-size"
"""A policy that needs row counts of tasks, which the agent reads in the JVM."""
HUNDRED = tuple(
    Chain(name, costs)
    for name, costs in (
        ("even", (30, 30, 30)),
        ("uneven", (10, 60, 20)),
        ("rising", (10, 20, 40)),
        ("falling", (40, 20, 10)),
    )
)
"""Queries that together have about a hundred scheduled threads, including Spark's own."""
THOUSAND = tuple(Chain(f"chain-{number}", (5, 10, 5, 10, 5)) for number in range(30))
"""Queries that together have about a thousand scheduled threads."""
BATCH = "30 minutes"
"""Duration of a Real-Time batch: so long that no batch begins during a measurement."""
WARM = 20.0
"""Seconds after which the JVM has compiled most of the application."""
LOAD, QUIET, FLOOD = 0.9, 0.5, 1.3
"""Input rates as shares of the application's capacity: under load, in a quiet interval, flooded."""
FIRST_RATE = 100.0
"""Rows per second of all queries together while the application warms up."""
STARTS = 3
SETTLE = 20.0
"""Seconds until the JVM has compiled most of the agent too."""
PAUSE, TURN, PAIRS = 2.0, 5.0, 8
"""Turns with and without the agent: the seconds before each turn, its length in seconds, and the number of pairs."""
OWN = ("treadle-agent", "Attach Listener")
"""JVM threads that work for Treadle alone, by the kernel's names, which have at most 15 characters."""
SHARED = ("VM Thread",)
"""JVM threads that also work for Treadle when it dumps threads."""
DUMPS = 10


def run(*, seconds: float = 40.0, progress: Progress | None = None) -> dict[str, Any]:
    """Run all parts, and return the figures."""
    tell = progress or (lambda *_: None)
    figures: dict[str, Any] = {}
    deaths = Deaths()
    tell("starting Spark", 0.0)
    with Rig(HUNDRED, batch=BATCH) as rig:
        pid = rig.application.pid
        tell("warming up", 0.1)
        rate = _capacity(rig)
        figures["rows_per_s"] = round(LOAD * rate, 1)
        with rig.flowing(_even(rig, LOAD * rate)):
            tell("from the command to the first priority", 0.2)
            with deaths.noted("the first priority"):
                figures["first_priority_s"] = statistics.median(_first_priority(pid) for _ in range(STARTS))
            tell("the loop over a hundred threads", 0.25)
            with deaths.noted("a hundred threads, under load"):
                figures["hundred_under_load"] = _apart(pid, seconds)
        with deaths.noted("a hundred threads"):
            figures["hundred"] = _cost(rig, rate, seconds)
        tell("jstack and renice", 0.5)
        with deaths.noted("jstack and renice"):
            figures["processes_baseline_ms"] = _by_processes(pid, figures["hundred"]["threads"])
        tell("with the agent and without", 0.45)
        with deaths.noted("with the agent and without"):
            figures["with_agent"] = _with_and_without(rig, FLOOD * rate)
    tell("starting Spark with 1,000 threads", 0.7)
    with deaths.noted("a thousand threads"), Rig(THOUSAND, batch=BATCH) as rig:
        rate = _capacity(rig)
        tell("the loop over a thousand threads", 0.8)
        figures["thousand"] = _cost(rig, rate, seconds)
    return {**figures, **deaths.figures(), "claims": claims(figures)}


def claims(figures: Mapping[str, Any]) -> Claims:
    """Return the claims. The one about `jstack` and `renice` is left out where these are not installed."""
    made = [
        at_least("threads, about a hundred", lambda: figures["hundred"]["threads"], 100),
        at_most("100 threads: cores, in all", lambda: figures["hundred"]["cpu_fraction"], 0.01),
        at_least("threads, about a thousand", lambda: figures["thousand"]["threads"], 1000),
        at_most("1,000 threads: cores, in all", lambda: figures["thousand"]["cpu_fraction"], 0.04),
        at_least("rows/s, with the agent : without, most of its interval", lambda: figures["with_agent"]["high"], 0.99),
        at_most("rows/s, with the agent : without, least of its interval", lambda: figures["with_agent"]["low"], 1.01),
    ]
    baseline = figures.get("processes_baseline_ms", math.nan)
    if baseline is not None:
        per_round = at_least(
            "ms, jstack and renice : a round", lambda: baseline / figures["hundred"]["round_ms"]["all"], 1.0
        )
        made.append(per_round)
    return made


def measure(pid: int, seconds: float) -> dict[str, Any]:
    """Attach from this process; return the cores used by Treadle's processes and agent, and the durations of rounds.

    `threads` is the number of scheduled threads. `round_ms` has medians: `all` and its phases for rounds with new data,
    `quiet` for rounds without.
    """
    with attach(pid, policy=POLICY, enforce="nice", period=PERIOD) as attachment:
        time.sleep(SETTLE)
        stats = attachment.loop.stats
        rounds, skipped, changes = stats.rounds, stats.skipped, stats.changes
        stats.phase_ms.clear()
        agents = _named(pid, OWN)
        treadle, agent = _over(seconds, _cpu_time, lambda: _thread_time(agents))
        rounds, skipped, changes = stats.rounds - rounds, stats.skipped - skipped, stats.changes - changes
        phases = {phase: round(statistics.median(took), 3) for phase, took in list(stats.phase_ms.items())}
        busy = len(stats.phase_ms.get("all", ()))
        rows = attachment.status()["rows"]
    return {
        "cpu_fraction": round(treadle + agent, 5),
        "treadle": round(treadle, 5),
        "agent": round(agent, 5),
        "missed_fraction": round(skipped / max(1, skipped + rounds), 5),
        "threads": len({thread["tid"] for row in rows for thread in row["threads"]}),
        "changes_per_s": round(changes / seconds, 2),
        "rounds_with_news": round(busy / max(1, rounds), 3),
        "round_ms": phases,
    }


def _over(seconds: float, *clocks: Callable[[], float]) -> list[float]:
    """Return by how much each clock grows per second, measured over `seconds`."""
    began, first = time.perf_counter(), [clock() for clock in clocks]
    time.sleep(seconds)
    last, passed = [clock() for clock in clocks], time.perf_counter() - began
    return [(now - then) / passed for then, now in zip(first, last, strict=True)]


def _cpu_time() -> float:
    """Return the CPU seconds of this process and of its children: the guardian."""
    children = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    used = [float(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) * 1e-9 for pid in set(children)]
    return time.process_time() + sum(used)


def _named(pid: int, names: Sequence[str]) -> list[Path]:
    """Return the folders in /proc of a process's threads with these names."""
    return [task for task in Path(f"/proc/{pid}/task").iterdir() if _comm(task) in names]


def _thread_time(tasks: Sequence[Path]) -> float:
    """Return the CPU seconds of these threads, none of which may end during the measurement."""
    return sum(float((task / "schedstat").read_text().split()[0]) * 1e-9 for task in tasks)


def _comm(task: Path) -> str:
    try:
        return (task / "comm").read_text().rstrip("\n")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _capacity(rig: Rig) -> float:
    """Return the capacity of all queries together in rows per second, once the JVM has compiled most of their code."""
    rig.measure(_even(rig, FIRST_RATE), WARM)
    return rig.capacity(WARM / 8)


def _even(rig: Rig, rate: float) -> dict[str, float]:
    """Divide a rate in rows per second evenly among the queries."""
    names = [query.name for query in rig.queries.values()]
    return dict.fromkeys(names, rate / len(names))


def _cost(rig: Rig, rate: float, seconds: float) -> dict[str, Any]:
    """Measure the loop in a quiet interval, and the cost of a thread dump in the JVM's `VM Thread`.

    The `VM Thread` also collects garbage, so its work for Treadle, a dump every `RARELY` seconds, is measured
    separately.
    """
    pid = rig.application.pid
    with rig.flowing(_even(rig, QUIET * rate)):
        found = _apart(pid, seconds)
    vm = _named(pid, SHARED)
    before = _thread_time(vm)
    for _ in range(DUMPS):
        jvm.dump(pid, frames=FRAMES, stack_of=runs_task)
    dumps = (_thread_time(vm) - before) / DUMPS / RARELY
    return {**found, "cpu_fraction": round(found["cpu_fraction"] + dumps, 5), "dumps": round(dumps, 5)}


def _with_and_without(rig: Rig, rate: float) -> dict[str, float]:
    """Return rows per second of the flooded application with and without the agent, and the interval of their ratio.

    A JVM becomes faster all the time, so the turn with the agent is alternately the first and the second of its pair.
    """
    rig.produce(_even(rig, rate))
    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * PAIRS):
        looked_at = number % 4 in (1, 2)
        with _agent(rig.application.pid) if looked_at else nullcontext():
            rig.take(PAUSE)
            began, seen = time.perf_counter(), rig.seen
            rig.take(TURN)
            found[looked_at].append((rig.seen - seen) / (time.perf_counter() - began))
    return compared(found[True], found[False])


def compared(with_it: Sequence[float], without: Sequence[float]) -> dict[str, float]:
    """Return the mean of both, and the geometric mean of the ratios of the pairs, with its confidence interval."""
    logs = [math.log(one / other) for one, other in zip(with_it, without, strict=True)]
    spread = statistics.variance(logs) / len(logs)
    ratio = estimates.of_sums(statistics.fmean(logs), spread, spread**2 / (len(logs) - 1))
    return {
        "rows_per_s": round(statistics.fmean(with_it), 1),
        "rows_per_s_without": round(statistics.fmean(without), 1),
        "ratio": round(math.exp(ratio.value), 4),
        "low": round(math.exp(ratio.low), 4),
        "high": round(math.exp(ratio.high), 4),
    }


@contextmanager
def _agent(pid: int) -> Iterator[None]:
    """Attach with the agent and the policy's metrics, without changing anything."""
    command = [_program(), "attach", "--pid", str(pid), "--policy", POLICY, "--dry-run", "--agent"]
    attached = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while OWN[0] not in map(_comm, Path(f"/proc/{pid}/task").iterdir()):
            if attached.poll() is not None:
                raise EngineError("treadle attach ended without an agent", remedy="run it by hand and see why")
            time.sleep(0.02)
        yield
    finally:
        attached.terminate()
        attached.wait()


def _program() -> str:
    return str(Path(sys.executable).with_name("treadle"))


def _apart(pid: int, seconds: float) -> dict[str, Any]:
    """Run `measure` in a separate process."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(pid), str(seconds)], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise EngineError("the loop failed", remedy="see its message above")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _first_priority(pid: int) -> float:
    """Return the seconds from the command until the nice of a thread of the application changes.

    The policy is `random`, which needs no history; `queue-size` would wait until queues differ.
    """
    command = [_program(), "attach", "--pid", str(pid), "--policy", "random", "--for", "10s"]
    before = _nices(pid)
    began = time.perf_counter()
    attached = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while all(before.get(tid, nice) == nice for tid, nice in _nices(pid).items()):
            if attached.poll() is not None:
                raise EngineError("treadle attach ended without a change", remedy="run it by hand and see why")
            time.sleep(0.02)  # polling uses the application's core
        return round(time.perf_counter() - began, 3)
    finally:
        attached.terminate()
        attached.wait()


def _nices(pid: int) -> dict[str, int]:
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found[task.name] = int(stat.read(pid, int(task.name), stat.NICE)[stat.NICE])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _by_processes(pid: int, threads: int) -> float | None:
    """Return the milliseconds of a round by processes: a `jstack`, and a `renice` for each thread.

    None if one of them is not installed.
    """
    jstack, renice = Path(jars.java()).resolve().with_name("jstack"), shutil.which("renice")
    if not jstack.exists() or renice is None:
        return None
    own = str(os.getpid())  # has this nice already, so the application stays unchanged
    nice = str(os.getpriority(os.PRIO_PROCESS, 0))
    began = time.perf_counter()
    subprocess.run([str(jstack), str(pid)], stdout=subprocess.DEVNULL, check=False)
    for _ in range(threads):
        subprocess.run([renice, "-n", nice, "-p", own], stdout=subprocess.DEVNULL, check=False)
    return round((time.perf_counter() - began) * 1e3, 1)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(int(sys.argv[1]), float(sys.argv[2]))) + "\n")

"""`treadle bench loop`: what `treadle attach` itself costs, at 50 ms over an application with a hundred threads.

Beside it, in the same run, what doing the same with a `jstack` and `renice` processes costs, as the published code of
Lachesis does it.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from treadle import jars
from treadle.attachment import attach
from treadle.bench.attach import Rig
from treadle.bench.claims import Claims, Deaths, at_least
from treadle.errors import EngineError
from treadle.workloads.realtime import Chain

Progress = Callable[[str, float], None]
PERIOD = 0.05
QUERIES = (Chain("even", (30, 30, 30)), Chain("uneven", (10, 60, 20)))
"""Together a hundred threads that are scheduled, those of Spark itself among them."""
BATCH = "60 seconds"
WARM = 20.0
"""Seconds after which the JVM has compiled the most of it."""
LOAD = 0.9
"""The part of what the application can do at most that it is given to do."""
FIRST_RATE = 100.0
STARTS = 3
SETTLE = 4.0
"""Seconds until the agent is loaded and the UI has answered."""


def run(*, seconds: float = 60.0, progress: Progress | None = None) -> dict[str, Any]:
    """The figures."""
    tell = progress or (lambda *_: None)
    tell("starting Spark", 0.0)
    with Rig(QUERIES, batch=BATCH) as rig:
        pid = rig.application.pid
        tell("warming up", 0.2)
        rig.measure({query.name: FIRST_RATE for query in QUERIES}, WARM)
        rate = LOAD * rig.capacity(WARM / 8) / len(QUERIES)
        figures: dict[str, Any] = {"rows_per_s": round(rate * len(QUERIES), 1)}
        deaths = Deaths()
        with rig.flowing({query.name: rate for query in QUERIES}):
            tell("from the command to the first priority", 0.5)
            with deaths.noted("the first priority"):
                figures["first_priority_s"] = statistics.median(_first_priority(pid) for _ in range(STARTS))
            tell("the loop", 0.6)
            with deaths.noted("the loop"):
                figures |= _apart(pid, seconds)
            tell("jstack and renice", 0.9)
            with deaths.noted("jstack and renice"):
                figures["processes_baseline_ms"] = _by_processes(pid, figures["threads"])
    return {**figures, **deaths.figures(), "claims": claims(figures)}


def claims(figures: Mapping[str, Any]) -> Claims:
    """What ought to hold: a round takes less than what it replaces. Without `jstack` and `renice` there is no claim."""
    baseline = figures.get("processes_baseline_ms", math.nan)
    if baseline is None:
        return []
    return [at_least("ms, jstack and renice : a round", lambda: baseline / figures["round_ms"]["all"], 1.0)]


def measure(pid: int, seconds: float) -> dict[str, Any]:
    """In this process: the CPU of all of it, and of its guardian, while it is attached, and what parts of a round take.

    `threads` are those that are scheduled, `round_ms` medians: `all` and its parts of the rounds in which there was
    anything new to decide on, `quiet` of the others.
    """
    with attach(pid, policy="queue-size", enforce="nice", period=PERIOD) as attachment:
        time.sleep(SETTLE)
        stats = attachment.loop.stats
        rounds, skipped, changes = stats.rounds, stats.skipped, stats.changes
        stats.phase_ms.clear()
        began, cpu = time.perf_counter(), _cpu_time()
        time.sleep(seconds)
        used, passed = _cpu_time() - cpu, time.perf_counter() - began
        rounds, skipped, changes = stats.rounds - rounds, stats.skipped - skipped, stats.changes - changes
        phases = {phase: round(statistics.median(took), 3) for phase, took in list(stats.phase_ms.items())}
        busy = len(stats.phase_ms.get("all", ()))
        rows = attachment.status()["rows"]
    return {
        "cpu_fraction": round(used / passed, 5),
        "missed_fraction": round(skipped / max(1, skipped + rounds), 5),
        "threads": len({thread["tid"] for row in rows for thread in row["threads"]}),
        "changes_per_s": round(changes / passed, 2),
        "rounds_with_news": round(busy / max(1, rounds), 3),
        "round_ms": phases,
    }


def _cpu_time() -> float:
    """Seconds, of all threads of this process and of those that it has started: the guardian."""
    children = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    used = [float(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) * 1e-9 for pid in set(children)]
    return time.process_time() + sum(used)


def _apart(pid: int, seconds: float) -> dict[str, Any]:
    """In a process that does nothing else."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(pid), str(seconds)], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise EngineError("the loop failed", remedy="see its message above")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _first_priority(pid: int) -> float:
    """Seconds from the command until a thread of the application has another nice than before.

    By a policy that needs no history: that of queues would wait for some to differ.
    """
    program = str(Path(sys.executable).with_name("treadle"))
    command = [program, "attach", "--pid", str(pid), "--policy", "random", "--for", "10s"]
    before = _nices(pid)
    began = time.perf_counter()
    attached = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while all(before.get(tid, nice) == nice for tid, nice in _nices(pid).items()):
            if attached.poll() is not None:
                raise EngineError("treadle attach ended without a change", remedy="run it by hand and see why")
            time.sleep(0.02)  # to look is not free, and it is on the core of what is looked for
        return round(time.perf_counter() - began, 3)
    finally:
        attached.terminate()
        attached.wait()


def _nices(pid: int) -> dict[str, str]:
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found[task.name] = (task / "stat").read_text().rpartition(")")[2].split()[16]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _by_processes(pid: int, threads: int) -> float | None:
    """Milliseconds for one round: a thread dump by `jstack`, a `renice` for each thread. None without them."""
    jstack, renice = Path(jars.java()).resolve().with_name("jstack"), shutil.which("renice")
    if not jstack.exists() or renice is None:
        return None
    own = str(os.getpid())  # which has this nice already: the application stays as it is
    nice = str(os.getpriority(os.PRIO_PROCESS, 0))
    began = time.perf_counter()
    subprocess.run([str(jstack), str(pid)], stdout=subprocess.DEVNULL, check=False)
    for _ in range(threads):
        subprocess.run([renice, "-n", nice, "-p", own], stdout=subprocess.DEVNULL, check=False)
    return round((time.perf_counter() - began) * 1e3, 1)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(int(sys.argv[1]), float(sys.argv[2]))) + "\n")

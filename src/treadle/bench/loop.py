"""`treadle bench loop`: what `treadle attach` itself costs, at 50 ms over an application with a hundred threads.

Beside it, in the same run, what doing the same with a `jstack` and `renice` processes costs, as the published code of
Lachesis does it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from treadle import jars
from treadle.attachment import attach
from treadle.bench.attach import Rig
from treadle.errors import EngineError
from treadle.workloads.realtime import Chain

Progress = Callable[[str, float], None]
PERIOD = 0.05
QUERIES = 6
RATE = 100.0
TRIES = 20
SETTLE = 4.0
"""Seconds until the agent is loaded and the UI has answered."""


def run(*, seconds: float = 20.0, progress: Progress | None = None) -> dict[str, Any]:
    """The figures."""
    tell = progress or (lambda *_: None)
    queries = [Chain(f"q{number}", (5, 5, 5)) for number in range(QUERIES)]
    tell("starting Spark", 0.0)
    with Rig(queries) as rig:
        pid = rig.application.pid
        tell("warming up", 0.2)
        rig.measure({query.name: RATE for query in queries}, seconds)
        tell("from the command to the first priority", 0.4)
        first = _first_priority(pid)
        with rig.flowing({query.name: RATE for query in queries}):
            tell("the loop", 0.6)
            figures = _apart(pid, seconds)
            tell("jstack and renice", 0.9)
            figures["processes_baseline_ms"] = _by_processes(pid, figures["threads"])
    return {**figures, "first_priority_s": first}


def measure(pid: int, seconds: float) -> dict[str, Any]:
    """In this process: the CPU of all of it while it is attached, and what the parts of a round take."""
    with attach(pid, policy="queue-size", enforce="nice", period=PERIOD) as attachment:
        time.sleep(SETTLE)
        before = attachment.status()
        began, cpu = time.perf_counter(), time.process_time()
        time.sleep(seconds)
        used = (time.process_time() - cpu) / (time.perf_counter() - began)
        status = attachment.status()
    rounds, skipped = (status[name] - before[name] for name in ("rounds", "skipped"))
    return {
        "cpu_fraction": round(used, 5),
        "missed_fraction": round(skipped / max(1, skipped + rounds), 5),
        "threads": sum(len(row["threads"]) for row in status["rows"]),
        "round_ms": _phases(pid) | {"all": status["round_ms"]},
    }


def _phases(pid: int) -> dict[str, float]:
    """Medians: a look at the threads, at their counters, the decision."""
    from treadle.decide import registry
    from treadle.engines.spark.application import Application
    from treadle.engines.spark.engine import SparkEngine
    from treadle.observe import METRICS, Provider, plannable

    policy = registry.create("queue-size")
    took: dict[str, list[float]] = {"threads": [], "counters": [], "metrics": [], "decision": []}
    with SparkEngine(Application.find(pid=pid)) as engine:
        provider = Provider(engine.offers, [m for m in METRICS if plannable(m, engine.offers)], engine=engine.name)
        for _ in range(TRIES):
            time.sleep(PERIOD)
            marks = [time.perf_counter()]
            topology = engine.topology()
            marks.append(time.perf_counter())
            sample = engine.sample(provider.base)
            marks.append(time.perf_counter())
            snapshot = provider.update(topology, sample)
            marks.append(time.perf_counter())
            policy.decide(snapshot)
            marks.append(time.perf_counter())
            for name, part in zip(took, np.diff(marks), strict=True):
                took[name].append(float(part) * 1e3)
    return {name: round(float(np.median(parts)), 3) for name, parts in took.items()}


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
    """Seconds from the command until a thread of the application has another nice than before."""
    program = str(Path(sys.executable).with_name("treadle"))
    command = [program, "attach", "--pid", str(pid), "--policy", "random", "--for", "10s"]
    before = _nices(pid)
    began = time.perf_counter()
    attached = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while all(before.get(tid, nice) == nice for tid, nice in _nices(pid).items()):
            if attached.poll() is not None:
                raise EngineError("treadle attach ended without a change", remedy="run it by hand and see why")
            time.sleep(0.005)
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

"""Runs for long and looks for what only time shows: growth of memory and files, hops that starve, rows lost in crashes.

    python benchmarks/soak.py --minutes 10 --kills 20

First 50 hops of all sorts in one application, with bursts, for some minutes; then the crash tests with so many kills of
the driver, on embedded channels and on Kafka. Prints one JSON line; exit code 1 if a bound was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle import Pipeline, session
from treadle.workloads.generator import SCHEMA, Flow, Generator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from treadle.pipelines.run.run import Run

HOPS, FEEDS = 50, 5
RATE = 200.0
SAMPLES = 30
MB = 2**20

MOST_MEMORY_MB = 4096
"""Of JVM and Python together, at any time."""
GROWTH = 1.2
"""By which factor memory and files may grow from the second third of the time to the last one."""
SLACK = {"heap_mb": 24.0, "jvm_mb": 160.0, "python_mb": 24.0, "files": 200.0, "handles": 50.0, "threads": 30.0}
"""What may come on top: one garbage collection more or less, files between two clean-ups."""
STARVED = 2 * 10 * HOPS
"""Batches of all hops in which each must have had one: one in 10 is for the one that has waited longest."""
FILES_PER_HOP = 120
"""Checkpoints (Spark keeps at least 10 batches of each hop), state, and segments of channels."""


@dataclass(frozen=True)
class Sample:
    """The application at one moment."""

    seconds: float
    jvm_mb: float
    python_mb: float
    heap_mb: float
    """What is alive, after a full collection."""
    files: int
    handles: int
    threads: int
    waiting_rows: int
    batches: dict[str, int]


def main() -> None:
    """Both parts, as asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the hops run (0: not at all)")
    parser.add_argument(
        "--kills", type=int, default=20, help="how often the driver is killed, for each kind of channel"
    )
    given = parser.parse_args()
    found: dict[str, Any] = {}
    if given.minutes > 0:
        found["hops"] = soak(given.minutes * 60.0)
    if given.kills > 0:
        found["crashes"] = crashes(given.kills)
    print(json.dumps(found))
    sys.exit(any(part["broken"] for part in found.values()))


def soak(seconds: float) -> dict[str, Any]:
    """All hops for so long."""
    folder = Path(tempfile.mkdtemp(prefix="treadle-soak-"))
    spark = session("soak")
    samples: list[Sample] = []
    try:
        with pipeline().start(spark, folder=folder / "work", limit_rows=200_000) as run:
            feeds = [Flow(str(run.channels[f"feed{n}"].folder), RATE, 2.0, float(n)) for n in range(FEEDS)]
            with Generator(feeds):
                began = time.monotonic()
                while time.monotonic() - began < seconds:
                    time.sleep(seconds / SAMPLES)
                    run.check()
                    samples.append(look(spark, run, folder, time.monotonic() - began))
                    print(json.dumps(brief(samples[-1])), file=sys.stderr)
            statistics_ = run.gate.stats
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    last = samples[-1]
    return {
        "broken": judge(samples),
        "hops": len(last.batches),
        "batches": sum(last.batches.values()),
        "fewest_batches": min(last.batches.values()),
        "slot_idle_share": round(statistics_.idle / last.seconds / statistics_.slots, 4),
        "growth": {name: round(growth(samples, name), 3) for name in SLACK},
        "first": brief(samples[len(samples) // 3]),
        "last": brief(last),
    }


def judge(samples: list[Sample]) -> list[str]:
    """What was beyond its bound."""
    broken = []
    for name, slack in SLACK.items():
        before, after = thirds(samples, name)
        if after > before * GROWTH + slack:
            broken.append(f"{name} grew from {before:.0f} to {after:.0f}")
    memory = max(sample.jvm_mb + sample.python_mb for sample in samples)
    if memory > MOST_MEMORY_MB:
        broken.append(f"{memory:.0f} MB of memory, more than {MOST_MEMORY_MB}")
    files = max(sample.files for sample in samples)
    if files > FILES_PER_HOP * HOPS:
        broken.append(f"{files} files, more than {FILES_PER_HOP} for each hop")
    return broken + starved(samples)


def starved(samples: list[Sample]) -> list[str]:
    """Hops that had no batch while all together had so many that the gate's promise would have reached them."""
    broken = []
    for number, start in enumerate(samples):
        enough = sum(start.batches.values()) + STARVED
        end = next((sample for sample in samples[number:] if sum(sample.batches.values()) >= enough), start)
        hops = [hop for hop, count in end.batches.items() if count == start.batches[hop] and end is not start]
        if hops:
            broken.append(f"{', '.join(hops)} had no batch from {start.seconds:.0f} to {end.seconds:.0f} s")
    return broken


def thirds(samples: list[Sample], name: str) -> tuple[float, float]:
    """The medians in the second and in the last third of the time."""
    third = max(1, len(samples) // 3)
    values = [float(getattr(sample, name)) for sample in samples]
    return statistics.median(values[third : 2 * third] or values), statistics.median(values[-third:])


def growth(samples: list[Sample], name: str) -> float:
    """How many times more in the last third."""
    before, after = thirds(samples, name)
    return after / before if before else 1.0


def brief(sample: Sample) -> dict[str, Any]:
    """A sample without each hop's batches."""
    found = {name: value for name, value in asdict(sample).items() if name != "batches"}
    return {**{name: round(value, 1) for name, value in found.items()}, "batches": sum(sample.batches.values())}


def look(spark: SparkSession, run: Run, folder: Path, seconds: float) -> Sample:
    """One sample; it has the JVM collect its garbage."""
    jvm: Any = spark.sparkContext._jvm
    pid = int(jvm.java.lang.ProcessHandle.current().pid())
    jvm.java.lang.System.gc()
    heap = jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed()
    status = run.status()
    return Sample(
        seconds,
        resident(pid) / MB,
        resident(os.getpid()) / MB,
        heap / MB,
        sum(len(files) for _, _, files in os.walk(folder)),
        sum(len(os.listdir(f"/proc/{each}/fd")) for each in (pid, os.getpid())),
        sum(len(os.listdir(f"/proc/{each}/task")) for each in (pid, os.getpid())),
        sum(channel["rows"] for channel in status["channels"].values()),
        {name: hop["batches"] for name, hop in status["hops"].items()},
    )


def resident(pid: int) -> int:
    """Bytes in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def pipeline() -> Pipeline:
    """Feeds with several readers each: native, stateful and Python operators and sinks, a fifth of them urgent."""
    p = Pipeline("soak")
    for number in range(FEEDS):
        p.feed(f"feed{number}", schema=SCHEMA)
    for number in range(HOPS // 2):
        operator = counted if number % 5 == 1 else burned
        p.operator(name=f"op{number}", inputs=(f"feed{number % FEEDS}",))(operator)
        priority = 1 if number % 5 == 0 else 0
        if number % 5 == 2:
            p.sink(name=f"out{number}", inputs=f"op{number}", priority=priority)(kept)
        else:
            p.write(f"out{number}", reads=f"op{number}", format="noop", priority=priority)
    return p


def burned(rows: DataFrame) -> DataFrame:
    """Some work on each row."""
    return rows.selectExpr("id", "v", "sha2(payload, 512) AS payload").where("v < 0.7")


def counted(rows: DataFrame) -> DataFrame:
    """State of a fixed size."""
    return rows.selectExpr("floor(v * 20) AS k").groupBy("k").count()


def kept(rows: DataFrame) -> None:
    """A sink in Python."""
    rows.write.format("noop").mode("append").save()


def crashes(kills: int) -> dict[str, Any]:
    """The crash tests, for both kinds of channels."""
    tests = Path(__file__).parent.parent / "tests" / "pipelines" / "test_crash.py"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", str(tests)],
        env={**os.environ, "TREADLE_CRASHES": str(kills)},
        cwd=tests.parent.parent.parent,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
    lines = done.stdout.splitlines()
    seeds = sorted({line.partition("=")[2] for line in lines if line.startswith("TREADLE_SEED=")})
    return {
        "broken": [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        or ["failed"] * bool(done.returncode),
        "kills_each": kills,
        "seeds": seeds,
        "seconds": round(time.monotonic() - began, 1),
    }


if __name__ == "__main__":
    main()

"""A pipeline whose queries are placed on the workers of a cluster, and that does as it is told by lines on its input.

python placed_pipeline.py FOLDER MASTER BROKER TOPIC
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import treadle
from treadle.errors import ConfigError
from treadle.pipelines.quality.placement import Placement
from treadle.values import Snapshot
from treadle.workloads.burn import burn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FOLDER, MASTER, BROKER, TOPIC = sys.argv[1:5]
SINKS = ("one", "two")
PLACE = "java_method('java.lang.System', 'getProperty', 'user.dir')"
"""In which folder a row is worked on: executors of a standalone cluster have their own."""


def pipeline() -> treadle.Pipeline:
    """Two sinks that do the same: much work for each row, and a file for each batch, whatever becomes of it."""
    p = treadle.Pipeline(TOPIC)
    p.topic("numbers", topic=TOPIC, schema="a bigint, hashes int", options={"maxOffsetsPerTrigger": 100})
    for name in SINKS:

        def write(numbers: DataFrame, batch_id: int, name: str = name) -> None:
            worked = numbers.selectExpr("a", f"{PLACE} AS place", f"{burn('cast(a as string)', 'hashes')} AS h")  # type: ignore[arg-type]
            rows = worked.where("h <> ''").select("a", "place").collect()
            folder = Path(FOLDER, name)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f".{batch_id}").write_text(json.dumps([row.asDict() for row in rows]))
            (folder / f".{batch_id}").rename(folder / f"{batch_id}.json")

        p.sink(name=name, inputs="numbers")(write)
    return p


def by_name(groups: dict[str, str]) -> Callable[[Snapshot, int], list[float]]:
    """An f that gives each sink the group with this number, and other sinks none."""

    def assign(snapshot: Snapshot, _: int) -> list[float]:
        return [float(groups.get(each.operators[-1], -1)) for each in snapshot.topology.instances]

    return assign


def main() -> None:
    """`status`, `move SINK WORKER`, `assign SINK=GROUP …`, `drain`; each is answered by a line of JSON."""
    config = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", "spark.driver.memory": "1g"}
    spark = treadle.cluster_session("placed", master=MASTER, config=config)
    options: dict[str, Any] = {
        "channels": "kafka",
        "kafka": BROKER,
        "layout": "fused",
        "cycle": "1s",
        "assign_period": "200ms",
    }
    options["placement"] = treadle.place(instances={"two": 2})
    with pipeline().start(spark, folder=Path(FOLDER, "work"), **options) as run:
        placed = run.promises
        assert isinstance(placed, Placement)
        for line in sys.stdin:
            order, *words = line.split()
            answer: Any = None
            if order == "status":
                run.check()
                answer = placed.status()
            elif order == "move":
                try:
                    placed.move(words[0], words[1], time.monotonic())
                except ConfigError as error:
                    answer = error.message
            elif order == "assign":
                run.set(assign=by_name(dict(word.split("=") for word in words)) if words else "none")
                answer = run.status().get("groups")
            elif order == "drain":
                answer = run.drain(120.0)
            print(json.dumps(answer), flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main()

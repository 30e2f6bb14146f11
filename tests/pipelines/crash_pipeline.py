"""Numbers through two operators into files: the pipeline that the crash tests kill and start again.

    python crash_pipeline.py FOLDER UP_TO [BROKER]

Runs until all numbers below UP_TO are through, in embedded channels from a feed that it fills itself or, with a broker,
in Kafka channels from the topic `numbers` of it that somebody else fills. Each batch of the sink is one file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import treadle
from treadle.pipelines.channels.view import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PIECE = 50
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else ".")


def pipeline(topic: str | None) -> treadle.Pipeline:
    """`topic` is what it reads; without one, a feed."""
    p = treadle.Pipeline(f"crash-{topic}" if topic else "crash")
    if topic:
        p.topic("numbers", topic=topic, schema="a bigint", options={"maxOffsetsPerTrigger": PIECE})
    else:
        p.feed("numbers", schema="a bigint")

    @p.operator
    def doubled(numbers: DataFrame) -> DataFrame:
        return numbers.selectExpr("a", "2 * a AS twice")

    @p.operator
    def tagged(doubled: DataFrame) -> DataFrame:
        return doubled.selectExpr("a", "twice", "concat('n', a) AS tag")

    @p.sink
    def files(tagged: DataFrame, batch_id: int) -> None:
        rows = [row.asDict() for row in tagged.collect()]
        fresh = FOLDER / "out" / f".{batch_id}"
        fresh.write_text(json.dumps(rows))
        os.replace(fresh, FOLDER / "out" / f"{batch_id}.json")

    return p


def main(up_to: int, broker: str | None) -> None:
    (FOLDER / "out").mkdir(parents=True, exist_ok=True)
    spark = treadle.session("crash", master="local[4]", config={"spark.driver.memory": "1g"})
    options: dict[str, Any] = {"channels": "kafka", "kafka": broker} if broker else {}
    p = pipeline(f"{FOLDER.name}-numbers" if broker else None)
    with p.start(spark, folder=FOLDER / "work", **options) as run:
        sys.stdout.write("running\n")
        sys.stdout.flush()
        if not broker:
            feed = run.feed("numbers")
            for first in range(View(FOLDER / "work" / "channels" / "numbers").end, up_to, PIECE):
                feed.append([{"a": a} for a in range(first, min(up_to, first + PIECE))])
                time.sleep(0.02)
        run.stop(drain=True, timeout=120)
        run.check()


if __name__ == "__main__":
    main(int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)

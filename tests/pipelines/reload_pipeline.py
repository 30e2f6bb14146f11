"""Numbers into files, by a pipeline that becomes its other version and back: what a test kills in the middle of that.

    python reload_pipeline.py FOLDER UP_TO VERSION [stay]

Starts the version `old` (with the sink `aside`) or `new` (with `late`), and fills the feed up to UP_TO. With `stay` it
works off all rows and ends; otherwise it changes from one version to the other until it is killed. Each batch of the
sink `files` is one file.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import treadle
from treadle.pipelines.channels.view import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from treadle.pipelines.run.run import Run

PIECE = 20
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else ".")


def pipeline(version: str) -> treadle.Pipeline:
    p = treadle.Pipeline("reload-crash")
    p.feed("numbers", schema="a bigint")

    @p.operator
    def doubled(numbers: DataFrame) -> DataFrame:
        return numbers.selectExpr("a", "2 * a AS twice")

    @p.sink
    def files(doubled: DataFrame, batch_id: int) -> None:
        fresh = FOLDER / "out" / f".{batch_id}"
        fresh.write_text(json.dumps([row.a for row in doubled.collect()]))
        os.replace(fresh, FOLDER / "out" / f"{batch_id}.json")

    @p.operator(name=f"of_{version}")
    def between(doubled: DataFrame) -> DataFrame:
        return doubled.where("a % 2 = 0")

    p.write("aside" if version == "old" else "late", reads=f"of_{version}", format="noop", priority=3)
    return p


def fill(run: Run, up_to: int) -> None:
    feed = run.feed("numbers")
    for first in range(View(FOLDER / "work" / "channels" / "numbers").end, up_to, PIECE):
        feed.append([{"a": a} for a in range(first, min(up_to, first + PIECE))])
        time.sleep(0.02)


def main(up_to: int, version: str, *, stay: bool) -> None:
    (FOLDER / "out").mkdir(parents=True, exist_ok=True)
    spark = treadle.session("crash", master="local[4]", config={"spark.driver.memory": "1g"})
    with pipeline(version).start(spark, folder=FOLDER / "work") as run:
        sys.stdout.write("running\n")
        sys.stdout.flush()
        filler = threading.Thread(target=fill, args=(run, up_to), daemon=True)
        filler.start()
        while not stay:
            version = "new" if version == "old" else "old"
            run.reload(pipeline(version))
            sys.stdout.write(f"is {version}\n")
            sys.stdout.flush()
        filler.join()
        run.stop(drain=True, timeout=120)
        run.check()


if __name__ == "__main__":
    main(int(sys.argv[2]), sys.argv[3], stay="stay" in sys.argv)

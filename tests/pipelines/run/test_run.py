"""Pipelines on embedded channels and real Spark: the same results in every layout, each row once, whatever happens."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sized
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import treadle
from support import LONG, named, until
from treadle.errors import EngineError
from treadle.pipelines.channels import log
from treadle.pipelines.channels.view import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from treadle.pipelines.run.run import Run

LAYOUTS = ("hops", "fused")


def numbers(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"a": a} for a in range(first, first + count)]


def longer(rows: Sized, count: int) -> bool:
    return len(rows) >= count


def drain(run: Run) -> None:
    run.stop(drain=True, timeout=LONG)
    run.check()


class TestLayouts:
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_several_inputs_and_several_readers_give_the_same_rows(
        self, spark: SparkSession, tmp_path: Path, layout: str
    ) -> None:
        p, came = treadle.Pipeline(named("graph")), {"out": list[int](), "side": list[int]()}
        p.feed("one", schema="a bigint")
        p.feed("two", schema="a bigint")

        @p.operator
        def doubled(one: DataFrame) -> DataFrame:
            return one.selectExpr("2 * a AS a")

        @p.operator
        def both(doubled: DataFrame, two: DataFrame) -> DataFrame:
            return doubled.union(two)

        @p.operator
        def thrice(both: DataFrame) -> DataFrame:
            """A reader of an input may use it as often as it likes."""
            return both.union(both.selectExpr("a + 1000")).union(both.selectExpr("a + 2000"))

        @p.sink(priority=3)
        def out(thrice: DataFrame, batch_id: int) -> None:
            came["out"] += [row.a for row in thrice.collect()]

        @p.sink
        def side(doubled: DataFrame) -> None:
            came["side"] += [row.a for row in doubled.collect()]

        with p.start(spark, folder=tmp_path, layout=layout) as run:
            one, two = run.feed("one"), run.feed("two")
            for first in range(0, 60, 20):
                one.append(numbers(20, first))
                two.append(numbers(20, 500 + first))
            drain(run)
        plain = [2 * a for a in range(60)] + list(range(500, 560))
        assert sorted(came["out"]) == sorted(a + more for a in plain for more in (0, 1000, 2000))
        assert sorted(came["side"]) == [2 * a for a in range(60)]

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_streams_are_joined_also_one_with_itself(self, spark: SparkSession, tmp_path: Path, layout: str) -> None:
        p, came = treadle.Pipeline(named("join")), list[tuple[int, str, int]]()
        p.feed("left", schema="k bigint, l string")
        p.feed("right", schema="k bigint, r bigint")

        @p.operator
        def paired(right: DataFrame) -> DataFrame:
            other = right.selectExpr("k AS other", "r AS more")
            return right.join(other, right.k == other.other).selectExpr("k", "r + more AS r")

        @p.operator
        def joined(left: DataFrame, paired: DataFrame) -> DataFrame:
            return left.join(paired, "k")

        @p.sink
        def out(joined: DataFrame) -> None:
            came.extend((row.k, row.l, row.r) for row in joined.collect())

        with p.start(spark, folder=tmp_path, layout=layout) as run:
            left, right = run.feed("left"), run.feed("right")
            for k in range(12):
                right.append([{"k": k, "r": 10 * k}])
                left.append([{"k": 11 - k, "l": f"x{11 - k}"}])
            drain(run)
        assert sorted(came) == [(k, f"x{k}", 20 * k) for k in range(12)]
        assert log.positions(tmp_path / "channels" / "right") == {"paired" if layout == "hops" else "out": 12}
        with p.start(spark, folder=tmp_path, layout=layout) as run:
            until(run.drained, run)  # nothing new: it knows
        assert len(came) == 12

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_a_foreign_source_mixes_with_a_feed_and_goes_on(
        self, spark: SparkSession, tmp_path: Path, layout: str
    ) -> None:
        """The feed's rows are kept for a reader that does not ask, also while another one is ahead of it."""
        p, came = treadle.Pipeline(named("mixed")), list[int]()
        files = tmp_path / "files"
        files.mkdir()
        p.feed("fed", schema="a bigint")

        @p.source
        def texts(spark: SparkSession) -> DataFrame:
            return spark.readStream.schema("a bigint").json(str(files))

        @p.operator
        def both(texts: DataFrame, fed: DataFrame) -> DataFrame:
            return texts.union(fed)

        @p.sink
        def out(both: DataFrame) -> None:
            came.extend(row.a for row in both.collect())

        @p.sink
        def ahead(fed: DataFrame) -> None:
            fed.count()

        for life in range(2):
            (files / f"{life}.json").write_text("".join(f'{{"a": {a}}}\n' for a in range(100 * life, 100 * life + 10)))
            with p.start(spark, folder=tmp_path / "work", layout=layout) as run:
                feed = run.feed("fed")
                for first in range(3):
                    feed.append(numbers(5, 1000 + 100 * life + 5 * first))
                until(partial(longer, came, 25 * (life + 1)), run)
                until(lambda: not run.hops["ahead"].backlogs()[0].rows, run)
                run.channels["fed"].collect()
            assert run.status()["hops"]["out"]["rows_in"] == (25 if layout == "hops" else 10)  # or the files' alone
        expected = [*range(10), *range(100, 110), *range(1000, 1015), *range(1100, 1115)]
        assert sorted(came) == expected


class TestOperators:
    def test_pandas_and_arrow_functions_and_a_native_writer_exactly_once(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        p = treadle.Pipeline(named("python"))
        p.feed("fed", schema="a bigint")

        @p.operator
        def halves(fed: DataFrame) -> DataFrame:
            def halve(frames: Iterator[Any]) -> Iterator[Any]:
                for frame in frames:
                    yield frame.assign(h=frame["a"] / 2)

            return fed.mapInPandas(halve, "a bigint, h double")

        @p.operator
        def marked(halves: DataFrame) -> DataFrame:
            def mark(batches: Iterator[Any]) -> Iterator[Any]:
                import pyarrow.compute as pc

                for batch in batches:
                    yield batch.append_column("big", pc.greater(batch["h"], 10.0))

            return halves.mapInArrow(mark, "a bigint, h double, big boolean")

        path = str(tmp_path / "out")
        options = {"path": path, "checkpointLocation": "ignored: the pipeline's own is used"}
        p.write("out", reads="marked", format="parquet", options=options)
        for life in range(2):
            with p.start(spark, folder=tmp_path / "work") as run:
                feed = run.feed("fed")
                feed.append(numbers(20, 40 * life))
                feed.append(numbers(20, 40 * life + 20))
                drain(run)
        rows = spark.read.parquet(path).orderBy("a").collect()
        assert [(row.a, row.h, row.big) for row in rows] == [(a, a / 2, a > 20) for a in range(80)]

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_an_aggregate_gives_what_changed_and_keeps_its_state(
        self, spark: SparkSession, tmp_path: Path, layout: str
    ) -> None:
        p, last = treadle.Pipeline(named("count")), dict[str, int]()
        p.feed("words", schema="w string")

        @p.operator
        def counts(words: DataFrame) -> DataFrame:
            return words.groupBy("w").count()

        @p.sink
        def out(counts: DataFrame) -> None:
            last.update({row.w: row["count"] for row in counts.collect()})

        for life in range(2):
            with p.start(spark, folder=tmp_path, layout=layout) as run:
                feed = run.feed("words")
                for _ in range(3):
                    feed.append([{"w": w} for w in ("a", "b", "a")])
                drain(run)
                assert run.hops["counts" if layout == "hops" else "out"].stateful
            assert last == {"a": 6 * (life + 1), "b": 3 * (life + 1)}

    def test_timeouts_fire_although_no_row_comes(self, spark: SparkSession, tmp_path: Path) -> None:
        """Of both kinds of state, in one pipeline with one slot, which idle looks at timeouts must not hold."""
        from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

        p, came = treadle.Pipeline(named("timeouts")), list[tuple[str, str]]()
        p.feed("fed", schema="k string")

        @p.operator
        def sessions(fed: DataFrame) -> DataFrame:
            def step(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
                import pandas as pd

                if state.hasTimedOut:
                    state.remove()
                    yield pd.DataFrame({"k": [key[0]], "what": ["silent"]})
                else:
                    state.update((sum(len(frame) for frame in frames),))
                    state.setTimeoutDuration(500)

            return fed.groupBy("k").applyInPandasWithState(
                step, "k string, what string", "n long", "append", "ProcessingTimeTimeout"
            )

        class Silence(StatefulProcessor):
            def init(self, handle: StatefulProcessorHandle) -> None:
                self.handle = handle

            def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N803 - Spark's own
                import pandas as pd

                self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 500)
                yield pd.DataFrame({"k": [key[0]], "what": ["came"]})

            def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N803
                import pandas as pd

                yield pd.DataFrame({"k": [key[0]], "what": ["expired"]})

            def close(self) -> None:
                pass

        @p.operator
        def timers(fed: DataFrame) -> DataFrame:
            return fed.groupBy("k").transformWithStateInPandas(
                Silence(), "k string, what string", "append", "processingTime"
            )

        @p.operator
        def both(sessions: DataFrame, timers: DataFrame) -> DataFrame:
            return sessions.union(timers)

        @p.sink
        def out(both: DataFrame) -> None:
            came.extend((row.k, row.what) for row in both.collect())

        state_store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", state_store)
        try:
            with p.start(spark, folder=tmp_path, slots=1) as run:
                run.feed("fed").append([{"k": "x"}, {"k": "y"}])
                expected = {(k, what) for k in "xy" for what in ("silent", "came", "expired")}
                until(lambda: expected <= set(came), run)
                until(lambda: run.hops["timers"].parked and run.hops["sessions"].parked, run)
                until(lambda: run.gate.stats.holding == (), run)
        finally:
            spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
        assert Counter(came) == dict.fromkeys(expected, 1)


class TestBackPressure:
    def test_a_full_channel_stops_its_writer_which_goes_on_when_there_is_room(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        p, came, go = treadle.Pipeline(named("full")), list[int](), threading.Event()
        p.feed("fed", schema="a bigint")

        @p.operator
        def copied(fed: DataFrame) -> DataFrame:
            return fed

        @p.sink
        def out(copied: DataFrame) -> None:
            rows = [row.a for row in copied.collect()]
            assert go.wait(LONG)
            came.extend(rows)

        with p.start(spark, folder=tmp_path, limit_rows=100, slots=2) as run:
            feed, count = run.feed("fed"), 0

            def fill() -> bool:
                nonlocal count
                with suppress(EngineError):
                    feed.append(numbers(50, count), timeout=0.01)
                    count += 50
                status = run.status()
                return bool(status["channels"]["fed"]["full"] and status["hops"]["copied"]["state"] == "blocked")

            until(fill, run)
            assert run.status()["channels"]["copied"]["full"]
            assert run.status()["hops"]["copied"]["queue"] >= 100
            with pytest.raises(EngineError, match=r"still full after 0.05 s.*slowest consumer"):
                feed.append(numbers(1, count), timeout=0.05)
            go.set()
            feed.append(numbers(50, count), timeout=LONG)
            drain(run)
            assert run.status()["channels"]["copied"] == {"rows": 0, "full": False}
        assert sorted(came) == list(range(count + 50))

    def test_what_all_have_read_is_deleted_and_a_slow_reader_keeps_its_rows(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        p, came, go = treadle.Pipeline(named("slow")), {"fast": list[int](), "slow": list[int]()}, threading.Event()
        p.feed("fed", schema="a bigint")

        @p.sink(priority=1)
        def fast(fed: DataFrame) -> None:
            came["fast"] += [row.a for row in fed.collect()]

        @p.sink
        def slow(fed: DataFrame, batch_id: int) -> None:
            if batch_id:
                assert go.wait(LONG)
            came["slow"] += [row.a for row in fed.collect()]

        folder = tmp_path / "channels" / "fed"
        with p.start(spark, folder=tmp_path, slots=2) as run:
            feed = run.feed("fed")
            feed.append(numbers(10))
            until(lambda: len(came["slow"]) == 10, run)
            for first in range(10, 60, 10):
                feed.append(numbers(10, first))
                until(partial(longer, came["fast"], first + 10), run)
            assert View(folder).start <= 10
            assert View(folder).end == 60
            go.set()
            until(lambda: len(came["slow"]) == 60, run)
            until(lambda: View(folder).start == 50, run)  # the last segment stays
            drain(run)
        assert came == {"fast": list(range(60)), "slow": list(range(60))}
        assert not list(folder.glob(".tmp-*"))


class TestFailures:
    def test_a_hop_that_raises_once_goes_on_where_it_was(self, spark: SparkSession, tmp_path: Path) -> None:
        p, came, tries = treadle.Pipeline(named("once")), list[int](), list[int]()
        p.feed("fed", schema="a bigint")

        @p.operator
        def copied(fed: DataFrame) -> DataFrame:
            return fed

        @p.sink
        def out(copied: DataFrame, batch_id: int) -> None:
            tries.append(batch_id)
            if tries.count(1) == 1 and batch_id == 1:
                raise ConnectionError("the database is away")
            came.extend(row.a for row in copied.collect())

        with p.start(spark, folder=tmp_path, retries=1) as run:
            feed = run.feed("fed")
            for first in range(0, 30, 10):
                feed.append(numbers(10, first))
                until(partial(longer, came, first + 10), run)
            drain(run)
            assert run.hops["out"].failures == 0
        assert sorted(came) == list(range(30))
        assert tries.count(1) == 2

    def test_one_that_always_raises_is_told_by_name_and_the_others_go_on(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        p, came = treadle.Pipeline(named("always")), list[int]()
        p.feed("fed", schema="a bigint")

        @p.operator
        def risky(fed: DataFrame) -> DataFrame:
            def refuse(frames: Iterator[Any]) -> Iterator[Any]:
                for frame in frames:
                    if (frame["a"] == 13).any():
                        raise LookupError("no account 13")
                    yield frame

            return fed.mapInPandas(refuse, "a bigint")

        @p.sink
        def out(risky: DataFrame) -> None:
            risky.count()

        @p.sink
        def other(fed: DataFrame) -> None:
            came.extend(row.a for row in fed.collect())

        with p.start(spark, folder=tmp_path, retries=1) as run:
            feed = run.feed("fed")
            feed.append(numbers(20))
            with pytest.raises(EngineError, match=r"operator 'risky' \(test_run\.py:\d+\): LookupError: no account 13"):
                run.wait(LONG)
            assert run.status()["hops"]["risky"]["state"] == "failed"
            assert run.hops["risky"].failures == 2
            feed.append(numbers(20, 20))
            until(lambda: len(came) == 40)
            with pytest.raises(EngineError, match="no account 13"):
                run.check()
        assert run.status()["hops"]["risky"]["state"] == "failed"
        assert run.status()["hops"]["other"]["state"] == "stopped"

    def test_a_query_that_somebody_else_stops_is_started_again(self, spark: SparkSession, tmp_path: Path) -> None:
        """Also while it waits for its turn, with the only slot in others' hands."""
        p, came, go = treadle.Pipeline(named("stopped")), list[int](), threading.Event()
        p.feed("fed", schema="a bigint")
        p.feed("late", schema="a bigint")

        @p.sink(priority=1)
        def holds(late: DataFrame) -> None:
            assert go.wait(LONG)
            came.extend(row.a for row in late.collect())

        @p.sink
        def out(fed: DataFrame) -> None:
            came.extend(row.a for row in fed.collect())

        with p.start(spark, folder=tmp_path, slots=1) as run:
            fed, late = run.feed("fed"), run.feed("late")
            fed.append(numbers(10))
            until(lambda: len(came) == 10, run)
            late.append(numbers(10, 100))
            until(lambda: run.status()["running"] == 1, run)
            fed.append(numbers(10, 10))
            until(lambda: run.status()["hops"]["out"]["state"] == "waiting", run)
            assert run.hops["out"].query is not None
            run.hops["out"].query.stop()
            until(lambda: run.status()["hops"]["out"]["state"] == "restarting", run)
            assert "stopped from outside" in run.status()["hops"]["out"]["error"]
            go.set()
            until(lambda: len(came) == 30, run)
            drain(run)
        assert sorted(came) == [*range(20), *range(100, 110)]


class TestRestart:
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_stopped_in_the_middle_and_started_again_every_row_comes_once(
        self, spark: SparkSession, tmp_path: Path, layout: str
    ) -> None:
        p, came = treadle.Pipeline(named("again")), dict[int, list[int]]()
        p.feed("fed", schema="a bigint")

        @p.operator
        def copied(fed: DataFrame) -> DataFrame:
            return fed

        @p.sink
        def out(copied: DataFrame, batch_id: int) -> None:
            came[batch_id] = [row.a for row in copied.collect()]  # as a file that is named after its batch

        for life in range(3):
            with p.start(spark, folder=tmp_path, layout=layout, batch=0.01) as run:
                feed = run.feed("fed")
                for first in range(5):
                    feed.append(numbers(300, 1500 * life + 300 * first))
                before = len(came)
                until(partial(longer, came, before + 1), run)
                if life == 2:
                    drain(run)
        assert sorted(a for rows in came.values() for a in rows) == list(range(4500))

    def test_ended_runs_leave_nothing_behind_in_the_process(self, spark: SparkSession, tmp_path: Path) -> None:
        p = treadle.Pipeline(named("tidy"))
        p.feed("fed", schema="a bigint")
        p.write("out", reads="fed", format="noop")
        p.run(spark, folder=tmp_path, seconds=0.1)
        with p.start(spark, folder=tmp_path) as run:
            run.feed("fed").append(numbers(10))
            drain(run)
            assert run.channels["fed"].view._watch is None
        assert [thread.name for thread in threading.enumerate() if run.name in thread.name] == []
        assert "treadle-control" not in {thread.name for thread in threading.enumerate()}
        assert [query.name for query in spark.streams.active if query.name == "out"] == []


class TestScheduling:
    def test_under_strict_classes_nobody_starves_and_slots_are_not_left_idle(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        p, low = treadle.Pipeline(named("classes")), [f"low{number}" for number in range(4)]
        for name in ("high", *low):
            p.feed(f"{name}_in", schema="a bigint")
            p.operator(name=f"{name}_op", inputs=(f"{name}_in",))(lambda rows: rows.selectExpr("a + 1 AS a"))
            p.write(name, reads=f"{name}_op", format="noop", priority=1 if name == "high" else 0)
        with p.start(spark, folder=tmp_path, slots=1, policy="multi-class", patience=0.5, batch=0.01) as run:
            feeds = {name: run.feed(f"{name}_in") for name in ("high", *low)}
            for feed in feeds.values():
                feed.append(numbers(500))
            until(lambda: all(run.hops[name].batches for name in ("high", *low)), run)
            began, idle, grants = time.monotonic(), run.gate.stats.idle, run.gate.stats.grants
            batches = {name: run.hops[name].batches for name in low}
            limit = time.monotonic() + LONG
            while any(run.hops[name].batches < batches[name] + 2 for name in low):
                feeds["high"].append(numbers(2000))  # more than it can do
                for name in low:
                    if not run.hops[f"{name}_op"].backlogs()[0].rows:
                        feeds[name].append(numbers(100))
                run.check()
                assert time.monotonic() < limit
                time.sleep(0.02)
            took = time.monotonic() - began
            stats = run.gate.stats
            assert run.hops["high"].batches > max(run.hops[name].batches for name in low)
        assert (stats.idle - idle) / took < 0.2
        assert stats.grants - grants > 8

"""What users get wrong is one line that says what, where and what to do; nothing is started, or nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import treadle
from support import LONG, named, until
from treadle.decide.policies import Fcfs
from treadle.errors import ConfigError, EngineError, TreadleError
from treadle.linux.files.file_lock import holder
from treadle.pipelines.hops import build
from treadle.pipelines.run.folder import RunFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def simple(name: str | None = None) -> treadle.Pipeline:
    p = treadle.Pipeline(name or named("bad"))
    p.feed("fed", schema="a bigint")

    @p.operator
    def copied(fed: DataFrame) -> DataFrame:
        return fed

    p.write("out", reads="copied", format="noop")
    return p


def refused(start: Callable[[], Any]) -> TreadleError:
    """What it is refused with: one line, with a remedy."""
    with pytest.raises(TreadleError) as caught:
        start()
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    ("options", "message", "remedy"),
    [
        ({"layout": "zigzag"}, "layout 'zigzag' is unknown", "hops, fused"),
        ({"policy": "fastest"}, "there is no policy 'fastest'", "highest-rate"),
        ({"slots": 0}, "slots can't be 0", "whole number from 1"),
        ({"slots": -2}, "slots can't be -2", "whole number from 1"),
        ({"slots": 1.5}, "slots can't be 1.5", "whole number from 1"),
        ({"slots": "many"}, "slots can't be 'many'", "auto"),
        ({"slotz": 2}, "'slotz' is not an option", "slots"),
        ({"enforce": "force"}, "enforce can't be 'force'", "gate, pools, none"),
        ({"channels": "pigeons"}, "channels can't be 'pigeons'", "embedded, kafka"),
        ({"retries": -1}, "retries can't be -1", "0 or more"),
        ({"retries": "3"}, "retries can't be '3'", "whole number"),
        ({"limit_rows": 0}, "limit_rows is 0", "from 1 on"),
        ({"period": "soon"}, "soon", "500ms"),
        ({"batch": 0}, "batch", ""),
        ({"patience": -1}, "patience can't be -1", "0 or more"),
        ({"patience": "long"}, "patience is not a duration", "500ms"),
        ({"express": -1}, "express can't be -1", "0 or more"),
    ],
)
def test_an_option_that_makes_no_sense_starts_nothing(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], message: str, remedy: str
) -> None:
    before = len(spark.streams.active)
    error = refused(lambda: simple().start(spark, folder=tmp_path / "work", **options))
    assert message in str(error)
    assert remedy in str(error.remedy)
    assert len(spark.streams.active) == before
    with simple().start(spark, folder=tmp_path / "work2"):
        pass  # nothing is held that a next one would need


def test_a_name_twice_names_both_lines() -> None:
    p = simple()
    error = refused(lambda: p.feed("copied", schema="a bigint"))
    assert "already that of operator 'copied' (test_bad_input.py:" in str(error)


def test_rows_are_not_shed_twice_by_one_key(spark: SparkSession, tmp_path: Path) -> None:
    """The same keys would stay, and weigh too much."""
    p = treadle.Pipeline(named("keys"))
    p.feed("fed", schema="a bigint", shed=treadle.by_key("a"))
    p.operator(name="copied", inputs=("fed",), shed=treadle.by_key("a"))(lambda fed: fed)
    p.write("out", reads="copied", format="noop", min_accuracy=0.5)
    error = refused(lambda: p.start(spark, folder=tmp_path))
    assert "sheds by the key a, by which 'fed' sheds already" in str(error)


def broken(function: Callable[[Any], Any]) -> treadle.Pipeline:
    p = treadle.Pipeline(named("broken"))
    p.feed("fed", schema="a bigint")
    p.operator(name="wrong", inputs=("fed",))(function)
    p.write("out", reads="wrong", format="noop")
    return p


def raises(_: DataFrame) -> DataFrame:
    raise KeyError("no such table")


@pytest.mark.parametrize("layout", ["hops", "fused"])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raises, "its function raised KeyError: 'no such table'"),
        (lambda fed: fed.select("b"), "`b`"),
        (lambda fed: None, "its function gave NoneType, not a DataFrame"),
        (lambda fed: fed.sparkSession.range(3), "its function returned rows that are not a stream"),
        (lambda fed: fed.orderBy("a"), "Spark refuses it"),
        (lambda fed: fed.selectExpr("a", "1.0 AS _weight", "2.0 AS _weight"), "has 2 columns '_weight'"),
    ],
    ids=["raises", "missing column", "nothing", "static", "sorted", "two weights"],
)
def test_an_operator_that_can_not_be_is_named_with_its_line(
    spark: SparkSession, tmp_path: Path, function: Callable[[Any], Any], message: str, layout: str
) -> None:
    before = len(spark.streams.active)
    error = refused(lambda: broken(function).start(spark, folder=tmp_path, layout=layout))
    assert message in str(error)
    where = "out" if layout == "fused" and "Spark refuses" in message else "wrong"
    assert f"'{where}' (test_bad_input.py:" in str(error)
    assert len(spark.streams.active) == before


def test_two_columns_of_one_name_can_not_go_through_a_channel(spark: SparkSession, tmp_path: Path) -> None:
    error = refused(lambda: broken(lambda fed: fed.select("a", "a")).start(spark, folder=tmp_path))
    assert "operator 'wrong' (test_bad_input.py:" in str(error)
    assert "column 'a' is returned more than once" in str(error)


def test_a_schema_that_does_not_match_downstream_names_reader_column_and_what_there_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    p = treadle.Pipeline(named("mismatch"))
    p.feed("payments", schema="id bigint, amount double")

    @p.operator
    def scored(payments: DataFrame) -> DataFrame:
        return payments.selectExpr("id", "amount * 2 AS score")

    @p.operator
    def large(scored: DataFrame) -> DataFrame:
        return scored.where("amount > 100")

    p.write("out", reads="large", format="noop")
    error = refused(lambda: p.start(spark, folder=tmp_path))
    assert "operator 'large' (test_bad_input.py:" in str(error)
    assert "`amount`" in str(error)
    assert "`score`" in str(error)


def test_a_source_that_is_no_stream_is_refused_and_one_without_more_files_idles(
    spark: SparkSession, tmp_path: Path
) -> None:
    p = treadle.Pipeline(named("static"))
    p.source(name="rows")(lambda spark: spark.range(3))
    p.write("out", reads="rows", format="noop")
    error = refused(lambda: p.start(spark, folder=tmp_path / "static"))
    assert "source 'rows'" in str(error)
    assert "its function returned rows that are not a stream" in str(error)
    assert "spark.readStream" in str(error)

    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "one.txt").write_text("x\ny\n")
    came: list[str] = []
    p = treadle.Pipeline(named("ends"))
    p.source(name="lines")(lambda spark: spark.readStream.text(str(tmp_path / "files")))
    p.sink(name="out", inputs="lines")(lambda rows: came.extend(row.value for row in rows.collect()))
    with p.start(spark, folder=tmp_path / "ends") as run:
        until(lambda: len(came) == 2)
        until(lambda: {hop["state"] for hop in run.status()["hops"].values()} == {"idle"})
        run.check()
        (tmp_path / "files" / "two.txt").write_text("z\n")
        until(lambda: came == ["x", "y", "z"])


@pytest.mark.parametrize("layout", ["hops", "fused"])
@pytest.mark.parametrize(("arrival", "message"), [("when", "does not exist"), ("value", "is of type bigint")])
def test_an_arrival_column_that_is_no_time_names_those_that_are(
    spark: SparkSession, tmp_path: Path, layout: str, arrival: str, message: str
) -> None:
    p = treadle.Pipeline(named("arrival"))
    p.source(name="ticks", arrival=arrival)(lambda spark: spark.readStream.format("rate").load())
    p.write("out", reads="ticks", format="noop")
    error = refused(lambda: p.start(spark, folder=tmp_path, layout=layout))
    assert f"its arrival column '{arrival}' {message}" in str(error)
    assert "source 'ticks' (test_bad_input.py:" in str(error)
    assert error.remedy == "name one of timestamp"


def test_the_folder_of_another_pipeline_or_layout_or_graph_is_refused_and_unharmed(
    spark: SparkSession, tmp_path: Path
) -> None:
    p = simple()
    with p.start(spark, folder=tmp_path) as run:
        run.feed("fed").append([{"a": 1}])
        run.stop(drain=True, timeout=LONG)
    files = sorted(path.name for path in tmp_path.rglob("*"))
    other = refused(lambda: simple().start(spark, folder=tmp_path))
    assert f"of another pipeline ('{p.name}')" in str(other)
    assert "of another layout ('hops')" in str(refused(lambda: p.start(spark, folder=tmp_path, layout="fused")))
    grown = simple(p.name)
    grown.write("more", reads="copied", format="noop")
    assert "of another graph" in str(refused(lambda: grown.start(spark, folder=tmp_path)))
    for error in (other,):
        assert "name another folder" in str(error.remedy)
    assert sorted(path.name for path in tmp_path.rglob("*")) == files
    with p.start(spark, folder=tmp_path) as run:
        run.stop(drain=True, timeout=LONG)
        assert run.drained()


def test_a_channel_that_has_other_columns_now_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    p = simple()
    with p.start(spark, folder=tmp_path):
        pass
    other = treadle.Pipeline(p.name)
    other.feed("fed", schema="a bigint, b string")
    other.operator(name="copied", inputs=("fed",))(lambda fed: fed)
    other.write("out", reads="copied", format="noop")
    error = refused(lambda: other.start(spark, folder=tmp_path))
    assert "column 'b' is missing in the channel" in str(error)
    assert "channels/fed" in str(error)


def test_a_folder_in_use_names_the_process_and_one_that_can_not_be_made_is_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    script = (
        "import sys, pathlib\n"
        "from treadle.pipelines.run.folder import RunFolder\n"
        "work = RunFolder(pathlib.Path(sys.argv[1]), 'x', '', 'hops')\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "work")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        error = refused(lambda: simple().start(spark, folder=tmp_path / "work"))
        assert f"process {other.pid} already runs a pipeline there" in str(error)
        other.communicate("")
    p = simple()
    with p.start(spark, folder=tmp_path / "mine"):
        error = refused(lambda: p.start(spark, folder=tmp_path / "mine"))
        assert f"process {os.getpid()} already runs a pipeline there" in str(error)
        error = refused(lambda: p.start(spark, folder=tmp_path / "yours"))  # but its name is taken
        assert "listens there already" in str(error)
        with simple().start(spark, folder=tmp_path / "other"):
            pass  # nodes of another pipeline may have the same names
    (tmp_path / "file").write_text("")
    error = refused(lambda: simple().start(spark, folder=tmp_path / "file" / "work"))
    assert isinstance(error, ConfigError)
    assert "can't be made" in str(error)


def test_rows_that_do_not_fit_a_feed_are_refused_and_leave_it_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    came: list[int] = []
    p = treadle.Pipeline(named("rows"))
    p.feed("fed", schema="a bigint")
    p.sink(name="out", inputs="fed")(lambda rows: came.extend(row.a for row in rows.collect()))
    with p.start(spark, folder=tmp_path) as run:
        feed = run.feed("fed")
        for rows in ([{"a": "x"}], [{"b": 1}], [{"a": 1, "b": 2}], [{"a": 1.5}]):
            error = refused(lambda rows=rows: feed.append(rows))  # type: ignore[misc]
            assert "column '" in str(error)
        error = refused(lambda: run.feed("fed"))
        assert "already writes to this channel" in str(error)
        error = refused(lambda: run.feed("out"))
        assert "is not a feed" in str(error)
        feed.append([{"a": 1}])
        run.stop(drain=True, timeout=LONG)
        with pytest.raises(EngineError, match="closed"):
            feed.append([{"a": 2}])
    assert came == [1]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00\x00"])
def test_a_folder_that_does_not_say_whose_it_is_is_refused_in_one_line_and_left_free(tmp_path: Path, text: str) -> None:
    (tmp_path / "pipeline.json").write_text(text)
    said = refused(lambda: RunFolder(tmp_path, "p", "graph", "hops"))
    assert "does not say which pipeline" in said.message
    assert "delete the file" in said.remedy
    assert holder(tmp_path) is None
    (tmp_path / "pipeline.json").unlink()
    work = RunFolder(tmp_path, "p", "graph", "hops")
    work.claim()
    work.close()
    RunFolder(tmp_path, "p", "graph", "hops").close()


@pytest.mark.parametrize("make", [treadle.by_key, lambda: treadle.by_key(" "), lambda: treadle.by_utility("")])
def test_shedding_by_nothing_is_refused(make: Callable[[], Any]) -> None:
    assert "leave shed out" in refused(make).remedy


def test_a_column_of_a_feed_or_topic_that_would_be_taken_for_a_weight_is_refused() -> None:
    p = treadle.Pipeline("weights")
    for schema in ("id bigint, _weight double", "`_weight` int"):
        assert "another name" in refused(lambda schema=schema: p.feed("fed", schema=schema)).remedy  # type: ignore[misc]
        assert "_weight" in refused(lambda schema=schema: p.topic("sent", schema=schema)).message  # type: ignore[misc]
    p.feed("fed", schema="id bigint, inner struct<_weight: double>")


def test_a_column_of_a_source_or_operator_that_would_be_taken_for_a_weight_is_refused(spark: SparkSession) -> None:
    p = treadle.Pipeline("weights")
    rate = spark.readStream.format("rate").load()
    p.source(name="own")(lambda spark: rate.selectExpr("value AS _weight"))
    p.operator(name="made", inputs=("own",))(lambda rows: rows.selectExpr("*", "1.0 AS _weight"))
    own, made = p.node("own"), p.node("made")
    assert "_weight" in refused(lambda: build.called(own, spark)).message
    assert "_weight" in refused(lambda: build.called(made, rate)).message
    weighed = rate.selectExpr("*", "1.0 AS _weight")
    made_of_weighed = p.operator(name="through", inputs=("own",))(lambda rows: rows)
    assert made_of_weighed is not None
    assert build.called(p.node("through"), weighed).columns == weighed.columns


def test_a_policy_may_be_an_object_and_a_class_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    said = refused(lambda: simple().start(spark, folder=tmp_path / "none", policy=Fcfs))
    assert "a Policy object" in said.remedy
    with simple().start(spark, folder=tmp_path / "work", policy=Fcfs()) as run:
        assert run.status()["policy"] == "fcfs"
        run.set_policy(Fcfs())

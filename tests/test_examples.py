"""Every example does what it says: its functions on rows that stand still, and the whole of it on Spark."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import treadle
from support import until
from treadle import jars
from treadle.broker import Broker
from treadle.pipelines.api import show
from treadle.pipelines.channels import encoded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from treadle.pipelines import Pipeline
    from treadle.pipelines.run.run import Run

EXAMPLES = Path(__file__).parent.parent / "examples"
FILES = sorted(EXAMPLES.glob("0*.py"))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, own_sockets: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Examples write where they are started."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def example(name: str) -> tuple[Pipeline, dict[str, Any]]:
    """A pipeline as `treadle run` gets it, and the names in its file."""
    p = treadle.load(EXAMPLES / name)
    function = next(node.function for node in p.nodes if node.function is not None)
    return p, function.__globals__


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_can_be_shown_and_is_in_the_table(file: Path) -> None:
    assert treadle.load(file).name in show.text(treadle.load(file))
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert f"[{file.name}]({file.name})" in table


class TestWordCount:
    def test_words_are_split_and_counted(self, spark: SparkSession) -> None:
        _, names = example("01_word_count.py")
        lines = spark.createDataFrame([("Many streaming queries,",), ("MANY more; a few",)], "value string")
        assert rows(names["counted"](names["words"](lines))) == [
            ("many", 2),
            ("more", 1),
            ("queries", 1),
            ("streaming", 1),
        ]

    def test_every_word_of_the_files_is_counted_once(
        self, spark: SparkSession, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        p, names = example("01_word_count.py")
        monkeypatch.setitem(names, "DOCUMENTS", place)
        (place / "first.md").write_text("north south\nnorth", encoding="utf-8")
        with p.start(spark) as run:
            until(lambda: seen(names) == [("north", 2), ("south", 1)], run)
            (place / "second.md").write_text("south west\nsouth", encoding="utf-8")
            until(lambda: seen(names) == [("south", 3), ("north", 2), ("west", 1)], run)


def seen(names: dict[str, Any]) -> Any:
    return names["most_frequent"]() if names["COUNTS"].exists() else []


class TestPriorities:
    def test_only_hot_readings_are_alerts(self, spark: SparkSession) -> None:
        _, names = example("02_priorities.py")
        readings = spark.createDataFrame([(1, 7, 31.5), (2, 7, 20.0)], "id bigint, sensor bigint, celsius double")
        assert rows(names["hot"](readings)) == [(1, 7, 31.5)]
        marked = rows(names["enriched"](readings))
        assert [row[:3] for row in marked] == [(1, 7, 31.5), (2, 7, 20.0)]
        assert marked[0][3] != marked[1][3]

    def test_the_alert_ranks_above_the_jobs_and_all_get_their_rows(
        self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("JOBS", "3")
        p, names = example("02_priorities.py")
        with p.start(spark) as run:
            until(lambda: len(names["latencies"](run)) == 1 + names["JOBS"], run)
            until(lambda: ranks_apart(run), run)
        alerts = spark.read.json(str(names["OUT"]))
        assert alerts.count() > 0
        assert alerts.where("celsius <= 31").count() == 0


def ranks_apart(run: Run) -> bool:
    hops = run.status()["hops"]
    others = [hop["rank"] for name, hop in hops.items() if name.startswith(("enriched", "archive"))]
    urgent = [hops[name]["rank"] for name in ("hot", "alerts")]
    return None not in [*others, *urgent] and min(urgent) > max(others)


class TestPolicies:
    def test_refunds_are_booked_with_the_orders(self, spark: SparkSession) -> None:
        _, names = example("03_policies.py")
        orders = spark.createDataFrame([(1, 100.0), (2, 10.0)], "customer bigint, amount double")
        refunds = spark.createDataFrame([(1, 5.0)], "customer bigint, amount double")
        booked = rows(names["booked"](names["taxed"](orders), refunds))
        assert booked == [(1, -5.0), (1, pytest.approx(119.0)), (2, pytest.approx(11.9))]
        assert rows(names["large"](orders)) == [(1, 100.0)]

    def test_each_policy_takes_over_while_it_runs(self, spark: SparkSession) -> None:
        p, names = example("03_policies.py")
        with p.start(spark, policy="random") as run:
            until(lambda: all(hop["batches"] for hop in run.status()["hops"].values()), run)
            tried = [policy for policy, _, _ in names["try_policies"](run, seconds=0.3)]
            assert tuple(tried) == names["POLICIES"]
            before = run.status()["hops"]["ledger"]["batches"]
            until(lambda: run.status()["hops"]["ledger"]["batches"] > before, run)
            assert run.policy == names["POLICIES"][-1]


class TestKafka:
    @pytest.fixture
    def topics(self, broker: Broker, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
        jars.fetch("spark-kafka")
        encoded.load(spark)
        unique = uuid.uuid4().hex
        for name, value in (("KAFKA", broker.bootstrap), ("ORDERS", f"in-{unique}"), ("LARGE", f"out-{unique}")):
            monkeypatch.setenv(name, value)

    def test_only_large_orders_become_messages(self, spark: SparkSession) -> None:
        _, names = example("04_kafka.py")
        orders = spark.createDataFrame(
            [(1, "c1", 950.0), (2, "c2", 10.0), (3, "c3", -1.0)], names["p"].node("orders").schema
        )
        ((key, value),) = rows(names["messages"](names["checked"](orders)))
        assert (key, json.loads(value)) == ("c1", {"id": 1, "customer": "c1", "amount": 950.0})

    @pytest.mark.usefixtures("topics")
    @pytest.mark.parametrize("channels", ["embedded", "kafka"])
    def test_large_orders_arrive_in_the_other_topic(self, spark: SparkSession, broker: Broker, channels: str) -> None:
        p, names = example("04_kafka.py")
        names["fill"](200)
        wanted = {number for number in range(200) if number * 37 % 1000 >= 900}
        with p.start(spark, channels=channels, kafka=broker.bootstrap) as run:
            until(lambda: run.status()["hops"]["large"]["rows_in"] >= len(wanted), run)
            until(lambda: set(names["large_orders"](1.0)) == wanted, run)


class TestMedallion:
    def test_torn_texts_stay_in_bronze(self, spark: SparkSession) -> None:
        _, names = example("05_medallion.py")
        good = {"id": 1, "card": 2, "amount": 3.0, "accepted": True, "at": "2026-01-01T00:00:00.000Z"}
        texts = [(json.dumps(good),), (json.dumps(good)[:20],)]
        assert [row[:3] for row in rows(names["payments"](spark.createDataFrame(texts, "text string")))] == [
            (1, 2, 3.0)
        ]

    def test_all_tables_fill_and_no_payment_is_there_twice(self, spark: SparkSession) -> None:
        p, names = example("05_medallion.py")
        tables = ("bronze", "silver", "gold", "alert")
        with p.start(spark, policy="min-latency") as run:
            until(lambda: all(run.status()["hops"][table]["rows_in"] for table in tables), run)
        read = {table: spark.read.parquet(f"{names['OUT']}/{table}") for table in tables}
        for table, key in (("bronze", "text"), ("silver", "id"), ("alert", "id")):
            assert 0 < read[table].select(key).distinct().count() == read[table].count()
        assert 0 < read["gold"].select("window", "card").distinct().count() == read["gold"].count()
        assert read["alert"].where(f"declined < {names['IN_A_ROW']}").count() == 0
        assert read["alert"].join(read["silver"].where("accepted"), "id").count() == 0  # silver may be behind


class TestPromises:
    def test_large_payments_are_scored_and_sums_are_corrected(self, spark: SparkSession) -> None:
        _, names = example("06_promises.py")
        payments = spark.createDataFrame([(1, 950.0, 1.0), (2, 10.0, 4.0)], "id bigint, amount double, _weight double")
        names["fraud"](payments, 0)
        names["revenue"](payments, 0)
        assert [row["id"] for row in spark.read.json(f"{names['OUT']}/fraud").collect()] == [1]
        assert spark.read.json(f"{names['OUT']}/revenue").collect()[0]["amount"]["value"] == 990.0

    def test_each_sink_is_told_of(self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RATE", "20")
        p, names = example("06_promises.py")
        with p.start(spark, cycle="500ms") as run:
            until(lambda: all("has 100" in line for line in names["told"](run)), run)
            assert "by 100.0% of its rows" in "\n".join(names["told"](run))

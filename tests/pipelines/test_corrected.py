"""What is counted of rows that Spark kept is right for all rows: 300 runs at once, each a group of one job."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import treadle
from treadle.enforce.shed import Choice
from treadle.errors import ConfigError
from treadle.estimates import FEWEST, WEIGHT, corrected, joined, per_unit, total
from treadle.pipelines.quality.shedding import Shedding

RUNS, ROWS = 300, 1_000
ENOUGH = (0.95 - 3 * math.sqrt(0.95 * 0.05 / RUNS)) * RUNS
"""Runs in which the truth must lie in its interval of 95 %, but for three standard deviations of that count."""


@pytest.fixture
def shedding(spark: SparkSession) -> Iterator[Shedding]:
    made = Shedding(spark, seed=11)
    yield made
    made.forget("test/")


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """In one partition, so that every run of the test draws the same."""
    made = spark.range(0, RUNS * ROWS, 1, 1).selectExpr(
        "id",
        f"id div {ROWS} AS run",
        "id div 5 AS card",
        "exp(2 + 0.5 * randn(3)) AS amount",
    )
    return made.cache()


def covered(kept: DataFrame, whole: DataFrame, value: str = "amount") -> tuple[int, int]:
    """In how many runs the true count and the true sum lie in their intervals."""
    found = kept.groupBy("run").agg(corrected("rows" if "rows" in kept.columns else None).alias("count"),
                                    corrected(value).alias("sum"))  # fmt: skip
    truth = whole.groupBy("run").agg(f.count("*").alias("all"), f.sum(value).alias("whole"))
    lies = found.join(truth, "run").selectExpr(
        "all BETWEEN count.low - 1e-6 AND count.high + 1e-6 AS counted",
        "whole BETWEEN sum.low - 1e-6 AND sum.high + 1e-6 AS summed",
        "count.high > count.low AND sum.high > sum.low AS wide",
    )
    judged = lies.collect()
    assert all(row.wide for row in judged)
    return sum(row.counted for row in judged), sum(row.summed for row in judged)


def test_rows_that_are_always_kept_may_exceed_the_share(shedding: Shedding, rows: DataFrame) -> None:
    """Three in ten are, and two in ten is the share: the others stay with a tenth of it."""
    shedding.set("test/a", 0.2)
    use = "CASE WHEN id % 10 < 3 THEN double('infinity') ELSE 1.0 END"
    kept = shedding.shed(rows, "test/a", Choice(utility=use)).cache()
    assert kept.where("id % 10 < 3").count() == 0.3 * RUNS * ROWS
    assert kept.where("id % 10 >= 3").agg(f.min(WEIGHT), f.max(WEIGHT)).collect()[0] == pytest.approx((50.0, 50.0))
    assert min(covered(kept, rows)) >= ENOUGH


def test_a_sum_of_rows_that_are_always_kept_is_exact_only_where_nothing_is_shed(
    shedding: Shedding, rows: DataFrame
) -> None:
    """Of each run 800 rows are always kept, and of the others, which have a thousandth, often none."""
    use = "IF(id % 10 < 8, double('infinity'), 1.0)"
    bounds = "sum(int(all.low IS NULL)) AS unknown, count_if(all.high = all.low) AS exact, sum(int(few)) AS few"
    few = f.count(f.when(f.col("id") % 10 >= 8, 1)) < FEWEST
    found = []
    for keep in (0.01, 1.0):
        shedding.set("test/a", keep)
        kept = shedding.shed(rows, "test/a", Choice(utility=use))
        found.append(kept.groupBy("run").agg(corrected().alias("all"), few.alias("few"))
                     .selectExpr(*bounds.split(", ")).collect()[0])  # fmt: skip
    assert (found[0].exact, found[0].unknown) == (0, found[0].few)
    assert found[0].few > RUNS / 2
    assert (found[1].exact, found[1].unknown) == (RUNS, 0)


def test_of_no_rows_nothing_is_known(spark: SparkSession) -> None:
    none = spark.createDataFrame([], f"x double, {WEIGHT} double")
    assert none.agg(corrected("x").alias("x")).collect()[0].x == (0.0, None, None)


def test_refunds_are_kept_by_their_size(shedding: Shedding, rows: DataFrame) -> None:
    shedding.set("test/a", 0.2)
    paid = rows.withColumn(
        "amount", f.expr("CASE WHEN id % 10 = 0 THEN -amount WHEN id % 10 = 1 THEN 0 ELSE amount END")
    )
    kept = shedding.shed(paid, "test/a", Choice(utility="amount")).cache()
    by_kind = {row.kind: row.weight for row in kept.groupBy(f.signum("amount").alias("kind"))
               .agg(f.sum(WEIGHT).alias("weight")).collect()}  # fmt: skip
    for kind, part in ((-1.0, 0.1), (0.0, 0.1), (1.0, 0.8)):
        assert by_kind[kind] == pytest.approx(part * RUNS * ROWS, rel=0.1)
    assert kept.count() == pytest.approx(0.2 * RUNS * ROWS, rel=0.02)
    assert min(covered(kept, paid)) >= ENOUGH


def test_a_row_of_any_utility_has_a_chance_and_no_less_is_kept_than_was_said(
    shedding: Shedding, rows: DataFrame
) -> None:
    """Utilities of which most are 0, of no size at all, not numbers, or too large to be added up."""
    cases = (
        ("IF(id % 20 = 0, 1.0, 0.0)", "false"),
        ("0.0", "false"),
        ("double('-infinity')", "false"),
        ("CASE id % 20 WHEN 0 THEN double('NaN') WHEN 1 THEN NULL WHEN 2 THEN 1e-320 ELSE 1e308 END", "id % 20 < 2"),
    )
    for number, (use, always) in enumerate(cases):
        shedding.set(f"test/{number}", 0.5)
        kept = shedding.shed(rows, f"test/{number}", Choice(utility=use)).cache()
        assert kept.count() == pytest.approx(0.5 * RUNS * ROWS, rel=0.02)
        assert kept.where(always).count() == rows.where(always).count()
        assert kept.agg(f.sum(WEIGHT)).collect()[0][0] == pytest.approx(RUNS * ROWS, rel=0.05)


@pytest.mark.parametrize(
    "choice", [Choice(), Choice(utility="IF(id % 100 = 0, double('infinity'), 1.0)"), Choice(key=("id",))]
)
def test_also_where_nothing_is_to_be_kept_sums_can_be_corrected(
    shedding: Shedding, rows: DataFrame, choice: Choice
) -> None:
    shedding.set("test/a", 0.0)
    kept = shedding.shed(rows, "test/a", choice).cache()
    assert kept.count() < 0.013 * RUNS * ROWS
    [found] = kept.agg(corrected().alias("all")).collect()
    assert found["all"]["low"] < RUNS * ROWS < found["all"]["high"]


def test_rows_of_one_draw_are_one_unit(shedding: Shedding, rows: DataFrame) -> None:
    """Five rows of a card that stay or go together, and four lines of a payment."""
    shedding.set("test/a", 0.2)
    by_card = shedding.shed(rows, "test/a", Choice(key=("card",))).cache()
    assert min(covered(by_card, rows)) < ENOUGH  # without units: too narrow
    assert min(covered(per_unit(by_card, ["run", "card"], "amount"), rows)) >= ENOUGH
    [found] = per_unit(by_card, "card").agg(corrected().alias("cards")).collect()
    reach = 2 * (found.cards["high"] - found.cards["value"])  # so that one seed in ten thousand is out of it
    assert found.cards["value"] == pytest.approx(RUNS * ROWS / 5, abs=reach)

    def lines(payments: DataFrame) -> DataFrame:
        return payments.withColumn("line", f.explode(f.sequence(f.lit(1), f.lit(4))))

    exploded = lines(shedding.shed(rows, "test/a")).cache()
    assert min(covered(exploded, lines(rows))) < ENOUGH
    assert min(covered(per_unit(exploded, ["run", "id"], "amount"), lines(rows))) >= ENOUGH


def test_a_join_multiplies_weights_unless_both_rows_share_a_draw(shedding: Shedding, rows: DataFrame) -> None:
    shedding.set("test/a", 0.4)
    shedding.set("test/b", 0.5)
    cards = rows.where("id % 5 = 0").selectExpr("card", "id AS card_id")
    pairs = rows.join(cards, "card")
    apart = joined(shedding.shed(rows, "test/a"), shedding.shed(cards, "test/b"), "card", together=False).cache()
    assert apart.columns == ["card", "id", "run", "amount", WEIGHT, "card_id"]
    assert min(covered(per_unit(apart, ["run", "card"], "amount"), pairs)) >= ENOUGH
    by_card = Choice(key=("card",))
    at_once = joined(
        shedding.shed(rows, "test/a", by_card), shedding.shed(cards, "test/b", by_card), "card", together=True
    ).cache()
    assert [row[0] for row in at_once.select(WEIGHT).distinct().collect()] == [2.5]
    assert min(covered(per_unit(at_once, ["run", "card"], "amount"), pairs)) >= ENOUGH


def test_a_join_of_which_one_side_has_weights_keeps_them(spark: SparkSession) -> None:
    weighed = spark.createDataFrame([(1, 4.0)], f"id long, {WEIGHT} double")
    plain = spark.createDataFrame([(1, "a")], "key long, name string")
    assert treadle.joined(weighed, plain, weighed.id == plain.key, together=False).collect() == [(1, 4.0, 1, "a")]
    assert treadle.joined(plain, weighed, weighed.id == plain.key, together=False).collect() == [(1, "a", 1, 4.0)]
    assert treadle.joined(plain, plain.selectExpr("key"), "key", together=True).collect() == [(1, "a")]
    other = spark.createDataFrame([(1, 2.0)], f"key long, {WEIGHT} double")
    assert treadle.joined(weighed, other, weighed.id == other.key, together=False).collect() == [(1, 8.0, 1)]


def test_two_weights_of_a_row_are_never_taken_for_one(spark: SparkSession) -> None:
    weighed = spark.createDataFrame([(1, 4.0)], f"id long, {WEIGHT} double")
    twice = weighed.join(weighed.selectExpr("id", WEIGHT), "id")
    with pytest.raises(AnalysisException, match="AMBIGUOUS"):
        twice.agg(treadle.corrected())
    with pytest.raises(ConfigError, match=r"left input: has 2 columns '_weight'.*treadle\.joined"):
        treadle.joined(twice, weighed, "id", together=False)


def test_units_are_the_same_for_arrays_and_for_tables(spark: SparkSession) -> None:
    made = [("a", 2.0, 3.0), ("a", 4.0, -1.0), ("b", 2.0, 5.0), ("c", 1.0, 7.0)]
    made += [(name, 3.0, 2.0) for name in "defg"]
    table = per_unit(spark.createDataFrame(made, f"unit string, {WEIGHT} double, x double"), "unit", "x")
    [found] = table.agg(corrected("x").alias("x"), corrected("rows").alias("rows")).collect()
    units, weights, values = zip(*made, strict=True)
    assert tuple(found.x) == pytest.approx(total(weights, values, units))
    assert tuple(found.rows) == pytest.approx(total(weights, units=units))
    with pytest.raises(ConfigError, match="unit names no columns"):
        per_unit(table, [])

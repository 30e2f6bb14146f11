"""The operators of VoipStream as functions of Spark DataFrames, named as in the paper.

Parameters are named after the operators that are read. `steps` has what operators with state do; `reference` says what
each operator computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.workloads.voip_stream.merging import with_state, without_state
from treadle.workloads.voip_stream.records import CALL
from treadle.workloads.voip_stream.steps import STEPS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ANSWERED = "yyyy-MM-dd'T'HH:mm:ss.SSSZ"
"""How an answer time is written, as a pattern of Spark."""


def parser(lines: DataFrame) -> DataFrame:
    """Parse each line; leave out those that are no calls. Numbers become integers."""
    from pyspark.sql import functions as f

    calling, called, answered, duration, established = (f.get(f.split("line", ","), number) for number in range(5))
    calls = lines.where(f.col("line").rlike(CALL)).select(
        "id",
        "created",
        calling.try_cast("long").alias("calling"),
        called.try_cast("long").alias("called"),
        f.unix_seconds(f.try_to_timestamp(answered, f.lit(ANSWERED))).alias("answer_ts"),
        duration.try_cast("long").alias("duration"),
        (established == "true").alias("established"),
    )
    return calls.where("answer_ts IS NOT NULL")


def dispatcher(parser: DataFrame) -> DataFrame:
    """Mark calls between pairs of numbers that are new."""
    return with_state("dispatcher", parser)


def ct24(dispatcher: DataFrame) -> DataFrame:
    """Talk time of the caller with new callees."""
    return with_state("ct24", dispatcher)


def global_acd(dispatcher: DataFrame) -> DataFrame:
    """Average duration of all calls until each call, as a row for each call."""
    return with_state("global_acd", dispatcher)


def ecr24(dispatcher: DataFrame) -> DataFrame:
    """Rate of established calls of the caller, over minutes."""
    return with_state("ecr24", dispatcher)


def ecr(dispatcher: DataFrame) -> DataFrame:
    """Rate of established calls of the caller."""
    return with_state("ecr", dispatcher)


def encr(dispatcher: DataFrame) -> DataFrame:
    """Rate of established calls of the caller to new callees."""
    return with_state("encr", dispatcher)


def pre_rcr(dispatcher: DataFrame) -> DataFrame:
    """Two copies of each call, for the number that makes it and for the number that receives it."""
    from pyspark.sql import functions as f

    made = f.struct(f.col("calling").alias("key"), f.lit(False).alias("received"))
    received = f.struct(f.col("called").alias("key"), f.lit(True).alias("received"))
    copies = dispatcher.select("*", f.inline(f.array(made, received)))
    return without_state("pre_rcr", dispatcher, copies.select(*STEPS["pre_rcr"].names))


def rcr(pre_rcr: DataFrame) -> DataFrame:
    """Rate of established calls that the caller receives."""
    return with_state("rcr", pre_rcr)


def fofir(ecr: DataFrame, rcr: DataFrame) -> DataFrame:
    """Calls made in proportion to calls received, as a part of the score."""
    return with_state("fofir", ecr, rcr)


def acd(ct24: DataFrame, ecr24: DataFrame, global_acd: DataFrame) -> DataFrame:
    """Average duration of the caller's calls in proportion to that of all calls, as a part of the score."""
    return with_state("acd", ct24, ecr24, global_acd)


def url(encr: DataFrame, ecr: DataFrame) -> DataFrame:
    """Share of new callees among the caller's calls, as a part of the score."""
    return with_state("url", encr, ecr)


def score(fofir: DataFrame, url: DataFrame, acd: DataFrame) -> DataFrame:
    """Weighted sum of the three parts, for each call that has all of them."""
    return with_state("score", fofir, url, acd)


ALL = (parser, dispatcher, ct24, global_acd, ecr24, ecr, encr, pre_rcr, rcr, fofir, acd, url, score)
"""All operators between the source and the sink, each after those that it reads."""

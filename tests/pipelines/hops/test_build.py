from __future__ import annotations

from typing import Any

import pytest

from treadle.pipelines import Pipeline
from treadle.pipelines.hops import build
from treadle.pipelines.spark.queries import Stopped

TRACE = "\n\tat org.apache.spark.SomeClass.method(SomeClass.scala:1)" * 1000


def sink(error: Exception) -> Any:
    p = Pipeline("p")
    p.feed("rows", schema="a bigint")

    @p.sink
    def out(rows: Any, batch_id: int) -> None:
        raise error

    return build.sink(p.node("out"))


def test_a_sink_that_spark_interrupts_says_so_in_few_words() -> None:
    with pytest.raises(Stopped) as stopped:
        sink(RuntimeError(f"calling o1.collect.\n: java.lang.InterruptedException{TRACE}"))(None, 0)
    assert "java.lang.InterruptedException" in str(stopped.value)
    assert len(str(stopped.value)) < 200


def test_any_other_error_of_a_sink_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="no good"):
        sink(ValueError("no good"))(None, 0)

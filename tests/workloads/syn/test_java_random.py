"""The numbers are those that Java prints."""

from __future__ import annotations

from treadle.workloads.syn.java_random import JavaRandom


def test_numbers_are_those_of_java_util_random() -> None:
    random = JavaRandom(42)
    assert [random.integer(100) for _ in range(5)] == [30, 63, 48, 84, 70]
    assert JavaRandom(42).real() == 0.7275636800328681
    assert [JavaRandom(0).integer(16), JavaRandom(0).integer(6)] == [11, 0]

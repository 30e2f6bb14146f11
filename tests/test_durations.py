"""What people write for a length of time is understood, nonsense is refused, and written back it is the same."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.durations import Duration, seconds, text
from treadle.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("500ms", 0.5),
        ("1s", 1.0),
        ("2min", 120.0),
        ("2m", 120.0),
        ("1h 30min", 5400.0),
        ("1h30m", 5400.0),
        ("10 seconds", 10.0),
        ("1 Minute", 60.0),
        (" 250 us ", 0.00025),
        ("1.5s", 1.5),
        (".5s", 0.5),
        ("60", 60.0),
        ("1d", 86400.0),
        (3, 3.0),
        (0.25, 0.25),
        (timedelta(milliseconds=1500), 1.5),
    ],
)
def test_it_reads_what_people_write(written: Duration, wanted: float) -> None:
    assert seconds(written) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "written",
    ["", " ", "soon", "5 parsecs", "1s 5", "5 1s", "s", "-1s", "0", "0ms", "1,5s", "1e3s", "nan", "inf", "٣s", 0, -2],
)
def test_what_makes_no_sense_is_refused_with_the_remedy(written: Duration) -> None:
    with pytest.raises(ConfigError, match="latency_goal") as error:
        seconds(written, what="latency_goal", where="sink 'alerts'")
    assert error.value.where == "sink 'alerts'"
    assert "500ms" in error.value.remedy


@pytest.mark.parametrize("value", [True, None, [1], float("nan"), float("inf")])
def test_what_is_no_number_is_no_length_of_time(value: object) -> None:
    with pytest.raises(ConfigError):
        seconds(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("length", "wanted"),
    [
        (0.5, "500ms"),
        (1.0, "1s"),
        (1.5, "1.5s"),
        (90.0, "90s"),
        (120.0, "2min"),
        (7200.0, "2h"),
        (172800.0, "2d"),
        (1e-5, "10us"),
        (12345.0, "12345s"),
    ],
)
def test_it_writes_as_people_do(length: float, wanted: str) -> None:
    assert text(length) == wanted


@given(st.floats(1e-5, 1e9))
def test_what_it_writes_it_reads(length: float) -> None:
    assert seconds(text(length)) == pytest.approx(length, rel=1e-3)

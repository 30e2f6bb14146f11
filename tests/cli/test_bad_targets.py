"""What names no application is refused by one line, before anything is done; no application is needed for that."""

from __future__ import annotations

import pytest

from support import treadle
from treadle.attachment import attach


@pytest.mark.parametrize("command", ["attach", "top"])
@pytest.mark.parametrize(
    ("words", "why", "remedy"),
    [
        (["--ui", "host:99999"], "'host:99999': is not the address of a UI: Port out of range", "http://host:4040"),
        (["--ui", "http://[bad"], "'http://[bad': is not the address of a UI: Invalid IPv6 URL", "http://host:4040"),
        (["--ui", "http://host:port"], "'http://host:port': is not the address of a UI", "http://host:4040"),
        (["--name", "4242"], "no Spark application is called '4242'", "if its UI is off, give its pid"),
        (["--name", "host:4040"], "no Spark application is called 'host:4040'", "if its UI is off, give its pid"),
        (["--pid", "0"], "process 0: there is no such process", "ps"),
        (["--pid", "-1"], "process -1: there is no such process", "ps"),
        (["--name", "a", "--user", "nobody-at-all"], "there is no user 'nobody-at-all'", "getent passwd"),
    ],
)
def test_bad_targets_are_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    words: list[str],
    why: str,
    remedy: str,
) -> None:
    monkeypatch.setattr("treadle.jvm.find", list)
    assert treadle(monkeypatch, command, *words) == 2
    said = capsys.readouterr().err
    assert why in said
    assert remedy in said
    assert said.count("\n") == 1


def test_a_period_that_is_shorter_than_a_round_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert treadle(monkeypatch, "attach", "--pid", "1", "--period", "1us") == 2
    said = capsys.readouterr().err
    assert "attach: the period is too short: '1us' (use 10ms or longer)" in said
    assert said.count("\n") == 1


def test_from_python_a_number_in_text_is_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.jvm.find", list)
    with pytest.raises(Exception, match="no Spark application is called '4242'"):
        attach("4242")

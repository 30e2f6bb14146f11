from __future__ import annotations

import logging
import os

import pytest

from support import until
from treadle.engines.spark.application import Application, Process
from treadle.engines.spark.pulse import Pulse

HERE = Process(os.getpid(), 1, False)


def test_what_nobody_foresaw_is_told_once_and_does_not_end_the_looking(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[int] = []

    def look_again(_: Application) -> tuple[Process, ...]:
        looks.append(1)
        if len(looks) <= 2:
            raise ValueError("cannot convert float NaN to integer")
        return (HERE,)

    monkeypatch.setattr(Application, "look_again", look_again)
    monkeypatch.setattr("treadle.engines.spark.pulse.SCAN", 0.0)
    with caplog.at_level(logging.WARNING):
        pulse = Pulse(Application("app-1", "a", "http://127.0.0.1:1", ()), 0.01)
        try:
            until(lambda: pulse.processes == (HERE,))
        finally:
            pulse.close()
    assert len([record for record in caplog.records if "NaN" in record.message]) == 1

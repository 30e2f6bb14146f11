from __future__ import annotations

import logging
import math
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from support import until
from treadle.broker import Broker
from treadle.engines.spark.application import Application, Process
from treadle.engines.spark.engine import SparkEngine
from treadle.engines.spark.kafka.consumers import Consumer
from treadle.engines.spark.slow_poller import SlowPoller
from treadle.engines.spark.threads.sockets import Traffic
from treadle.errors import TargetGone
from treadle.jvm import MBeans, NoAgentError, execute, look

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
    monkeypatch.setattr("treadle.engines.spark.slow_poller.SCAN", 0.0)
    with caplog.at_level(logging.WARNING):
        pulse = SlowPoller(Application("app-1", "a", "http://127.0.0.1:1", ()), 0.01)
        try:
            until(lambda: pulse.processes == (HERE,))
        finally:
            pulse.close()
    assert len([record for record in caplog.records if "NaN" in record.message]) == 1


def consumer(consumed: float) -> Consumer:
    return Consumer(math.nan, consumed, Traffic(0, 0))


def test_what_all_sources_have_taken_is_counted_whosever_they_are() -> None:
    pulse = SlowPoller(Application("local-process-1", "a", "http://127.0.0.1:1", (HERE,)), 60.0)
    pulse.close()
    pulse.processes = (HERE,)
    counts = []
    for found in ({}, {"a": math.nan}, {"a": 5.0, "b": 2.0}, {"b": 3.0}, {"a": 5.0, "b": 3.0}, {"b": 1.0}):
        pulse._count({(HERE.pid, name): consumer(count) for name, count in found.items()})
        counts.append(pulse.taken)
    assert np.array_equal(counts, [math.nan, math.nan, 7.0, 8.0, 8.0, 8.0], equal_nan=True)
    assert not pulse.matches.places


class Shown(BaseHTTPRequestHandler):
    """The UI of a driver on another host, as far as it says that the application runs."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'[{"id": "app-1", "name": "a"}]')

    def log_message(self, *_: object) -> None:
        pass


def test_without_an_executor_here_the_application_lives_for_as_long_as_its_driver_shows_it() -> None:
    """The only executor is a number that was given to another process: it is gone, and not looked into."""
    with HTTPServer(("127.0.0.1", 0), Shown) as ui:
        serving = threading.Thread(target=ui.serve_forever)
        serving.start()
        application = Application("app-1", "a", f"http://127.0.0.1:{ui.server_port}", (HERE,))
        with SparkEngine(application, knobs={}, mbeans=False, beans_period=0.01) as engine:
            try:
                until(lambda: engine._poller.processes == () and not len(engine.topology()))
                assert engine.topology().instances == ()
            finally:
                ui.shutdown()
                serving.join()
                ui.server_close()
            until(lambda: engine._poller.ended)
            with pytest.raises(TargetGone, match="'a': has ended"):
                until(engine.topology)


def test_no_agent_is_loaded_where_none_may_be(broker: Broker) -> None:
    """The broker is a JVM like any other."""
    process = Process(broker.pid, look(broker.pid).start_time, False)
    pulse = SlowPoller(Application("local-process-1", "a", "http://127.0.0.1:1", (process,)), 60.0, loads=False)
    pulse.close()
    pulse._read()
    assert pulse._failed.keys() == {broker.pid}
    assert "jolokia" not in execute(broker.pid, "properties")
    with pytest.raises(NoAgentError, match="no Jolokia agent is loaded"):
        MBeans(broker.pid, load=False)

"""Fills feeds at given rates from a separate process, so that the load does not slow down when the pipeline does.

It writes small segments at short, even intervals; each row has the time at which it was due (`arrived`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treadle.errors import EngineError

SCHEMA = "id long, arrived timestamp, v double, payload string"
"""A row: `v` is uniform in 0..1, so that `v < s` keeps a share s; the payload makes the row about 100 bytes long."""
PAYLOAD = "x" * 68
INTERVAL = 0.05


@dataclass(frozen=True)
class Flow:
    """The load of one feed: `rate` rows a second for `on` seconds, then none for `off` seconds, repeatedly."""

    folder: str
    rate: float
    on: float = 1.0
    off: float = 0.0

    def rows(self, start: float, end: float) -> float:
        """The number of rows that are due between two times, given in seconds since the start."""
        return self.rate * (self._on_time(end) - self._on_time(start))

    def _on_time(self, moment: float) -> float:
        whole, rest = divmod(moment, self.on + self.off)
        return whole * self.on + min(rest, self.on)


class Generator:
    """The process that fills feeds, from the creation of this object until `stop`."""

    def __init__(self, flows: Sequence[Flow], *, seed: int = 1) -> None:
        order = json.dumps({"seed": seed, "flows": [asdict(flow) for flow in flows]})
        command = [sys.executable, "-m", "treadle.workloads.generator"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> list[int]:
        """End the process; return the number of rows written to each feed."""
        out, _ = self._process.communicate()  # closes the standard input, which ends the process
        if self._process.returncode:
            raise EngineError("the generator failed", remedy="see its message above")
        return [int(count) for count in json.loads(out)]


def _main() -> None:
    from treadle.pipelines.channels.log import Writer

    order: dict[str, Any] = json.loads(sys.stdin.readline())
    flows = [Flow(**flow) for flow in order["flows"]]
    ended = threading.Event()
    threading.Thread(target=_until_input_ends, args=(ended,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when to end
    random = np.random.default_rng(order["seed"])
    writers = [_writer(Writer, flow) for flow in flows]
    counts = [0] * len(flows)
    began, start = time.time(), time.monotonic()
    last, due = 0.0, start
    while not ended.is_set():
        due += INTERVAL
        ended.wait(max(0.0, due - time.monotonic()))
        now = time.monotonic() - start
        for number, (flow, writer) in enumerate(zip(flows, writers, strict=True)):
            rows = int(flow.rows(0.0, now)) - counts[number]
            if rows > 0:
                writer.append(_rows(counts[number], rows, began + last, began + now, random), born="arrived")
                counts[number] += rows
        last = now
    sys.stdout.write(json.dumps(counts))


def _writer(make: Any, flow: Flow) -> Any:
    schema = Path(flow.folder, "schema.json").read_text("utf-8")
    return make(flow.folder, schema)


def _rows(first: int, count: int, start: float, end: float, random: np.random.Generator) -> Any:
    import pyarrow as pa

    arrived = np.linspace(start, end, count, endpoint=False) * 1e6
    return pa.table(
        {
            "id": np.arange(first, first + count),
            "arrived": pa.array(arrived.astype(np.int64), pa.timestamp("us", tz="UTC")),
            "v": random.random(count),
            "payload": pa.array([PAYLOAD] * count),
        }
    )


def _until_input_ends(ended: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    ended.set()


if __name__ == "__main__":
    _main()

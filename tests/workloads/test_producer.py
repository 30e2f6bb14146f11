from __future__ import annotations

from treadle.workloads.producer import _produce


class FullQueue:
    """Stands for librdkafka's producer while its broker is slow: there is room only after two polls."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.polls = 0

    def produce(self, topic: str, value: str) -> None:
        if self.polls < 2:
            raise BufferError("Local: Queue full")
        self.rows.append(value)

    def poll(self, seconds: float) -> None:
        self.polls += 1


def test_a_slow_broker_makes_the_producer_wait_and_loses_no_row() -> None:
    queue = FullQueue()
    _produce(queue, "topic", "1")
    assert (queue.rows, queue.polls) == (["1"], 2)

"""Rows, queues and ages from counters, against a chain of tasks of which everything is known."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.engines.spark.agent.reports import Counts, Task
from treadle.engines.spark.counters.live import LiveCounters
from treadle.engines.spark.counters.readings import PREFIX, Located
from treadle.engines.spark.queries.operators import StageCounters
from treadle.engines.spark.threads.places import Place

MESSAGE = 100
"""Rows of a message."""
SIZE = 176
"""Bytes of a row."""
SOURCE, MIDDLE, SINK = range(3)
READS = ("waiting", "message", "from", "received", "writers")
STAGES = {
    SOURCE: StageCounters(taken=(1,), put_out=(1,), written=2),
    MIDDLE: StageCounters(passes_on=True, written=3),
    SINK: StageCounters(passes_on=True),
}


@dataclass
class Chain:
    """A source, a stage of projections and a sink in one batch; `rows` are those that each has taken in and put out."""

    batch: int = 0
    size: int = SIZE
    rows: list[int] = field(default_factory=lambda: [0, 0, 0])
    offset: int = 0
    end: int = 0
    on_its_way: int = 0
    """Messages that were sent on each edge and have not come."""
    writers: int = 1
    """For each reader, of which one is looked at."""

    def __post_init__(self) -> None:
        columns = (
            ("in", "metric:1", "metric:2", *self._writes(0), "offset:0", "end:0"),
            ("in", "metric:3", *self._reads(0), *self._writes(1)),
            ("in", *self._reads(1)),
        )
        self.tasks = tuple(Task(3 * self.batch + at, 0, each) for at, each in enumerate(columns))
        self.ended: set[int] = set()
        self._kept: tuple[frozenset[int], tuple[Task, ...]] = (frozenset(), self.tasks)

    def _writes(self, shuffle: int) -> tuple[str, ...]:
        number = 2 * self.batch + shuffle
        return (f"held:{number}", f"writer:{number}", f"sent:{number}:0", f"filling:{number}:0")

    def _reads(self, shuffle: int) -> tuple[str, ...]:
        return tuple(f"{kind}:{2 * self.batch + shuffle}" for kind in READS)

    def _written(self, rows: int) -> list[int]:
        filling = rows % MESSAGE * (self.size + PREFIX)
        return [filling, 0, rows // MESSAGE - 1, filling]

    def _read(self, written: int, taken: int) -> list[int]:
        """The reader is in the message after those that it has taken wholly, if that has come."""
        received, message = written // MESSAGE - self.on_its_way, taken // MESSAGE
        reads = message < received
        now = [received - 1 - message, message, 0] if reads else [0, -1, -1]
        return [*now, received, self.writers]

    def counts(self, time: float) -> Counts:
        source, middle, sink = self.rows
        values = (
            [source, source, source * self.size, *self._written(source), self.offset + source, self.offset + self.end],
            [0, middle * self.size, *self._read(source, middle), *self._written(middle)],
            [0, *self._read(middle, sink)],
        )
        alive = [at for at in range(3) if at not in self.ended]
        return Counts(time, self._alive(), np.array([value for at in alive for value in values[at]], dtype=np.int64))

    def _alive(self) -> tuple[Task, ...]:
        key = frozenset(self.ended)
        if self._kept[0] != key:
            self._kept = key, tuple(task for at, task in enumerate(self.tasks) if at not in self.ended)
        return self._kept[1]


def locate(task: Task) -> Located:
    return Located(task.stage // 3, Place("run", task.stage % 3, task.partition), STAGES[task.stage % 3])


def run(chain: Chain, counters: LiveCounters, rates: tuple[float, float, float], begin: float, steps: int) -> float:
    """Rows of each at these rates, the latter never more than the former, read every 0.2 s."""
    time = begin
    for step in range(1, steps + 1):
        time = begin + 0.2 * step
        done = [int(rate * 0.2 * step) for rate in rates]
        chain.end = done[0] + 500
        middle = min(done[0] // MESSAGE * MESSAGE, done[1])  # nobody reads what was not sent
        chain.rows = [done[0], middle, min(middle // MESSAGE * MESSAGE, done[2])]
        counters.update(1, chain.counts(time))
    return time


def test_a_message_that_is_on_its_way_waits() -> None:
    chain, counters = Chain(on_its_way=1), LiveCounters(locate)
    for messages in range(1, 10):
        chain.rows = [messages * MESSAGE, (messages - 1) * MESSAGE, 0]
        counters.update(1, chain.counts(0.2 * messages))
    assert counters.reading is not None
    assert counters.reading.queue[MIDDLE] == pytest.approx(MESSAGE)


def test_a_message_of_one_of_two_writers_that_is_on_its_way_waits() -> None:
    writes = ("metric:1", "metric:2", "held:0", "writer:0", "sent:0:0", "filling:0:0")
    reads = ("waiting:0", "message:0", "from:0", "received:0")
    tasks = (Task(0, 0, writes), Task(0, 1, writes), Task(2, 0, reads))
    counters = LiveCounters(locate)
    for messages in range(1, 10):  # of each writer; the reader has got and read all but one of the second
        rows = messages * MESSAGE
        writer = [rows, rows * SIZE, 0, 7, messages - 1, 0]
        values = [*writer, *writer[:3], 8, *writer[4:], 0, -1, -1, 2 * messages - 1]
        counters.update(1, Counts(0.2 * messages, tasks, np.array(values, dtype=np.int64)))
    assert counters.reading is not None
    assert counters.reading.queue[2] == pytest.approx(MESSAGE)


@given(st.floats(500, 20_000), st.floats(0.1, 1.0), st.floats(0.1, 1.0), st.integers(40, 2000), st.integers(1, 60))
def test_each_reader_is_known_to_half_a_message(
    rate: float, first: float, second: float, size: int, steps: int
) -> None:
    chain, counters = Chain(size=size), LiveCounters(locate)
    run(chain, counters, (rate, rate * first, rate * first * second), 0.0, steps)
    reading = counters.reading
    assert reading is not None
    source, middle, sink = chain.rows
    assert reading.taken[SOURCE] == reading.put_out[SOURCE] == source
    half = 0.5 * MESSAGE + 1
    assert reading.taken[MIDDLE] == pytest.approx(middle, abs=half)
    assert reading.taken[SINK] == pytest.approx(sink, abs=2 * half)  # its writer counts no rows, but is a reader too
    assert reading.queue[MIDDLE] == pytest.approx(source - middle, abs=half)
    assert reading.queue[SINK] == pytest.approx(middle - sink, abs=3 * half)
    assert np.isnan(reading.queue[SOURCE])
    assert reading.external_queue[SOURCE] == pytest.approx(500, rel=0.01)


def test_rows_of_one_size_are_counted_exactly_by_their_bytes_once_that_is_known() -> None:
    chain, counters = Chain(), LiveCounters(locate)
    time = run(chain, counters, (5000, 5000, 5000), 0.0, 50)
    chain.ended = {SOURCE, MIDDLE, SINK}
    counters.update(1, chain.counts(time + 0.1))
    later = Chain(batch=1)
    run(later, counters, (5000, 4321, 1234), time + 1.0, 20)
    assert counters.reading is not None
    assert counters.reading.put_out[MIDDLE] == pytest.approx(chain.rows[MIDDLE] + later.rows[MIDDLE], abs=0.01)
    assert counters.reading.queue[MIDDLE] == pytest.approx(later.rows[SOURCE] - later.rows[MIDDLE], abs=0.01)


def test_a_reader_of_writers_that_nobody_looks_at_is_unknown_and_those_after_it_too() -> None:
    """They are on another host: what is seen of its messages is not all that it takes."""
    chain, counters = Chain(writers=2), LiveCounters(locate)
    run(chain, counters, (3000, 2000, 1000), 0.0, 10)
    reading = counters.reading
    assert reading is not None
    assert reading.taken[SOURCE] == chain.rows[SOURCE]
    for column in (reading.taken, reading.queue, reading.head_age, reading.mean_age, reading.latency):
        assert np.isnan(column[MIDDLE:]).all()


def test_where_it_is_not_known_when_rows_came_nobody_knows_how_old_they_are() -> None:
    chain, counters = Chain(offset=-100_000), LiveCounters(locate)
    run(chain, counters, (3000, 2000, 2000), 0.0, 10)
    assert counters.reading is not None
    assert counters.reading.queue[MIDDLE] > 0
    assert np.isnan(counters.reading.latency).all()
    assert np.isnan(counters.reading.head_age[MIDDLE])
    assert np.isnan(counters.reading.mean_age[MIDDLE])


def test_the_oldest_row_is_as_old_as_what_was_written_since_it_came() -> None:
    """Half of 4,000 rows a second are taken, so after 6 s the next one has waited for 3 s, after 0.125 s in Kafka."""
    chain, counters = Chain(), LiveCounters(locate)
    run(chain, counters, (4000, 2000, 2000), 0.0, 30)
    assert counters.reading is not None
    assert counters.reading.head_age[MIDDLE] == pytest.approx(3.0 + 0.125, abs=0.05)
    assert counters.reading.mean_age[MIDDLE] == pytest.approx(1.5 + 0.125, abs=0.05)
    assert counters.reading.latency[SINK] == pytest.approx(3.0 + 0.125, abs=0.1)


def test_what_an_ended_writer_has_written_still_waits_for_its_reader() -> None:
    chain, counters = Chain(), LiveCounters(locate)
    time = run(chain, counters, (5000, 2500, 2500), 0.0, 20)
    chain.ended = {SOURCE}
    counters.update(1, chain.counts(time + 0.2))
    assert counters.reading is not None
    rows = dict(zip(counters.reading.places, counters.reading.queue, strict=True))
    assert rows[Place("run", MIDDLE, 0)] == pytest.approx(chain.rows[SOURCE] - chain.rows[MIDDLE], abs=MESSAGE)


def test_counts_go_on_in_the_next_batch_and_no_queue_is_left_from_the_one_before() -> None:
    counters, time, total = LiveCounters(locate), 0.0, 0
    for batch in range(3):
        chain = Chain(batch=batch, offset=total)
        time = run(chain, counters, (3000, 3000, 3000), time, 10)
        total += chain.rows[SOURCE]
        assert counters.reading is not None
        assert counters.reading.taken == pytest.approx([total] * 3, abs=MESSAGE)
        assert counters.reading.queue[1:] == pytest.approx([0, 0], abs=MESSAGE)
        for ended in range(3):
            chain.ended.add(ended)
            counters.update(1, chain.counts(time + 0.01 * ended))


def test_a_batch_that_is_over_has_taken_in_all_that_was_put_out() -> None:
    """Also what its tasks took after they were last read."""
    counters = LiveCounters(locate)
    chain = Chain()
    time = run(chain, counters, (3000, 2500, 2000), 0.0, 10)
    for ended in range(3):
        chain.ended.add(ended)
        counters.update(1, chain.counts(time + 0.01 * ended))
    following = Chain(batch=1, offset=chain.rows[SOURCE])
    counters.update(1, following.counts(time + 0.1))
    assert counters.reading is not None
    assert counters.reading.taken == pytest.approx([chain.rows[SOURCE]] * 3)
    assert counters.reading.put_out == pytest.approx([chain.rows[SOURCE]] * 3)
    assert counters.reading.queue[1:] == pytest.approx([0, 0])


def test_a_process_that_has_ended_is_forgotten() -> None:
    chain, counters = Chain(), LiveCounters(locate)
    run(chain, counters, (5000, 2500, 2500), 0.0, 5)
    counters.keep([])
    counters.update(2, Counts(2.0, (), np.empty(0, dtype=np.int64)))
    assert counters.reading is None


def test_nothing_is_known_of_tasks_that_nobody_can_place() -> None:
    counters = LiveCounters(lambda _: None)
    counters.update(1, Chain().counts(0.0))
    assert counters.reading is None

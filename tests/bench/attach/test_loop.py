"""What `treadle bench loop` makes of what it reads."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from support import until
from treadle.bench.attach import loop


def test_the_ratio_is_that_of_pairs_and_its_interval_is_narrow_where_they_agree() -> None:
    noise = [1.0, 2.0, 3.0, 4.0, 5.0]
    found = loop.compared([0.9 * each for each in noise], noise)
    assert (found["low"], found["ratio"], found["high"]) == (0.9, 0.9, 0.9)
    assert (found["rows_per_s"], found["rows_per_s_without"]) == (2.7, 3.0)
    wide = loop.compared([0.9, 1.1, 0.9, 1.1, 1.0], [1.0] * 5)
    assert wide["low"] < 0.89
    assert wide["high"] > 1.1


def test_only_threads_of_the_given_names_are_counted() -> None:
    named, done = threading.Event(), threading.Event()

    def burn() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("Attach Listener")
        named.set()
        while not done.is_set():
            sum(range(1000))

    thread = threading.Thread(target=burn)
    thread.start()
    try:
        named.wait()
        until(lambda: loop._thread_time(loop._named(os.getpid(), loop.OWN)) > 0.05)
        assert not loop._named(os.getpid(), loop.SHARED)
    finally:
        done.set()
        thread.join()


def test_growth_is_by_the_second() -> None:
    clock = iter([3.0, 4.0])
    [speed] = loop._over(0.01, lambda: next(clock))
    assert 0.0 < speed <= 100.0

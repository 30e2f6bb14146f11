"""What executors tell of their workers becomes cores: who uses them, and how much one is worth."""

from __future__ import annotations

import numpy as np
import pytest

from treadle.pipelines.spark.workers import ClusterCores, Look, Tasks, Worker, divided, used


def worker(
    name: str, *, lives: bool = True, speed: float = 1.0, passed: float, worked: float, own: float = 0.0
) -> Worker:
    return Worker(name, lives, "host", name, 4, 1, speed, passed, worked, own)


def looked(time: float, workers: list[Worker], ran: dict[tuple[str, str], float] | None = None) -> Look:
    """Tasks that were on a core for half of the time that they ran."""
    tasks = {key: Tasks(seconds, seconds / 2, 0.0) for key, seconds in (ran or {}).items()}
    return Look(time, {each.id: each for each in workers}, tasks)


def test_load_that_is_not_of_our_executor_is_told_apart() -> None:
    before = looked(0.0, [worker("0", passed=100.0, worked=50.0, own=20.0)], {("q", "0"): 3.0})
    after = looked(10.0, [worker("0", passed=110.0, worked=59.0, own=24.0)], {("q", "0"): 9.0})
    use = used(before, after, ["0"], ["q", "idle"])
    assert use.cpu.tolist() == pytest.approx([0.4, 0.0])
    assert use.others.tolist() == pytest.approx([0.5])
    assert use.cores.tolist() == [1.0]


def test_what_tasks_used_is_measured_and_only_the_rest_is_divided_by_how_long_they_ran() -> None:
    before = looked(0.0, [worker("0", passed=0.0, worked=0.0)])
    ran = {("long", "0"): 6.0, ("short", "0"): 2.0, ("", "0"): 4.0}
    after = looked(10.0, [worker("0", passed=10.0, worked=9.0, own=9.0)], ran)
    assert used(before, after, ["0"], ["long", "short"]).cpu.tolist() == pytest.approx([0.45, 0.15])


def test_what_python_used_is_of_those_that_waited_for_it() -> None:
    tasks = np.array([Tasks(ran=6.0, cpu=5.0, python=0.0), Tasks(ran=4.0, cpu=0.5, python=3.5), Tasks(0.0, 0.0, 0.0)])
    assert divided(9.5, 3.0, tasks).tolist() == pytest.approx([5.6, 3.9, 0.0])
    without = np.array([Tasks(ran=3.0, cpu=2.0, python=0.0), Tasks(ran=1.0, cpu=1.0, python=0.0)])
    assert divided(5.0, 2.0, without).tolist() == pytest.approx([3.5, 1.5])


def test_a_core_of_a_faster_worker_counts_for_more() -> None:
    before = looked(0.0, [worker("0", passed=0.0, worked=0.0), worker("1", speed=2.0, passed=0.0, worked=0.0)])
    after = looked(
        10.0,
        [worker("0", passed=10.0, worked=1.0), worker("1", speed=2.0, passed=10.0, worked=6.0, own=5.0)],
        {("q", "1"): 5.0},
    )
    use = used(before, after, ["0", "1"], ["q"])
    assert np.allclose(use.cores, [1.0, 2.0])
    assert np.allclose(use.others, [0.1, 0.2])
    assert use.cpu.tolist() == pytest.approx([1.0])


def test_a_worker_is_held_to_be_free_until_it_was_measured_and_to_have_nothing_once_it_is_gone() -> None:
    before = looked(0.0, [worker("0", passed=0.0, worked=0.0)])
    gone = worker("0", lives=False, passed=10.0, worked=9.0)
    use = used(before, looked(10.0, [gone, worker("1", passed=500.0, worked=400.0)]), ["0", "1"], [])
    assert use.cores.tolist() == [0.0, 1.0]
    assert use.others.tolist() == [0.0, 0.0]


class Told:
    """A stand-in for the table in the driver: what executors have told at each look."""

    def __init__(self, *looks: list[Worker]) -> None:
        self._looks = [looked(0.0, workers) for workers in looks]

    def look(self, now: float) -> Look:
        return self._looks[0]

    def go_on(self) -> None:
        self._looks.pop(0)


def test_executors_that_share_their_cores_are_not_counted_twice_and_pinned_ones_apart() -> None:
    def shared(worked: float, *own: float) -> list[Worker]:
        named = zip(("0", "1"), own, strict=True)
        return [
            worker(name, passed=worked, worked=worked, own=used)._replace(cores=2, which="0,1") for name, used in named
        ]

    def pinned(worked: float, own: float) -> Worker:
        return worker("2", passed=worked, worked=worked, own=own)._replace(host="far", which="0")

    told = Told([*shared(5.0, 1.0, 2.0), pinned(3.0, 3.0)], [*shared(15.0, 4.0, 5.0), pinned(7.0, 6.0)])
    cores = ClusterCores(told)  # type: ignore[arg-type]
    assert cores.count == 3
    assert cores.read() == (0.0, 0.0), "nothing is known of what was before"
    told.go_on()
    assert cores.read() == (9.0, 5.0)


def test_an_executor_that_has_ended_has_no_cores_and_takes_nothing_back() -> None:
    before, after = (
        [worker("0", lives=lives, passed=9.0, worked=9.0, own=own)] for lives, own in ((True, 9.0), (False, 0.0))
    )
    told = Told(before, after)
    cores = ClusterCores(told)  # type: ignore[arg-type]
    cores.read()
    told.go_on()
    assert cores.count == 0
    assert cores.read() == (0.0, 0.0)

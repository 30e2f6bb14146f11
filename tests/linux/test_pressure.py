"""The busy share is of the usable cores, the stall share is PSI's, and what can't be read is unknown."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.errors import EngineError
from treadle.linux.pressure import Pressure

PSI = "some avg10=1.00 avg60=0.50 avg300=0.10 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


class Machine:
    """The two files, as a kernel writes them, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.stat = folder / "stat"
        self.psi = folder / "cpu"
        self.time = 0.0
        self.cores = [[0] * 10, [0] * 10]
        self.stalled = 0
        self.write()

    def passes(self, seconds: float, *ticks: dict[int, int], stalled: float = 0.0) -> None:
        """Add ticks by column for each of the cores."""
        self.time += seconds
        self.stalled += round(stalled * 1e6)
        for core, added in zip(self.cores, ticks, strict=True):
            for column, count in added.items():
                core[column] += count
        self.write()

    def write(self) -> None:
        totals = [sum(column) for column in zip(*self.cores, strict=True)]
        lines = [("cpu ", totals), *((f"cpu{i}", core) for i, core in enumerate(self.cores))]
        text = "".join(f"{name} {' '.join(map(str, ticks))}\n" for name, ticks in lines)
        self.stat.write_text(text + "intr 5 0 0\nctxt 99\n")
        self.psi.write_text(PSI.format(self.stalled))

    def pressure(self, *cores: int) -> Pressure:
        return Pressure(stat=self.stat, psi=self.psi, cores=cores or (0, 1), now=lambda: self.time)


USER, SYSTEM, IDLE, IOWAIT, STEAL, GUEST = 0, 2, 3, 4, 7, 8


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_both_shares_are_since_the_last_sample(machine: Machine) -> None:
    pressure = machine.pressure()
    assert pressure.source == "psi"
    machine.passes(1.0, {USER: 60, IDLE: 40}, {SYSTEM: 20, IDLE: 80}, stalled=0.25)
    assert pressure.sample() == pytest.approx((0.4, 0.25))
    machine.passes(2.0, {USER: 200}, {USER: 200}, stalled=2.0)
    assert pressure.sample() == pytest.approx((1.0, 1.0))
    pressure.close()


def test_only_the_usable_cores_count(machine: Machine) -> None:
    pressure = machine.pressure(1)
    machine.passes(1.0, {USER: 100}, {IDLE: 90, USER: 10})
    assert pressure.sample().busy == pytest.approx(0.1)
    pressure.close()


def test_waiting_for_a_disk_is_room_and_steal_is_not(machine: Machine) -> None:
    pressure = machine.pressure()
    machine.passes(1.0, {IOWAIT: 100}, {STEAL: 100})
    assert pressure.sample().busy == pytest.approx(0.5)
    pressure.close()


def test_guest_time_is_counted_once(machine: Machine) -> None:
    pressure = machine.pressure()
    machine.passes(1.0, {USER: 50, GUEST: 50, IDLE: 50}, {IDLE: 100})
    assert pressure.sample().busy == pytest.approx(0.25)
    pressure.close()


def test_where_no_time_has_passed_nothing_is_known(machine: Machine) -> None:
    pressure = machine.pressure()
    busy, stall = pressure.sample()
    assert math.isnan(busy)
    assert math.isnan(stall)
    pressure.close()


def test_a_counter_that_goes_back_is_no_negative_share(machine: Machine) -> None:
    pressure = machine.pressure()
    machine.passes(1.0, {USER: 10, IOWAIT: 5}, {IDLE: 10})
    pressure.sample()
    machine.passes(1.0, {IDLE: 3, USER: -2}, {IDLE: 10}, stalled=-0.5)
    assert pressure.sample() == (0.0, 0.0)
    pressure.close()


def test_without_psi_the_busy_share_is_left_and_it_says_so(machine: Machine) -> None:
    machine.psi.unlink()
    pressure = machine.pressure()
    machine.passes(1.0, {USER: 100}, {IDLE: 100})
    busy, stall = pressure.sample()
    assert pressure.source == "stat"
    assert busy == pytest.approx(0.5)
    assert math.isnan(stall)
    pressure.close()


@pytest.mark.parametrize("text", ["", "none\n", "some avg10=1.00 total=\n"])
def test_psi_that_can_not_be_understood_is_as_none(machine: Machine, text: str) -> None:
    machine.psi.write_text(text)
    pressure = machine.pressure()
    assert pressure.source == "stat"
    pressure.close()


@pytest.mark.parametrize("text", ["", "cpu0 1 2\n", "cpu0 a b c d e f g h\n"])
def test_cores_that_can_not_be_understood_are_unknown(machine: Machine, text: str) -> None:
    pressure = machine.pressure()
    machine.time += 1.0
    machine.stat.write_text(text)
    assert math.isnan(pressure.sample().busy)
    pressure.close()


def test_after_close_all_is_unknown_and_nothing_is_raised(machine: Machine) -> None:
    pressure = machine.pressure()
    pressure.close()
    machine.passes(1.0, {USER: 100}, {IDLE: 100})
    assert all(math.isnan(share) for share in pressure.sample())
    pressure.close()


def test_a_machine_without_proc_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="fixed number of slots"):
        Pressure(stat=tmp_path / "none")


@pytest.fixture
def real() -> Iterator[Pressure]:
    pressure = Pressure()
    yield pressure
    pressure.close()


def test_the_kernel_here_tells_how_busy_we_make_it(real: Pressure) -> None:
    assert real.cores == os.sched_getaffinity(0)
    began = time.thread_time()
    while time.thread_time() - began < 0.3:
        pass
    busy, stall = real.sample()
    assert busy > 0
    assert math.isnan(stall) == (real.source == "stat")
    assert not stall > 1

"""Knobs of plug-ins on engines that lack them: only where the engine's threads are the kernel's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loop.worlds import FOUND, ByQueue, MemoryEngine, MemoryKnob, TestClock
from treadle.decide.transform import nice
from treadle.enforce import registry
from treadle.enforce.knob import Knob, Per
from treadle.errors import EngineError
from treadle.loop import Binding, Loop
from treadle.loop.fitted import fitted
from treadle.model import Instance, Operator, Query, ThreadRef, Topology

KERNEL = ThreadRef(1, pid=7)


class OnKernel(MemoryEngine):
    """Its threads belong to a process."""

    def __init__(self) -> None:
        super().__init__("mem", [0.0, 10.0])
        instances = [Instance("q", (op,), 0, "mem", (ThreadRef(n, pid=7),)) for n, op in ((1, "a"), (2, "b"))]
        self._topology = Topology((Query("q", (Operator("a"), Operator("b", ("a",)))),), tuple(instances), 1)


@pytest.fixture
def plug_ins(monkeypatch: pytest.MonkeyPatch) -> dict[str, MemoryKnob]:
    """The plug-in knobs `volume` and `tone` for threads and `pool` for groups."""
    kinds: tuple[tuple[str, Per], ...] = (("volume", "thread"), ("tone", "thread"), ("pool", "group"))
    made: dict[str, MemoryKnob] = {}

    def get(name: str) -> registry.KnobKind:
        def make() -> Knob:
            per = dict(kinds)[name]
            made[name] = MemoryKnob(name, per, {ThreadRef(n, pid=7): FOUND for n in (1, 2)})
            return made[name]

        return registry.KnobKind(name, "", make)

    monkeypatch.setattr(registry, "names", lambda: tuple(name for name, _ in kinds))
    monkeypatch.setattr(registry, "get", get)
    return made


def test_an_engine_gets_the_wanted_knobs_that_it_lacks_and_keeps_its_own(plug_ins: dict[str, MemoryKnob]) -> None:
    engine = OnKernel()
    more = fitted(engine, {"volume", "nice", "nobody's"})
    assert set(more.knobs()) == {*engine.knobs(), "volume"}
    assert set(plug_ins) == {"volume"}
    assert more.knobs()["nice"] is engine.nice
    assert more.knobs()["volume"].per == "thread"
    assert more.knobs()["volume"].name == "volume"


def test_an_engine_that_lacks_nothing_is_as_it_was(plug_ins: dict[str, MemoryKnob]) -> None:
    engine = OnKernel()
    for wanted in ({"nice"}, set[str](), {"nobody's"}):
        assert fitted(engine, wanted) is engine
    assert not plug_ins


def test_knobs_for_other_things_than_threads_are_not_added(plug_ins: dict[str, MemoryKnob]) -> None:
    assert "pool" not in fitted(OnKernel(), {"pool", "volume"}).knobs()


def test_an_engine_whose_threads_are_not_the_kernels_gets_none_and_one_that_is_not_there_yet_may(
    plug_ins: dict[str, MemoryKnob], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated, absent = MemoryEngine("mem", [0.0]), OnKernel()
    assert fitted(simulated, {"volume"}) is simulated

    def fail() -> Topology:
        raise EngineError("not there yet")

    monkeypatch.setattr(absent, "topology", fail)
    assert "volume" in fitted(absent, {"volume"}).knobs()


def test_all_else_is_asked_of_the_engine_itself(plug_ins: dict[str, MemoryKnob]) -> None:
    engine: Any = OnKernel()
    more: Any = fitted(engine, {"volume"})
    assert (more.name, more.offers, more.topology()) == ("mem", engine.offers, engine.topology())
    assert more.sample(frozenset({"queue"})).columns["queue"].tolist() == [0.0, 10.0]
    assert more.in_process is True
    engine.in_process = False
    assert more.in_process is False
    assert more.news() is True
    engine.news = lambda: True
    assert more.news() is True
    engine.news = lambda: False
    assert more.news() is False


def test_such_a_knob_refuses_what_is_not_a_thread_of_the_kernel(plug_ins: dict[str, MemoryKnob]) -> None:
    knob = fitted(OnKernel(), {"volume"}).knobs()["volume"]
    assert knob.read(KERNEL) == FOUND
    knob.write(KERNEL, 5.0)
    assert plug_ins["volume"].writes == [(KERNEL, 5.0)]
    for other in (ThreadRef(1), "q"):
        with pytest.raises(EngineError, match=r"is not a thread of the operating system \(use a knob that the engine"):
            knob.read(other)
        with pytest.raises(EngineError, match="is not a thread of the operating system"):
            knob.write(other, 5.0)
    assert len(plug_ins["volume"].writes) == 1


def test_a_loop_turns_it_and_puts_it_back(plug_ins: dict[str, MemoryKnob]) -> None:
    engine = OnKernel()
    with Loop([engine], [Binding(ByQueue(), "volume", 1.0, scale=nice())], clock=TestClock()) as loop:
        loop.round()
        assert list(plug_ins["volume"].values.values()) == [19.0, -20.0]
        engine.columns["queue"] = np.array([10.0, 0.0])
        loop.round(force=True)
        assert list(plug_ins["volume"].values.values()) == [-20.0, 19.0]
    assert list(plug_ins["volume"].values.values()) == [FOUND, FOUND]

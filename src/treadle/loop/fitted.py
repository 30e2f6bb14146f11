"""Adds knobs of plug-ins to engines: a plug-in's knob for kernel threads works with every engine that has such threads.

It knows which engine has kernel threads, and not what the knob does with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from treadle.enforce import Knob, Per, Target, Value, registry
from treadle.errors import EngineError
from treadle.loop.engine import Engine
from treadle.model import ThreadRef, Topology
from treadle.values import Sample


def fitted(engine: Engine, wanted: Iterable[str]) -> Engine:
    """Return the engine with the wanted knobs that it lacks and a plug-in has; the engine itself if there are none."""
    missing = set(wanted) - engine.knobs().keys()
    added = missing & set(registry.names()) if missing else set()
    if not added or not _has_kernel_threads(engine):
        return engine
    made = [registry.get(name).make() for name in sorted(added)]
    return _Fitted(engine, {knob.name: _OnKernelThreads(knob) for knob in made if knob.per == "thread"})


class _Fitted:
    """An engine and the knobs added to it."""

    def __init__(self, engine: Engine, added: Mapping[str, Knob]) -> None:
        self._engine = engine
        self._added = added

    @property
    def in_process(self) -> bool:
        return bool(getattr(self._engine, "in_process", False))

    @property
    def name(self) -> str:
        return self._engine.name

    @property
    def offers(self) -> frozenset[str]:
        return self._engine.offers

    def news(self) -> bool:
        ask = getattr(self._engine, "news", None)
        return ask is None or bool(ask())

    def topology(self) -> Topology:
        return self._engine.topology()

    def sample(self, wanted: frozenset[str]) -> Sample:
        return self._engine.sample(wanted)

    def knobs(self) -> Mapping[str, Knob]:
        return {**self._added, **self._engine.knobs()}


class _OnKernelThreads:
    """A knob that refuses threads of a simulated kernel: on this machine their ids belong to unrelated threads."""

    per: Per = "thread"

    def __init__(self, knob: Knob) -> None:
        self.name = knob.name
        self._knob = knob

    def read(self, target: Target) -> Value:
        return self._knob.read(_kernel_thread(target))

    def write(self, target: Target, value: Value) -> None:
        self._knob.write(_kernel_thread(target), value)


def _has_kernel_threads(engine: Engine) -> bool:
    """False only if a thread in its topology is not the kernel's; an engine that can't be reached yet may have some."""
    try:
        return all(thread.pid for thread in engine.topology().threads)
    except Exception:
        return True


def _kernel_thread(target: Target) -> ThreadRef:
    if isinstance(target, ThreadRef) and target.pid:
        return target
    raise EngineError(
        f"{target} is not a thread of the operating system", remedy="use a knob that the engine carries itself"
    )

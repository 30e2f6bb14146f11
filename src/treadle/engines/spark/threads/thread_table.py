"""The current threads of an application's processes, and, less often, the stacks of tasks' threads.

Where an agent reports threads by name, their kernel ids are read from the JVM's memory, and thread dumps, which show
the JVM's own threads, are rare and made outside the round. Without an agent, a dump is made in the round, at a sign of
a change. This module does not know what threads are for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from treadle import jvm
from treadle.engines.spark.agent.agents import Agents
from treadle.engines.spark.threads.change_hints import ChangeHints
from treadle.engines.spark.threads.thread_names import is_hidden, runs_task
from treadle.errors import TargetGone, TreadleError
from treadle.jvm import JavaThread
from treadle.jvm.natives import Natives

FRAMES = 8
"""Number of frames per stack. The sixth shows whether a thread waits for a shuffle or is blocked by one."""

PATIENCE = 0.02
"""Maximum seconds for which a round waits for a dump."""

Dump = list[JavaThread] | None
"""None if the process has ended."""


@dataclass
class _Known:
    """The threads of one process, and the state of reading them."""

    java: dict[int, JavaThread] = field(default_factory=dict)
    """Java threads, by Java's number."""
    own: list[JavaThread] = field(default_factory=list)
    """The JVM's own threads."""
    natives: Natives | None = None
    missing: set[int] = field(default_factory=set)
    """Numbers of reported threads without a known kernel id."""
    unseen: set[int] = field(default_factory=set)
    """Threads in `missing` that were not in the last dump either: they are starting or ending."""
    coming: Future[Dump] | None = None
    """A dump that is being made."""
    fresh: bool = False
    """Whether a dump has arrived since the last `look`."""
    renewed: bool = False
    """Whether the list of threads was built again since the last `look`."""
    followed: int = -1
    """The agent's `changes` up to which its reports are applied; -1 after a dump, which may be older than them."""
    sampled: int = -1
    """The agent's `sampled` up to which its stacks are applied."""
    names: list[tuple[str, int]] = field(default_factory=list)
    """(Name, kernel id) of all threads at the last comparison."""

    def alone(self, tid: int | None, told: Collection[int]) -> int | None:
        """Return `tid` unless another reported thread owns it."""
        others = {thread.tid for number, thread in self.java.items() if number in told}
        return None if tid in others else tid

    @property
    def all(self) -> list[JavaThread]:
        return [*self.java.values(), *self.own]


class ThreadTable:
    """The threads of the processes given to `look`."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._known: dict[int, _Known] = {}
        self._signs = ChangeHints()
        self._pool = ThreadPoolExecutor(8, "treadle-dump")
        self.dumped = -math.inf
        """When dumps were last requested."""
        self._dumps = 0
        self.stacks = 0
        """Grows with new stacks."""
        self.version = 0
        """Grows with each change of the threads or their names."""

    def close(self) -> None:
        self._pool.shutdown(wait=False)
        self._signs.close()

    def keep(self, pooled: Sequence[tuple[int, int]]) -> None:
        """Set the pooled threads whose short names are signs of a change; files of others are closed."""
        self._signs.keep(pooled)

    def signs(self, pids: Sequence[int], pooled: Sequence[tuple[int, int]]) -> list[object]:
        """Read signs of a change. If two readings are equal, nothing has changed, as far as visible without a dump."""
        for pid in pids:
            self._take(pid)
        silent = {pid for pid in pids if not self._is_told(pid)}
        signs = self._signs.read(silent, [thread for thread in pooled if thread[0] in silent]) if silent else []
        again = [object() for known in self._known.values() if known.missing - known.unseen]  # never equal
        return [*signs, *again, self._agents.generation, self._agents.sampled, self._dumps]

    def is_quiet(self, pids: Sequence[int]) -> bool:
        """True if agents report all these processes, and nothing is awaited: then only the agents can have news."""
        return self.is_told(pids) and not any(
            known.coming is not None or known.missing - known.unseen for known in self._known.values()
        )

    def is_told(self, pids: Sequence[int]) -> bool:
        """Whether agents report on all these processes."""
        return bool(pids) and all(map(self._is_told, pids))

    def ask_for_dumps(self, now: float, pids: Sequence[int]) -> bool:
        """Start dumps outside the round. False: without an agent's reports, dumps must be made in the round."""
        if not self.is_told(pids):
            return False
        self.dumped = now
        for pid in pids:
            self._begin(pid)
        return True

    def look(self, now: float, pids: Sequence[int]) -> dict[int, list[JavaThread]]:
        """Return the threads of the processes that still run.

        Wait `PATIENCE` seconds for needed dumps, except of new processes; only the first call waits for all.
        """
        first = not self._known
        if self._known.keys() != set(pids):
            self._known = {pid: self._known.get(pid) or _Known() for pid in pids}
            self.version += 1
        wanted = [pid for pid in pids if not (self._follow(pid) if self._is_told(pid) else self._known[pid].fresh)]
        if wanted:
            self.dumped = now
            dumps = {pid: self._begin(pid) for pid in wanted}
            wait([dump for pid, dump in dumps.items() if first or self._known[pid].java], None if first else PATIENCE)
        for pid in wanted:
            self._take(pid)
        for pid, known in self._known.items():
            self._settle(pid, known)
        return {pid: known.all for pid, known in self._known.items() if known.all}

    def _begin(self, pid: int) -> Future[Dump]:
        """Start a dump, unless one is being made."""
        known = self._known[pid]
        if known.coming is None:
            known.coming = self._pool.submit(_dump, pid)
        return known.coming

    def _is_told(self, pid: int) -> bool:
        """True if an agent reports a process's Java threads, and a dump has shown the JVM's own threads."""
        known = self._known.get(pid)
        return known is not None and bool(known.java) and self._agents.of(pid) is not None

    def _follow(self, pid: int) -> bool:
        """Apply the agent's reports; False if a dump is needed to find the kernel id of a thread."""
        known, agent = self._known[pid], self._agents.of(pid)
        assert agent is not None
        if not known.missing and known.followed == agent.changes:
            return True
        told = agent.threads
        if known.natives is None:
            known.natives = Natives(pid, known.java.values())
        java: dict[int, JavaThread] = {}
        missing: set[int] = set()
        for number, (name, address) in told.items():
            before = known.java.get(number)
            if before is None:
                tid = known.natives.find(address, name)
                if tid is None and number in known.missing:
                    tid = known.alone(known.natives.find(address), told)
                if tid is None:
                    missing.add(number)
                if not tid:
                    continue
                before = JavaThread(name, tid, "", (), number, address)
            java[number] = before if before.name == name else before._replace(name=name)
        again = missing & known.missing if known.natives.known else missing
        known.java, known.missing = java, missing
        known.renewed, known.followed = True, agent.changes
        known.unseen &= missing
        return not again - known.unseen

    def _settle(self, pid: int, known: _Known) -> None:
        """Apply new stacks from the agent, and count the version up if names have changed."""
        if known.renewed:
            names = [(thread.name, thread.tid) for thread in known.all]
            self.version += names != known.names
            known.names = names
        agent = self._agents.of(pid)
        if agent is None:
            known.followed = known.sampled = -1
        elif known.sampled != agent.sampled:
            for number, stack in agent.stacks.items():
                if number in known.java:
                    known.java[number] = known.java[number]._replace(state=stack.state, stack=stack.frames)
            self.stacks += 1
            known.sampled = agent.sampled
        known.fresh = known.renewed = False

    def _take(self, pid: int) -> None:
        """Take the result of a dump, if the dump is done."""
        known = self._known.get(pid)
        if known is not None and known.coming is not None and known.coming.done():
            coming, known.coming = known.coming, None
            try:
                self._note(pid, coming.result())
            except TreadleError:
                if not self._is_told(pid):  # else the next dump may succeed
                    raise

    def _note(self, pid: int, found: Dump) -> None:
        known = self._known[pid]
        if found is None:
            del self._known[pid]
            return
        known.java = {thread.number: thread for thread in found if thread.number and not is_hidden(thread.name)}
        known.own = [thread for thread in found if thread.number not in known.java]
        known.fresh = known.renewed = True
        known.followed = -1
        if known.natives is not None and not known.natives.known:
            known.natives = None  # this dump may reveal the offsets
        known.unseen = known.missing - known.java.keys()
        self._dumps += 1
        self.stacks += 1


def _dump(pid: int) -> Dump:
    try:
        return jvm.dump(pid, frames=FRAMES, stack_of=runs_task)
    except TargetGone:
        return None

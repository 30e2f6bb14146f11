"""Drops rows of streaming queries in a running, unmodified driver, and reads the progress of each query.

This module speaks the protocol of the agent in `java/treadle/shed`; others decide which share to keep. The agent puts a
filter above the sources in the plan of each micro-batch, but only while it hears from this process. If the connection
ends, or is silent because this process is stopped or hangs, queries keep all rows again from their next batch on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from treadle.engines.spark.agent.agents import call
from treadle.engines.spark.queries.progress import Progress
from treadle.errors import EngineError, TargetGone
from treadle.jars import Jar
from treadle.jvm import classes
from treadle.linux.files import bounded
from treadle.text import visible

log = logging.getLogger("treadle.attach")

ANSWER = 5.0
"""Maximum seconds for an answer: in the JVM, the agent waits only for the garbage collector."""
LONGEST = 1 << 26
"""Maximum bytes of an answer: the first one has up to a hundred reports of each query."""
PROTOCOL = 2
_MANIFEST = "Agent-Class: treadle.shed.Shedder\n"


class Report(NamedTuple):
    """What an agent reports of a query: its name and trigger, Spark's progress reports, and the rows at the filter."""

    run: str
    name: str
    real_time: bool
    seen: int
    """Rows that reached the filter since the agent was loaded, in finished batches with a filter."""
    kept: int
    progress: tuple[Progress, ...]
    """Spark's progress reports since the last `look`."""
    ends: bool = False
    """Whether its trigger ends the query when all available rows are read (AvailableNow, Once)."""


class Shedder:
    """The agent in one driver. The constructor loads it.

    While the agent receives no call for `patience` seconds, all queries keep all of their rows; the shares that `keep`
    has set hold again from the next call on.
    """

    def __init__(self, pid: int, patience: float) -> None:
        self.pid = pid
        self.patience = patience
        self.suspended = 0.0
        """Seconds: the longest time without a call before the last `look`, if all rows were kept because of it; else
        0."""
        self._skipped = 0
        self._connection = call(pid, jar())
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection: all queries keep all rows again."""
        self._connection.close()

    def keep(self, parts: Mapping[str, float]) -> None:
        """Set, for each run in `parts`, the share of its rows that the query keeps from its next batch on."""
        self._send("".join(f"keep\t{run}\t{part:.6f}\n" for run, part in parts.items()))

    def look(self) -> list[Report]:
        """Return reports of all active queries."""
        self._send(f"look\t{self.patience * 1e3:.0f}\n")
        said = parse(self._answer(b"\n\n", b"\n"))
        self.suspended = said.silent
        if said.odd and not self._skipped:
            log.warning("an invalid report of process %d is ignored: %s", self.pid, visible(said.odd[0]))
        self._skipped += len(said.odd)
        return said.reports

    def _check(self) -> None:
        """Check the agent's version: a loaded class stays even when its jar is replaced."""
        if self._answer(b"\n") != b"shed\t%d\n" % PROTOCOL:
            raise EngineError(
                "has the agent of another version of Treadle, or of Spark",
                where=f"process {self.pid}",
                remedy="restart the application, with the Spark that Treadle was installed with",
            )

    def _answer(self, end: bytes, whole: bytes = b"") -> bytes:
        """Receive an answer that ends with `end`, or that is exactly `whole`."""
        said, late = bytearray(), time.monotonic() + ANSWER
        try:
            while not (said.endswith(end) or (whole and said == whole)):
                some = bounded.piece(self._connection, late, ANSWER)
                if not some:
                    raise TargetGone("the agent has disconnected", where=f"process {self.pid}")
                said += some
                if len(said) > LONGEST:
                    raise bounded.too_long(LONGEST)
        except OSError as error:
            raise TargetGone("the agent has disconnected", where=f"process {self.pid}") from error
        except (bounded.TimeOverError, bounded.TooLongError) as error:
            raise EngineError(f"the agent {error.message}", where=f"process {self.pid}") from error
        return bytes(said)

    def _send(self, text: str) -> None:
        try:
            self._connection.settimeout(ANSWER)
            self._connection.sendall(text.encode())
        except OSError as error:
            raise TargetGone("the agent has disconnected", where=f"process {self.pid}") from error


def jar() -> Jar:
    """The agent's jar, compiled on first use."""
    sources = Path(str(resources.files(__package__) / "java" / "treadle" / "shed"))
    return classes.spark_jar("treadle-shed", sources, manifest=_MANIFEST)


class Said(NamedTuple):
    """The agent's answer to `look`, parsed."""

    reports: list[Report]
    silent: float
    """As `Shedder.suspended`."""
    odd: list[str]
    """The errors of lines that were left out, as they can't be read."""


def parse(said: bytes) -> Said:
    """Parse an answer. A line that can't be read is left out, so that it does not affect other queries."""
    silent, odd = 0.0, []
    queries: list[Report] = []
    new: dict[str, list[Progress]] = {}
    for line in filter(None, said.decode(errors="replace").split("\n")):
        what, *fields = line.split("\t")
        try:
            if what == "silent":
                silent = int(fields[0]) / 1e3
            elif what == "progress":
                new.setdefault(fields[0], []).append(Progress.parse(fields[1]))
            else:
                queries.append(_query(fields))
        except (EngineError, ValueError, IndexError, OverflowError) as error:
            odd.append(str(error))
    return Said([each._replace(progress=tuple(new.get(each.run, ()))) for each in queries], silent, odd)


def _query(fields: list[str]) -> Report:
    run, identity, trigger, seen, kept, name = fields
    if not 0 <= int(kept) <= int(seen) < 2**63:
        raise ValueError(f"{kept} of {seen} rows were kept")
    return Report(
        run=run,
        name=name or f"query-{identity[:8]}",
        real_time=trigger == "real-time",
        seen=int(seen),
        kept=int(kept),
        progress=(),
        ends=trigger == "ends",
    )

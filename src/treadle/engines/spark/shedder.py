"""Drops rows of streaming queries in a running driver, which is not changed for it, and reads how far each query is.

It knows the protocol of the agent in `java/treadle/shed`, not what part is right.
The agent puts a filter above the sources in the plan of each micro-batch. It does so only while it hears from this
process: queries keep all of their rows again, from their next batch on, when the connection ends, and also while
nothing comes through it, as from a process that is stopped or hangs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from treadle import classes
from treadle.engines.spark.agent import call
from treadle.engines.spark.progress import Progress
from treadle.errors import EngineError, TargetGone
from treadle.jars import Jar
from treadle.text import visible

log = logging.getLogger("treadle.attach")

ANSWER = 5.0
"""Seconds: it has to wait for nobody in the JVM but the collector."""
MOST = 1 << 28
"""Bytes of an answer: the first has up to a hundred reports of each query."""
PROTOCOL = 2
_MANIFEST = "Agent-Class: treadle.shed.Shedder\n"


class Report(NamedTuple):
    """A query, up to now."""

    run: str
    name: str
    real_time: bool
    seen: int
    """Rows that came to the filter since the agent was loaded, in batches that had one and are over."""
    kept: int
    progress: tuple[Progress, ...]
    """Since it was last asked."""
    ends: bool = False
    """Whether its trigger ends it when it has read what was there (AvailableNow, Once)."""


class Shedder:
    """In one driver. Making it loads the agent.

    While the agent has not been asked by `look` for `patience` seconds, all queries keep all of their rows; what
    `keep` has set holds again from the next call on.
    """

    def __init__(self, pid: int, patience: float) -> None:
        self.pid = pid
        self.patience = patience
        self.suspended = 0.0
        """Seconds for which the agent had heard nothing, and so dropped nothing, up to the last `look`; else 0."""
        self._skipped = 0
        self._connection = call(pid, jar())
        self._connection.settimeout(ANSWER)
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """All queries keep all of their rows again."""
        self._connection.close()

    def keep(self, parts: Mapping[str, float]) -> None:
        """By run the part of its rows that a query keeps, from its next batch on."""
        self._send("".join(f"keep\t{run}\t{part:.6f}\n" for run, part in parts.items()))

    def look(self) -> list[Report]:
        """All queries that are active."""
        self._send(f"look\t{self.patience * 1e3:.0f}\n")
        return self._reports(self._read().decode(errors="replace").split("\n"))

    def _read(self) -> bytes:
        """An answer, up to the empty line that ends it."""
        said = bytearray()
        limit = time.monotonic() + ANSWER
        try:
            while not (said == b"\n" or said.endswith(b"\n\n")):
                self._connection.settimeout(max(0.001, limit - time.monotonic()))
                some = self._connection.recv(1 << 16)
                if not some:
                    raise TargetGone("the agent is gone", where=f"process {self.pid}")
                said += some
                if len(said) > MOST:
                    raise EngineError(f"the agent says more than {MOST >> 20} MiB", where=f"process {self.pid}")
        except ConnectionError as error:
            raise TargetGone("the agent is gone", where=f"process {self.pid}") from error
        except OSError as error:
            raise EngineError(f"the agent does not answer: {error}", where=f"process {self.pid}") from error
        return bytes(said)

    def _reports(self, lines: list[str]) -> list[Report]:
        """What the lines say. One that can't be read is left out, and the first such is logged."""
        self.suspended = 0.0
        queries: list[Report] = []
        new: dict[str, list[Progress]] = {}
        for line in filter(None, lines):
            what, *fields = line.split("\t")
            try:
                if what == "silent":
                    self.suspended = int(fields[0]) / 1e3
                elif what == "progress":
                    new.setdefault(fields[0], []).append(Progress.parse(fields[1]))
                else:
                    queries.append(_query(fields))
            except (EngineError, ValueError, IndexError) as error:
                self._skipped += 1
                if self._skipped == 1:
                    log.warning("a report of process %d is left out: %s", self.pid, visible(str(error)))
        return [each._replace(progress=tuple(new.get(each.run, ()))) for each in queries]

    def _check(self) -> None:
        """A class that is loaded stays, also when its jar is replaced: it has to say what it speaks."""
        said = b""
        while not said.endswith(b"\n") and len(said) < 64 and (some := self._connection.recv(64)):
            said += some
        if said != b"shed\t%d\n" % PROTOCOL:
            raise EngineError(
                "has the agent of another version of Treadle, or of Spark",
                where=f"process {self.pid}",
                remedy="start the application anew, with the Spark that Treadle was installed with",
            )

    def _send(self, text: str) -> None:
        try:
            self._connection.sendall(text.encode())
        except OSError as error:
            raise TargetGone("the agent is gone", where=f"process {self.pid}") from error


def jar() -> Jar:
    """The agent's jar, compiled on first use."""
    sources = Path(str(resources.files(__package__) / "java" / "treadle" / "shed"))
    return classes.spark_jar("treadle-shed", sources, manifest=_MANIFEST)


def _query(fields: list[str]) -> Report:
    run, identity, trigger, seen, kept, name = fields
    if not 0 <= int(kept) <= int(seen) < 2**63:
        raise ValueError(f"of {seen} rows {kept} were kept")
    return Report(
        run=run,
        name=name or f"query-{identity[:8]}",
        real_time=trigger == "real-time",
        seen=int(seen),
        kept=int(kept),
        progress=(),
        ends=trigger == "ends",
    )

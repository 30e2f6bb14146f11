"""Drops rows of streaming queries in a running driver, which is not changed for it, and reads how far each query is.

It knows how the agent in `java/treadle/shed` is asked and told, not what part is right.
The agent puts a filter above the sources in the plan of each micro-batch, and ends with its connection: whatever
happens to this process, queries keep all of their rows again from their next batch on.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from treadle import classes
from treadle.engines.spark.agent import call
from treadle.engines.spark.progress import Progress
from treadle.errors import EngineError, TargetGone
from treadle.jars import Jar

ANSWER = 5.0
"""Seconds: it has to wait for nobody in the JVM but the collector."""
PROTOCOL = 1
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


class Shedder:
    """In one driver. Making it loads the agent."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
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
        self._send("look\n")
        said = bytearray()
        try:
            while not (said == b"\n" or said.endswith(b"\n\n")):
                some = self._connection.recv(1 << 16)
                if not some:
                    raise TargetGone("the agent is gone", where=f"process {self.pid}")
                said += some
        except ConnectionError as error:
            raise TargetGone("the agent is gone", where=f"process {self.pid}") from error
        except OSError as error:
            raise EngineError(f"the agent does not answer: {error}", where=f"process {self.pid}") from error
        return _reports([line.split("\t") for line in said.decode().split("\n") if line])

    def _check(self) -> None:
        """A class that is loaded stays, also when its jar is replaced: it has to say what it speaks."""
        said = b""
        while not said.endswith(b"\n") and (some := self._connection.recv(64)):
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


def _reports(lines: list[list[str]]) -> list[Report]:
    new: dict[str, list[Progress]] = {}
    for what, run, *rest in lines:
        if what == "progress":
            new.setdefault(run, []).append(Progress.parse(rest[0]))
    return [
        Report(
            run=run,
            name=name or f"query-{identity[:8]}",
            real_time=real_time == "true",
            seen=int(seen),
            kept=int(kept),
            progress=tuple(new.get(run, ())),
        )
        for run, identity, real_time, seen, kept, name in (rest for what, *rest in lines if what == "query")
    ]

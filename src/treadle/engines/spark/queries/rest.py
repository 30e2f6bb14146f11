"""The streaming query of each stage: as the agent reports it, or from the REST interface of Spark's UI.

A streaming query's jobs have its runId as their job group and its name in their description, so stage -> job -> query.
Without an agent, a thread asks the UI when an unknown stage appears, and never again for what it has answered. This
module knows nothing of the application's threads or of metrics.
"""

from __future__ import annotations

import http.client
import io
import logging
import re
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from treadle.durations import Backoff
from treadle.engines.spark.queries import pages, plan
from treadle.engines.spark.queries.plan import Plan
from treadle.errors import ConfigError, EngineError
from treadle.linux.files import bounded
from treadle.linux.files.bounded import decoded
from treadle.text import excerpt

Item = TypeVar("Item")
log = logging.getLogger("treadle.engines.spark")

TIMEOUT = 30.0
"""Maximum seconds for an answer of the UI: the first one takes 1.5 s of CPU, and the UI may get little CPU."""
LONGEST = 1 << 23
"""Maximum bytes of an answer: one with a thousand jobs has an eighth of it."""
REMEMBERED = 4096
"""Maximum number of remembered stages."""
BACKOFF = Backoff(0.05, 5.0)
"""Pauses in seconds before Spark is asked again for the same unknown stage."""


class Job(NamedTuple):
    """A job of a streaming query, or another job (`run` is empty then)."""

    number: int
    """The number of the job's first stage: it grows with every job."""
    run: str
    query: str
    query_id: str
    stages: tuple[int, ...]
    """Stage ids, upstream stages first: that is the order in which Spark numbers them."""
    execution: int = -1
    """The id of the job's SQL execution."""
    submitted: float = 0.0
    """The time of submission, in seconds since the epoch; 0 if unknown."""


class Rest:
    """The REST interface at an address like `http://127.0.0.1:4040`."""

    def __init__(self, address: str, *, timeout: float = TIMEOUT) -> None:
        self.address = address.rstrip("/")
        self.application = ""
        """The id of the application to ask for; if empty, the only application that the UI shows."""
        try:
            parts = urlsplit(self.address if "//" in self.address else f"http://{self.address}")
            self._host, self.port, self._root = parts.hostname or "", parts.port or 80, parts.path
        except ValueError as error:  # a port beyond 65535, or half of an IPv6 address
            remedy = "write it as http://host:4040"
            raise ConfigError(
                f"is not the address of a UI: {error}", where=f"'{self.address}'", remedy=remedy
            ) from None
        self._secure = parts.scheme == "https"
        self._timeout = timeout

    def get(self, path: str) -> Any:
        """Return the parsed JSON that the REST interface answers for a path."""
        text = self.page(f"api/v1/{path}")
        try:
            return decoded(text)
        except EngineError as error:
            raise self._trouble(f"{error.message} to {path}") from error

    def page(self, path: str) -> str:
        """Return a page of the UI."""
        end = time.monotonic() + self._timeout
        try:
            try:
                answer = self._ask(path, end)
            except (
                ConnectionResetError,
                BrokenPipeError,
            ):  # a UI short of CPU closes connections that it has not served
                answer = self._ask(path, end)
        except bounded.TimeOverError as error:
            raise self._trouble(f"does not answer within {self._timeout:g} s") from error
        except EngineError as error:
            raise self._trouble(error.message) from error
        except (OSError, http.client.HTTPException, ValueError, OverflowError) as error:  # also for nonsensical sizes
            raise self._trouble(f"does not answer: {excerpt(str(error))}") from error
        if answer.status == http.client.NOT_FOUND:
            raise _NoPageError(
                f"has no {path}", where=f"Spark's UI at {self.address}", remedy="check that this is Spark's UI"
            )
        if answer.status != http.client.OK:
            raise self._trouble(f"answers {answer.status} {excerpt(answer.reason)} to {path}")
        return answer.text

    def _ask(self, path: str, end: float) -> Answer:
        """Send one request, on a connection of its own: on a kept one, delayed ACKs cost 40 ms."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        with closing(kind(self._host, self.port, timeout=max(end - time.monotonic(), 0.001))) as connection:
            connection.request("GET", f"{self._root}/{path}", headers={"Connection": "close"})
            return _answer(_Bounded(connection.sock, end, self._timeout))

    def applications(self) -> list[tuple[str, str]]:
        """Return (id, name) of the applications that the UI shows: one, unless it is a history server."""
        return self._understood(self.get("applications"), lambda each: (str(each["id"]), str(each["name"])))

    def title(self) -> str:
        """The name of the application."""
        try:
            name = pages.title(self.page(pages.STAGES))
        except _NoPageError:
            name = ""
        shown = self.applications()[:1] if not name else []
        return shown[0][1] if shown else name

    def running_jobs(self) -> list[Job]:
        """The jobs that run now."""
        return self._understood(self.get(f"{self._path()}/jobs?status=running"), _job)

    def running_batches(self) -> list[Job]:
        """Return the running jobs of streaming queries, from a page: this is fast, but without their SQL executions."""
        try:
            found = pages.batches(self.page(pages.STAGES))
        except _NoPageError:
            return []
        return [job for batch in found if (job := _job(batch._asdict())).run]

    def plan(self, execution: int) -> Plan | None:
        """Return the plan of a SQL execution; None if there is none that can be read."""
        path = f"{self._path()}/sql/{execution}?details=false&planDescription=true"
        said = self.get(path)
        return plan.parse(str(said.get("planDescription", ""))) if isinstance(said, dict) else None

    def _path(self) -> str:
        if not self.application:
            shown = self.applications()
            if len(shown) != 1:
                raise self._trouble(f"shows {len(shown)} applications, not one")
            self.application = shown[0][0]
        return f"applications/{self.application}"

    def _understood(self, said: Any, read: Callable[[Any], Item]) -> list[Item]:
        """Parse each element of a list; an EngineError if that fails."""
        try:
            return [read(each) for each in said]
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise self._trouble(f"sent an answer that can't be parsed: {excerpt(repr(error))}") from error

    def _trouble(self, what: str) -> EngineError:
        return EngineError(what, where=f"Spark's UI at {self.address}", remedy="see whether it opens in a browser")


class Answer(NamedTuple):
    """An answer over HTTP."""

    status: int
    reason: str
    text: str


class _Bounded(io.RawIOBase):
    """The bytes that arrive on a connection: at most `LONGEST`, and until a given time."""

    def __init__(self, connection: socket.socket, end: float, seconds: float) -> None:
        self._connection, self._end, self._seconds = connection, end, seconds
        self._came = 0

    def makefile(self, _: str) -> io.BufferedReader:
        """Return a reader. `http.client` calls this method, as it would on a socket."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        some = bounded.piece(self._connection, self._end, self._seconds, len(room))
        self._came += len(some)
        if self._came > LONGEST:
            raise bounded.too_long(LONGEST)
        room[: len(some)] = some
        return len(some)


def _answer(sent: Any) -> Answer:
    """Read an answer in pieces: to read it at once, `http.client` would allocate the length that the header claims."""
    with http.client.HTTPResponse(sent, method="GET") as answer:
        answer.begin()
        text = b"".join(iter(lambda: answer.read(bounded.PIECE), b""))
        return Answer(answer.status, answer.reason, text.decode(errors="replace"))


class _NoPageError(EngineError):
    """The UI answers, but has no such page."""


_DESCRIPTION = re.compile(
    r"(?:(?P<name>.*)\n)?id = (?P<id>[0-9a-f-]+)\nrunId = (?P<run>[0-9a-f-]+)\nbatch = [^\n]*\Z", re.DOTALL
)
_EXECUTION = re.compile(r"-execution-root-id-(\d+)$")


def job(description: str, stages: Iterable[int], execution: int, submitted: float = 0.0) -> Job:
    """Return a job from its description, which has the name, id and runId of a streaming query."""
    found = _DESCRIPTION.match(description)
    numbers = tuple(sorted(stages))
    return Job(
        numbers[0] if numbers else -1,
        found["run"] if found else "",
        (found["name"] or "") if found else "",
        found["id"] if found else "",
        numbers,
        execution,
        submitted,
    )


def _job(said: dict[str, Any]) -> Job:
    roots = [match[1] for tag in said.get("jobTags", ()) if (match := _EXECUTION.search(str(tag)))]
    stages = map(int, said["stageIds"] if "stageIds" in said else said["stages"])
    submitted = _seconds(str(said.get("submissionTime", "")))
    return job(str(said.get("description", "")), stages, int(roots[0]) if roots else -1, submitted)


def _seconds(time: str) -> float:
    """Convert Spark's time format to seconds since the epoch; 0 if that fails."""
    try:
        return datetime.strptime(time, "%Y-%m-%dT%H:%M:%S.%fGMT").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


class Directory:
    """A cache of stage -> job and plan. It may be read by one thread; its own background thread asks Spark."""

    def __init__(self, rest: Rest, *, patience: float = 0.02) -> None:
        self._rest = rest
        self._patience = patience
        self._jobs: OrderedDict[int, Job] = OrderedDict()
        self._plans: OrderedDict[tuple[str, int], Plan] = OrderedDict()  # by run and number of stages
        self._missing: dict[int, tuple[int, float]] = {}  # stage -> how often asked, when to ask again
        self._changed = threading.Condition()
        self._wanted = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._silent = False
        self._warm = False
        self._shuffles: Mapping[int, int] = {}
        self.generation = 0
        """Grows with every new job or plan."""
        self.told = False
        """Whether an agent reports all jobs, so that Spark's UI is not asked."""

    def job(self, stage: int) -> Job | None:
        """Return the job of a stage; None if it is unknown."""
        return self._jobs.get(stage)

    def plan(self, job: Job) -> Plan:
        """Return the plan of a job; a plain chain of its stages while it is unknown."""
        return self._plans.get((job.run, len(job.stages))) or plan.chain(len(job.stages))

    def has_plan(self, job: Job) -> bool:
        """Whether the plan of a job was read from Spark, even if it could not be parsed."""
        return (job.run, len(job.stages)) in self._plans

    def hop(self, shuffle: int) -> tuple[Job, int] | None:
        """Return a shuffle's job and the position of the stage that writes it; None if no agent has reported it."""
        stage = self._shuffles.get(shuffle)
        job = self._jobs.get(stage) if stage is not None else None
        return (job, job.stages.index(stage)) if job is not None and stage is not None else None

    def tell(self, jobs: Collection[Job], shuffles: Mapping[int, int], plans: Mapping[int, str]) -> None:
        """Add all running jobs that an agent has reported. From then on Spark's UI is not asked."""
        self.told, self._shuffles = True, shuffles
        found: dict[tuple[str, int], Plan] = {}
        for job in jobs:
            key = (job.run, len(job.stages))
            if job.run and job.execution in plans and key not in self._plans and key not in found:
                found[key] = _fitting(job, partial(plan.parse, plans[job.execution]))
        self._note(jobs, found)

    def learn(self, stages: Collection[int]) -> bool:
        """Ask Spark for unknown stages in the background, and wait a short time for the answer.

        False: some stages are still unknown.
        """
        now = time.monotonic()
        new = [stage for stage in stages if stage not in self._jobs]
        if self.told:
            return not new
        due = [stage for stage in new if self._missing.get(stage, (0, 0.0))[1] <= now]
        if not due or self._closed:
            return not new
        with self._changed:
            for stage in due:
                asked = self._missing.get(stage, (0, 0.0))[0] + 1
                self._missing[stage] = (asked, now + BACKOFF.pause(asked))
            self._wanted = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="treadle-spark-rest", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return self._changed.wait_for(lambda: all(stage in self._jobs for stage in due), self._patience)

    def close(self) -> None:
        """Stop asking Spark."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._closed)
                if self._closed:
                    return
                self._wanted = False
            try:
                self._ask()
            except Exception as error:  # also an unexpected one: later requests may succeed
                if not self._silent:
                    foreseen = isinstance(error, EngineError)
                    log.warning(
                        "new stages can't be distinguished: %s",
                        error,
                        exc_info=not foreseen,
                        extra={"error": str(error)},
                    )
                self._silent = True
            else:
                self._silent = False

    def _ask(self) -> None:
        """Ask for the running jobs and their plans, and store both together, so that names of operators stay the same.

        Until the REST interface has answered once, first store the jobs of a page, which is faster.
        """
        if not self._warm:
            self._note(self._rest.running_batches(), {})
        jobs = self._rest.running_jobs()
        self._warm = True
        plans: dict[tuple[str, int], Plan] = {}
        for job in jobs:
            key = (job.run, len(job.stages))
            if job.run and job.execution >= 0 and key not in self._plans and key not in plans:
                plans[key] = _fitting(job, partial(self._rest.plan, job.execution))
        self._note(jobs, plans)

    def _note(self, jobs: Collection[Job], plans: dict[tuple[str, int], Plan]) -> None:
        with self._changed:
            self._plans.update(plans)
            new = {stage: job for job in jobs for stage in job.stages if self._jobs.get(stage) != job}
            self._jobs.update(new)
            for stage in new:
                self._missing.pop(stage, None)
            self._forget()
            self.generation += bool(new or plans)
            self._changed.notify_all()

    def _forget(self) -> None:
        while len(self._jobs) > REMEMBERED:
            self._jobs.popitem(last=False)
        while len(self._plans) > REMEMBERED // 8:
            self._plans.popitem(last=False)
        while len(self._missing) > REMEMBERED:
            del self._missing[next(iter(self._missing))]


def _fitting(job: Job, read: Callable[[], Plan | None]) -> Plan:
    """Return the plan of a job if it has as many stages as the job; else a plain chain of stages."""
    try:
        found = read()
    except Exception as error:  # an unexpected text costs only the names of its operators
        log.debug("the plan of execution %d can't be read", job.execution, exc_info=error)
        found = None
    return found if found is not None and len(found.stages) == len(job.stages) else plan.chain(len(job.stages))

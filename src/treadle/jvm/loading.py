"""Loads an agent into a running JVM, also in a container, from a jar at a path that the JVM can read.

If necessary the jar is copied into the JVM's /tmp. The agent is loaded by the attach command `load` of HotSpot.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from treadle.errors import EngineError, RightsError, TreadleError
from treadle.jars import Jar
from treadle.jvm.attach import TIMEOUT, execute
from treadle.jvm.process import facts_of
from treadle.linux.files.target_files import TargetFolder, temporary_folder
from treadle.text import excerpt


def load(pid: int, jar: Jar, options: str, *, timeout: float = TIMEOUT) -> None:
    """Load the agent of this jar into the process, and start it with these options."""
    said = execute(pid, "load", "instrument", "false", f"{_within_reach(pid, jar)}={options}", timeout=timeout)
    if said.split() != ["return", "code:", "0"]:
        remedy = "the standard error of that JVM says why"
        raise EngineError(f"the agent can't be loaded: {excerpt(said)}", where=f"process {pid}", remedy=remedy)


@contextmanager
def file(pid: int, contents: bytes, suffix: str) -> Iterator[str]:
    """A file in the JVM's /tmp, removed at the end of the block. Yields the path as the JVM sees it."""
    name = f"treadle-{secrets.token_hex(8)}{suffix}"
    with _reached(pid) as folder:
        folder.put(name, contents)
    try:
        yield f"/tmp/{name}"
    finally:
        with suppress(OSError, TreadleError), temporary_folder(pid) as folder:
            folder.remove(name)


def _within_reach(pid: int, jar: Jar) -> str:
    """A path at which the JVM can read the jar. A copy is never removed, since the JVM continues to read it."""
    user = facts_of(pid).uid
    is_here = os.path.samestat(os.stat(f"/proc/{pid}/root/"), os.stat("/"))
    if is_here and user == os.geteuid() and jar.is_out_of_reach and not {"=", ","} & set(str(jar.path)):
        return str(jar.path)
    name = f"treadle-{hashlib.sha256(jar.contents).hexdigest()[:12]}-{user}.jar"
    with _reached(pid) as folder:
        if _contents(folder, name, len(jar.contents)) != jar.contents:
            folder.remove(name, with_force=True)
            folder.put(name, jar.contents)
    return f"/tmp/{name}"


def _contents(folder: TargetFolder, name: str, most: int) -> bytes | None:
    with suppress(OSError):
        return folder.read(name, most)
    return None


@contextmanager
def _reached(pid: int) -> Iterator[TargetFolder]:
    """The JVM's /tmp, for writing; the error says why that is not possible."""
    try:
        with temporary_folder(pid) as folder:
            yield folder
    except PermissionError as error:
        raise RightsError("its /tmp can't be written", where=f"process {pid}", remedy="run as root") from error
    except OSError as error:
        remedy = "make room in its /tmp"
        raise EngineError(
            f"its /tmp can't be written: {error.strerror}", where=f"process {pid}", remedy=remedy
        ) from error

"""Loading an agent into a running JVM: its jar where the JVM sees it and may read it, also in a container.

It knows HotSpot's `load` and files in another process's /tmp; not what an agent does.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from treadle.errors import EngineError, RightsError
from treadle.observe.jvm.attach import TIMEOUT, execute


def load(pid: int, jar: Path, options: str, *, timeout: float = TIMEOUT) -> None:
    """Load it, and have it begin with these options."""
    said = execute(pid, "load", "instrument", "false", f"{_within_reach(pid, jar)}={options}", timeout=timeout)
    if said.split() != ["return", "code:", "0"]:
        remedy = "the standard error of that JVM says why"
        what = f"the agent can't be loaded: {' '.join(said.split())}"
        raise EngineError(what, where=f"process {pid}", remedy=remedy)


def _within_reach(pid: int, jar: Path) -> str:
    """The path by which the JVM can read it. A copy stays: the JVM goes on reading it."""
    process = os.stat(f"/proc/{pid}")
    is_here = os.path.samestat(os.stat(f"/proc/{pid}/root/"), os.stat("/"))
    if is_here and process.st_uid == os.geteuid() and not {"=", ","} & set(str(jar)):
        return str(jar)
    contents = jar.read_bytes()
    wanted = hashlib.sha256(contents).hexdigest()
    path = f"/tmp/treadle-{wanted[:12]}-{process.st_uid}.jar"
    with suppress(OSError):
        file = os.open(f"/proc/{pid}/root{path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(file, "rb") as stream:
            is_safe = os.fstat(file).st_uid in (os.geteuid(), process.st_uid)
            if is_safe and hashlib.file_digest(stream, "sha256").hexdigest() == wanted:
                return path
    return put(pid, contents, path)


def put(pid: int, contents: bytes, path: str) -> str:
    """Write a file into the JVM's /tmp, complete or not at all, and give it to the JVM's user."""
    target = f"/proc/{pid}/root{path}"
    try:
        file, name = tempfile.mkstemp(prefix=".treadle-", dir=os.path.dirname(target))
        try:
            with open(file, "wb") as stream:
                stream.write(contents)
                process = os.stat(f"/proc/{pid}")
                os.fchown(file, process.st_uid, process.st_gid)
            os.rename(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except PermissionError as error:
        raise RightsError("its /tmp can't be written", where=f"process {pid}", remedy="run as root") from error
    except OSError as error:
        remedy = "make room in its /tmp"
        raise EngineError(
            f"its /tmp can't be written: {error.strerror}", where=f"process {pid}", remedy=remedy
        ) from error
    return path

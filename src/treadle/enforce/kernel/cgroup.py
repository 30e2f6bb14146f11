"""CPU cgroups: their paths and names, the threads in them, and how to make, remove and clean up groups.

It handles cgroup v1 and v2 (threaded mode); weights and quotas are set by the knobs in `groups`. Lachesis section 5.3
groups threads by query and operator, so a group's name may have parts: "query/operator" is a group inside "query".
"""

from __future__ import annotations

import errno
import logging
import os
import time
from contextlib import suppress
from typing import Any, NoReturn

from treadle.enforce.kernel.guard import called, gone
from treadle.enforce.kernel.mounts import Mount, cpu_group, find_mount, group_of
from treadle.enforce.kernel.names import escape, escape_parts, unescape
from treadle.errors import ConfigError, EngineError, RightsError, TargetGone, TreadleError
from treadle.linux.files.open_files import open_file
from treadle.model import ThreadRef

__all__ = ["RIGHTS", "Cgroups", "Mount", "cpu_group", "find_mount"]

log = logging.getLogger("treadle.enforce")

BASE = "treadle"
REALTIME = "treadle-rt"
"""The name of the parent of all groups for real-time threads, see `budget`. Each child is named after a home group."""
RIGHTS = "run as root, or have the cgroup delegated to your user"
TRIES = 10
"""Number of attempts to remove a group that still has threads."""
PAUSE = 0.01
"""Seconds by which the wait between two of these attempts grows each time."""


class Cgroups:
    """The groups below `<parent>/<base>`. Only one instance of this class may use a base at a time.

    A group's name is relative to the base or, with a leading "/", the path of any group of the system, as in
    /proc/<pid>/cgroup. `parent` is the root in v1. In v2 threads can't leave the cgroup of their process, so `parent`
    must be that cgroup: see `for_process`. `controlled` says whether v2's cpu controller was on in `parent` before we
    made groups. It is one of the `options`, so a process that cleans up after a kill knows whether to switch it off.
    """

    def __init__(
        self,
        base: str = BASE,
        *,
        parent: str | None = None,
        mount: Mount | None = None,
        controlled: bool | None = None,
    ) -> None:
        mount = find_mount() if mount is None else mount
        if mount is None:
            remedy = "mount the cpu controller of cgroup v1 or v2, or use the knob 'nice'"
            raise EngineError("this system has no CPU groups", where="cgroup", remedy=remedy)
        self.mount = mount
        self.parent = mount.root if parent is None else parent
        self.base = self.join(self.parent, escape(base))
        self.controlled = self._is_controlled() if controlled is None else controlled
        self.options: dict[str, Any] = {"base": base, "parent": self.parent, "controlled": self.controlled}
        self._names: dict[str, str] = {}

    @classmethod
    def for_process(cls, pid: int, base: str = BASE) -> Cgroups:
        """Make groups to which the threads of the process `pid` can be moved."""
        found = cls(base)
        if found.version == 1:
            return found
        group = group_of(f"/proc/{pid}/cgroup", found.mount)
        while found.type_of(group) not in ("domain", "domain threaded", "") and group != found.mount.root:
            group = cls.split(group)[0]
        return cls(base, parent=group, mount=found.mount)

    @property
    def version(self) -> int:
        return self.mount.version

    def path(self, group: str) -> str:
        """The path of the group with this name."""
        if group.startswith("/"):
            return group
        if not group:
            raise ConfigError("a group has no name", where="cgroup", remedy="name it")
        path = self.join(self.base, escape_parts(group))
        self._names[path] = group
        return path

    def name(self, path: str) -> str:
        """The name of the group at this path: the inverse of the method `path`."""
        if not path.startswith(f"{self.base}/"):
            return path
        return self._names.get(path) or unescape(path[len(self.base) + 1 :])

    def of(self, thread: ThreadRef) -> str:
        """The path of a thread's home group, also while the thread is in a group for real-time threads."""
        return self.home(self.place(thread))

    def place(self, thread: ThreadRef) -> str:
        """The path of the group that a thread is in."""
        try:
            return group_of(f"/proc/{thread.pid}/task/{thread.tid}/cgroup", self.mount)
        except (FileNotFoundError, ProcessLookupError):
            gone(thread)

    def home(self, path: str) -> str:
        """The home of the threads in the group `path`: the group itself, unless it is one for real-time threads."""
        around, last = self.split(path)
        return unescape(last) if self.split(around)[1] == REALTIME else path

    @property
    def realtime(self) -> str:
        """The parent of the groups for real-time threads."""
        return self.join(self.parent, REALTIME)

    def exists(self, path: str) -> bool:
        return os.path.isdir(self.directory(path))

    def make(self, path: str) -> None:
        """Make a group of ours, and its missing parents, unless it exists."""
        if self.exists(path):
            return
        above = self.split(path)[0]
        if above != self.parent:
            self.make(above)
        self._add(path)
        if self.version == 2:
            try:
                self._make_threaded(path, above)
            except TreadleError:
                self.remove(path)
                raise

    def remove(self, path: str) -> bool:
        """Remove a group without threads; return whether the group is gone."""
        try:
            self._drop(path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def move(self, thread: ThreadRef, path: str) -> None:
        """Move a thread to an existing group."""
        try:
            self._put(path, self._members, str(thread.tid))
        except ProcessLookupError:
            gone(thread)
        except OSError as error:
            self._refused(error, path, f"{called(thread)} can't be moved to it")

    def threads(self, path: str) -> list[int]:
        """The ids of all threads in a group."""
        return [int(line) for line in self.read(path, self._members).split()]

    def children(self, path: str) -> list[str]:
        """The direct children of a group."""
        try:
            with os.scandir(self.directory(path)) as entries:
                return sorted(self.join(path, entry.name) for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []

    def read(self, path: str, file: str) -> str:
        """Read a file of a group; `TargetGone` if there is no such group."""
        try:
            with open(f"{self.directory(path)}/{file}", opener=open_file) as opened:
                return opened.read().strip()
        except OSError as error:
            self._refused(error, path, f"{file} can't be read")

    def write(self, path: str, file: str, text: str) -> None:
        """Write a file of a group; `TargetGone` if there is no such group."""
        try:
            self._put(path, file, text)
        except OSError as error:
            self._refused(error, path, f"{file} can't be set to {text}")

    def clean(self) -> list[str]:
        """Remove all groups of the base, also those of a killed process; return those that could not be removed.

        Threads that are still in these groups were started by threads in them. Each is moved to the group of its
        process or, if that is below the base too, to the group of an ancestor process; in v2 to `parent`.
        """
        left: list[str] = []
        self._clean(self.base, left)
        if not self.controlled and self._is_controlled() and not self.children(self.parent):
            with suppress(TreadleError):
                self.write(self.parent, "cgroup.subtree_control", "-cpu")
        if left:
            log.warning("groups that could not be removed: %s", ", ".join(left), extra={"groups": left})
        return left

    def type_of(self, path: str) -> str:
        """The `cgroup.type` of a v2 group; empty for the root, which has no type."""
        try:
            return self.read(path, "cgroup.type")
        except (EngineError, TargetGone):
            return ""

    def directory(self, path: str) -> str:
        """The directory with the files of a group."""
        if ".." in path.split("/"):
            remedy = "run Treadle outside of this container"
            raise EngineError(f"group {path} is outside of this container", where="cgroup", remedy=remedy)
        return self.mount.directory(path)

    @staticmethod
    def split(path: str) -> tuple[str, str]:
        """The path of the parent group, and the last component of `path`."""
        above, _, last = path.rpartition("/")
        return above or "/", last

    @staticmethod
    def join(above: str, name: str) -> str:
        """The path of a group in the group `above`."""
        return f"{above.rstrip('/')}/{name}"

    @property
    def _members(self) -> str:
        return "tasks" if self.version == 1 else "cgroup.threads"

    def _add(self, path: str) -> None:
        try:
            self._mkdir(self.directory(path))
        except FileExistsError:
            pass
        except OSError as error:
            self._refused(error, path, "can't be made")

    def _mkdir(self, directory: str) -> None:
        os.mkdir(directory)

    def _drop(self, path: str) -> None:
        os.rmdir(self.directory(path))

    def _make_threaded(self, path: str, above: str) -> None:
        """Make a v2 group threaded, then switch the controller on in `above`. The order matters.

        A group below a threaded one can't be used until it is threaded, too (cgroup-v2, "Threads"). Only then may
        the controller be on in a group with processes.
        """
        if self.type_of(path) != "threaded":
            self.write(path, "cgroup.type", "threaded")
        self._switch_on(above)

    def _switch_on(self, path: str) -> None:
        """Switch the cpu controller on for the children of a group."""
        if not self._has_on(path):
            self.write(path, "cgroup.subtree_control", "+cpu")

    def _has_on(self, path: str) -> bool:
        return "cpu" in self.read(path, "cgroup.subtree_control").split()

    def _is_controlled(self) -> bool:
        """Whether children of `parent` have the cpu controller; True in v1, and if unknown, so that we leave it on."""
        try:
            return self.version == 1 or self._has_on(self.parent)
        except TreadleError:
            return True

    def _put(self, path: str, file: str, text: str) -> None:
        opened = open_file(f"{self.directory(path)}/{file}", os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(opened, text.encode())
        finally:
            os.close(opened)

    def _clean(self, path: str, left: list[str]) -> None:
        for child in self.children(path):
            self._clean(child, left)
        for number in range(TRIES):  # threads may start while we move others, and an ending thread can't be moved
            if self.remove(path):
                return
            with suppress(TreadleError):
                for tid in self.threads(path):
                    self._evict(tid)
            time.sleep(number * PAUSE)
        left.append(path)

    def _evict(self, tid: int) -> None:
        pid, home = _process_of(tid), self.parent
        thread = ThreadRef(tid, pid)
        while self.version == 1 and pid > 1:
            try:
                group = self.home(group_of(f"/proc/{pid}/cgroup", self.mount))
            except OSError:
                break
            if group != self.base and not group.startswith(f"{self.base}/"):
                home = group
                break
            pid = _status(pid, b"PPid:")
        with suppress(TreadleError):
            self.move(thread, home)

    def _refused(self, error: OSError, path: str, what: str) -> NoReturn:
        where = f"group {path}"
        if isinstance(error, FileNotFoundError | ProcessLookupError) or error.errno == errno.ENODEV:
            if not self.exists(path):
                raise TargetGone("does not exist", where=where, remedy="make a thread its member first") from error
            raise EngineError(f"{what}: it has no such file", where=where, remedy="see 'treadle doctor'") from error
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise RightsError(what, where=where, remedy=RIGHTS) from error
        remedy = _WHY.get(error.errno or 0, "see 'treadle doctor'")
        raise EngineError(f"{what}: {error.strerror}", where=where, remedy=remedy) from error


_WHY = {
    errno.EINVAL: "check the limits of its parent group; a real-time thread needs a group with an RT budget",
    errno.EOPNOTSUPP: "with cgroup v2, give each application groups of its own, inside its own cgroup",
    errno.EBUSY: "with cgroup v2, its parent groups must be free of other controllers' limits",
    errno.ENAMETOOLONG: "use shorter names",
}


def _process_of(tid: int) -> int:
    return _status(tid, b"Tgid:")


def _status(pid: int, field: bytes) -> int:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(field):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0

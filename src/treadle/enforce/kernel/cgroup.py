"""All paths of the kernel's CPU groups are here: where they are mounted, what they are called, who is in them.

It knows cgroup v1 and v2 (threaded mode) and nothing of weights; the knobs are in `groups`. Lachesis section 5.3 groups
threads by query and operator: a group's name may have parts, as in "query/operator", and then is inside another one.
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
"""The group for real-time threads, see `budget`. Each group in it is named for where its threads are at home."""
RIGHTS = "run as root, or have the cgroup delegated to your user"
TRIES = 10
"""To remove a group that threads are in still."""
PAUSE = 0.01
"""Seconds by which each wait between two tries is longer than the last."""


class Cgroups:
    """The groups below `<parent>/<base>`. A base belongs to one user of this class at a time.

    A group is named by text: relative to the base, or with a leading "/" any group of the system by its path, as
    /proc/<pid>/cgroup has it. `parent` is the top for v1. In v2 threads can't leave the cgroup of their process, so it
    must be that one: see `for_process`. `controlled` is whether v2's cpu controller was on in it before us, which is
    among the `options` so that whoever cleans up after a kill knows it, too.
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
        """Groups that the threads of this process can be moved to."""
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
        """A group's path by its name."""
        if group.startswith("/"):
            return group
        if not group:
            raise ConfigError("a group has no name", where="cgroup", remedy="name it")
        path = self.join(self.base, escape_parts(group))
        self._names[path] = group
        return path

    def name(self, path: str) -> str:
        """A group's name by its path: the opposite of `path`."""
        if not path.startswith(f"{self.base}/"):
            return path
        return self._names.get(path) or unescape(path[len(self.base) + 1 :])

    def of(self, thread: ThreadRef) -> str:
        """The path of the group where a thread is at home, even while it is with the real-time ones."""
        return self.home(self.place(thread))

    def place(self, thread: ThreadRef) -> str:
        """The path of the group that a thread is in."""
        try:
            return group_of(f"/proc/{thread.pid}/task/{thread.tid}/cgroup", self.mount)
        except (FileNotFoundError, ProcessLookupError):
            gone(thread)

    def home(self, path: str) -> str:
        """Where threads of this group are at home: elsewhere only for those of a group for real-time threads."""
        around, last = self.split(path)
        return unescape(last) if self.split(around)[1] == REALTIME else path

    @property
    def realtime(self) -> str:
        """The group around those for real-time threads."""
        return self.join(self.parent, REALTIME)

    def exists(self, path: str) -> bool:
        return os.path.isdir(self.directory(path))

    def make(self, path: str) -> None:
        """Make a group of ours, and those around it, if it is not there."""
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
        """Remove a group in which there is nobody; whether it is gone."""
        try:
            self._drop(path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def move(self, thread: ThreadRef, path: str) -> None:
        """Into a group that is there."""
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
        """The groups directly in it."""
        try:
            with os.scandir(self.directory(path)) as entries:
                return sorted(self.join(path, entry.name) for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []

    def read(self, path: str, file: str) -> str:
        """What a file of a group says; `TargetGone` if there is no such group."""
        try:
            with open(f"{self.directory(path)}/{file}", opener=open_file) as opened:
                return opened.read().strip()
        except OSError as error:
            self._refused(error, path, f"{file} can't be read")

    def write(self, path: str, file: str, text: str) -> None:
        """Set a file of a group; `TargetGone` if there is no such group."""
        try:
            self._put(path, file, text)
        except OSError as error:
            self._refused(error, path, f"{file} can't be set to {text}")

    def clean(self) -> list[str]:
        """Remove all groups of the base, also what a killed process has left; those that could not be removed.

        A thread that is still there was started by one that was: it goes to the group of its process, or of the
        process that started that one.
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
        """What v2 says of the threads in it; nothing for the top, which has no type."""
        try:
            return self.read(path, "cgroup.type")
        except (EngineError, TargetGone):
            return ""

    def directory(self, path: str) -> str:
        """Where a group's files are."""
        if ".." in path.split("/"):
            remedy = "run where all of the system's groups can be seen"
            raise EngineError(f"group {path} is outside of this container", where="cgroup", remedy=remedy)
        return self.mount.directory(path)

    @staticmethod
    def split(path: str) -> tuple[str, str]:
        """The path of the group around it, and its own last part."""
        above, _, last = path.rpartition("/")
        return above or "/", last

    @staticmethod
    def join(above: str, name: str) -> str:
        """The path of a group in another."""
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
        """cgroup-v2, "Threads": a group made in a threaded one is no good until it is told to be threaded too.

        Only then may the controller be on in a group that has processes: that is how the order comes about.
        """
        if self.type_of(path) != "threaded":
            self.write(path, "cgroup.type", "threaded")
        self._switch_on(above)

    def _switch_on(self, path: str) -> None:
        """Let the groups in it have the controller."""
        if not self._has_on(path):
            self.write(path, "cgroup.subtree_control", "+cpu")

    def _has_on(self, path: str) -> bool:
        return "cpu" in self.read(path, "cgroup.subtree_control").split()

    def _is_controlled(self) -> bool:
        """Whether groups in the parent have the controller: in v1 always. If that can't be read it is not our doing."""
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
        for number in range(TRIES):  # threads may be started while we look, and one that just ends can't be moved
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
    errno.EINVAL: "see the limits of the group around it; a real-time thread needs one with an RT budget",
    errno.EOPNOTSUPP: "with cgroup v2, give each application groups of its own, inside its own cgroup",
    errno.EBUSY: "with cgroup v2, the groups around it must be free of other controllers' limits",
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

"""Files of another process: in its /tmp, which may be that of a container, and in its working folder.

The owner of a folder can replace files in it by symbolic links at any moment, and a link that is followed from outside
of a container leads out of the container. So all actions here have the rights of that process (`identity`), and its
/tmp is resolved inside its own root. Below /tmp only open folders and names without a slash are used, and links are
not followed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from treadle.errors import RightsError, TargetGone
from treadle.linux.identity import Identity, act_as, identity, status

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPENAT2 = 437
_NO_MAGIC_LINKS, _IN_ROOT = 0x02, 0x10
_TRIES = 10
"""Number of attempts to resolve a path: openat2 fails if a folder in the path is moved meanwhile."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class TargetFolder:
    """An open folder of another process. Names have no slash. Raises `OSError`, or `RightsError` without rights."""

    def __init__(self, descriptor: int, owner: Identity) -> None:
        self.owner = owner
        self._descriptor = descriptor

    @property
    def is_ours(self) -> bool:
        """Whether the folder is also the /tmp of this process."""
        return os.path.samestat(os.fstat(self._descriptor), os.stat("/tmp"))

    def put(self, name: str, contents: bytes) -> None:
        """Write a file that only its owner can read, atomically. An existing file is replaced."""

        def write() -> None:
            draft = f".treadle-{secrets.token_hex(8)}"
            file = os.open(draft, _NEW, 0o600, dir_fd=self._descriptor)
            try:
                with open(file, "wb") as stream:
                    stream.write(contents)
                os.rename(draft, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
            except BaseException:
                with suppress(OSError):
                    os.unlink(draft, dir_fd=self._descriptor)
                raise

        act_as(self.owner, write)

    def make(self, name: str) -> None:
        """Make an empty file; an error if the name exists."""
        act_as(self.owner, lambda: os.close(os.open(name, _NEW, 0o600, dir_fd=self._descriptor)))

    def read(self, name: str, most: int) -> bytes | None:
        """The contents of a file that only root or the owner of the process can write; None for any other file.

        Also None if the file has more than `most` bytes. Only an ordinary file is opened.
        """

        def contents() -> bytes | None:
            with self._found(name) as found:
                about = os.fstat(found)
                is_safe = about.st_uid in (0, self.owner.uid) and not about.st_mode & 0o022
                if not stat.S_ISREG(about.st_mode) or not is_safe or about.st_size > most:
                    return None
                with open(os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
                    text = stream.read(most + 1)
                return text if len(text) <= most else None

        return act_as(self.owner, contents)

    def uid(self, name: str) -> int:
        """The user that a file belongs to."""
        return self.about(name).st_uid

    def about(self, name: str) -> os.stat_result:
        """Owner, mode and times of a file; for a link those of the link itself, not of its target."""
        return act_as(self.owner, lambda: os.stat(name, dir_fd=self._descriptor, follow_symlinks=False))

    def remove(self, name: str, *, with_force: bool = False) -> None:
        """Remove a file, if it exists.

        In a shared (sticky) /tmp a user can't remove files of another user. `with_force` then uses our own rights, if
        this /tmp is also ours: for names that no other process can use.
        """
        with suppress(FileNotFoundError):
            try:
                act_as(self.owner, lambda: os.unlink(name, dir_fd=self._descriptor))
            except PermissionError:
                if not (with_force and self.is_ours):
                    raise
                os.unlink(name, dir_fd=self._descriptor)

    def bind(self, name: str) -> socket.socket:
        """Make a socket with this name, to which only the owner of the process can connect. It does not listen yet."""

        def bound() -> socket.socket:
            made = socket.socket(socket.AF_UNIX)
            try:
                os.fchmod(made.fileno(), 0o600)  # the file gets the mode that the socket has when it is bound
                made.bind(f"/proc/self/fd/{self._descriptor}/{name}")
            except BaseException:
                made.close()
                raise
            return made

        return act_as(self.owner, bound)

    def connect(self, connection: socket.socket, name: str) -> None:
        """Connect to a socket of the process's owner; that of another user raises an error as without a listener."""

        def connect() -> None:
            with self._found(name) as found:
                about = os.fstat(found)
                if not stat.S_ISSOCK(about.st_mode) or about.st_uid != self.owner.uid:
                    raise ConnectionRefusedError(errno.ECONNREFUSED, "not a socket of this process's user")
                connection.connect(f"/proc/self/fd/{found}")

        act_as(self.owner, connect)

    @contextmanager
    def _found(self, name: str) -> Iterator[int]:
        """An O_PATH handle of the file with this name, so that checks and use refer to the same file."""
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._descriptor)
        try:
            yield found
        finally:
            os.close(found)


@contextmanager
def temporary_folder(pid: int) -> Iterator[TargetFolder]:
    """The /tmp of a process."""
    with _process(pid) as process:
        owner = identity(status(process), f"process {pid}")
        with _opened("root", process) as root:
            descriptor = act_as(owner, lambda: _inside(root, "tmp"))
    try:
        yield TargetFolder(descriptor, owner)
    finally:
        os.close(descriptor)


@contextmanager
def working_folder(pid: int) -> Iterator[TargetFolder]:
    """The working folder of a process."""
    with _process(pid) as process:
        owner = identity(status(process), f"process {pid}")
        with _opened("cwd", process) as descriptor:
            yield TargetFolder(descriptor, owner)


@contextmanager
def _process(pid: int) -> Iterator[int]:
    """The folder of a process in /proc. The open folder never refers to a later process with the same id."""
    try:
        descriptor = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise TargetGone("has ended", where=f"process {pid}") from error
    try:
        yield descriptor
    except ProcessLookupError as error:
        raise TargetGone("has ended", where=f"process {pid}") from error
    finally:
        os.close(descriptor)


@contextmanager
def _opened(name: str, process: int) -> Iterator[int]:
    """The root or working folder of a process, opened by its link in /proc, so that no path is resolved."""
    try:
        descriptor = os.open(name, _FOLDER, dir_fd=process)
    except FileNotFoundError as error:
        raise ProcessLookupError from error
    except PermissionError as error:
        where = os.readlink(f"/proc/self/fd/{process}").removeprefix("/proc/")
        raise RightsError("its files can't be reached", where=f"process {where}", remedy="run as root") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _inside(root: int, path: str) -> int:
    """Open a folder below `root`; links on the way are resolved as for a process with this root."""
    how = _How(_FOLDER, 0, _IN_ROOT | _NO_MAGIC_LINKS)
    for _ in range(_TRIES):
        descriptor: int = _LIBC.syscall(_OPENAT2, root, path.encode(), ctypes.byref(how), ctypes.sizeof(how))
        if descriptor >= 0:
            return descriptor
        problem = ctypes.get_errno()
        if problem in (errno.ENOSYS, errno.EPERM):  # before Linux 5.6, or forbidden by an old container runtime
            return os.open(path, _FOLDER | os.O_NOFOLLOW, dir_fd=root)
        if problem != errno.EAGAIN:
            break
    raise OSError(problem, os.strerror(problem), path)

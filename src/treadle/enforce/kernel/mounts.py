"""Where cgroups with the cpu controller are mounted, and which group a thread is in. Nothing here writes."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from treadle.linux.files.open_files import open_file

MOUNTS = "/proc/self/mountinfo"


@dataclass(frozen=True)
class Mount:
    """The mount of the cpu controller. `root` is the group visible at `point`, in a container often the container's."""

    version: int
    point: str
    root: str = "/"

    def directory(self, path: str) -> str:
        """The directory with the files of a group."""
        if self.root != "/" and (path == self.root or path.startswith(f"{self.root}/")):
            path = path[len(self.root) :]
        return f"{self.point}{path}".rstrip("/")


def find_mount(mounts: str = MOUNTS) -> Mount | None:
    """The mount with the cpu controller; None where there is none."""
    second: Mount | None = None
    with open(mounts, errors="surrogateescape") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            root, point = (_plain(field) for field in before.split(" ")[3:5])
            kind, _, options = after.strip().split(" ", 2)
            if kind == "cgroup" and "cpu" in options.split(","):
                return Mount(1, point, root)
            if kind == "cgroup2" and second is None and "cpu" in _controllers(point):
                second = Mount(2, point, root)
    return second


def group_of(file: str, mount: Mount) -> str:
    """The path of the CPU group that a file /proc/<pid>/cgroup or /proc/<pid>/task/<tid>/cgroup names."""
    opened = open_file(file)
    try:
        text = os.read(opened, 1 << 16).decode(errors="surrogateescape")
    finally:
        os.close(opened)
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers if mount.version == 2 else "cpu" in controllers.split(","):
            return path.removesuffix(" (deleted)")
    return "/"


def cpu_group(pid: int, mount: Mount) -> str:
    """The group in which a process competes for CPU: in v2 the nearest one with the cpu controller."""
    path = group_of(f"/proc/{pid}/cgroup", mount)
    while mount.version == 2 and path != "/" and not os.path.exists(f"{mount.directory(path)}/cpu.weight"):
        path = path.rpartition("/")[0] or "/"
    return path


def _controllers(point: str) -> list[str]:
    try:
        with open(f"{point}/cgroup.controllers") as file:
            return file.read().split()
    except OSError:
        return []


def _plain(field: str) -> str:
    """Decode a field, in which spaces and the like are octal codes."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), field)

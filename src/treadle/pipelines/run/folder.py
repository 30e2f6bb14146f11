"""The folder of a pipeline: its channels, its checkpoints, and a file that names the pipeline.

Only one process at a time may use the folder, and only for that pipeline.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from treadle.errors import ConfigError, EngineError
from treadle.linux.files.file_lock import Lock, holder

_CARD = "pipeline.json"
_ALIKE = {
    "pipeline": "another pipeline",
    "layout": "another layout",
    "channels": "another kind of channels",
    "graph": "another graph",
}


class RunFolder:
    """A pipeline's folder, locked for this process until `close`."""

    def __init__(self, folder: Path, name: str, fingerprint: str, layout: str, channels: str = "embedded") -> None:
        self.folder = folder.absolute()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"can't be made: {error.strerror}", where=str(folder), remedy="name a folder you may write"
            ) from error
        pid = holder(self.folder)
        if pid is not None:
            raise EngineError(
                f"process {pid} already runs a pipeline there",
                where=str(folder),
                remedy="end it first, or name another folder",
            )
        self._lock = Lock(self.folder)
        self._card = {"pipeline": name, "layout": layout, "channels": channels, "graph": fingerprint}
        file = self.folder / _CARD
        try:
            if file.exists():
                self._check(_read(file), self._card)
        except BaseException:
            self.close()
            raise

    def claim(self) -> None:
        """Write the file that reserves the folder for this pipeline. A run that is refused earlier reserves nothing."""
        file = self.folder / _CARD
        if not file.exists():
            fresh = file.with_suffix(".tmp")
            try:
                with fresh.open("w", encoding="utf-8") as out:
                    out.write(json.dumps(self._card, indent=1) + "\n")
                    out.flush()
                    os.fsync(out.fileno())  # else a power failure may leave it empty
                fresh.replace(file)
            except OSError as error:
                raise EngineError(
                    f"can't be written: {error.strerror}", where=str(file), remedy="make room on that disk"
                ) from error

    def channel(self, name: str) -> Path:
        return self.folder / "channels" / name

    def checkpoint(self, hop: str) -> Path:
        return self.folder / "checkpoints" / hop

    def close(self) -> None:
        self._lock.release()

    def _check(self, found: dict[str, str], card: dict[str, str]) -> None:
        for key, what in _ALIKE.items():
            if found.get(key) != card[key]:
                detail = "" if key == "graph" else f" ('{found.get(key)}')"
                raise EngineError(
                    f"its channels and checkpoints are of {what}{detail}",
                    where=str(self.folder),
                    remedy="run that one, name another folder, or delete this one to start from nothing",
                )


def _read(file: Path) -> dict[str, str]:
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(file, str(error)) from error
    if not isinstance(found, dict):
        raise _unreadable(file, "it is not a JSON object")
    return found


def _unreadable(file: Path, what: str) -> ConfigError:
    return ConfigError(
        f"does not say which pipeline this folder is of: {what}",
        where=str(file),
        remedy="if it is of this pipeline, delete the file, which is then written again; else name another folder",
    )

"""The folder of a pipeline: its channels, its checkpoints, and a file that names the pipeline.

Only one process at a time may use the folder, and only for that pipeline.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError, EngineError
from treadle.linux.files.file_lock import Lock, holder

_CARD = "pipeline.json"
_NEXT = "next"
"""The graph to which a change is under way. Without it there is none."""
_REMOVED = "removed"
"""The nodes that the graph had before; their channels and checkpoints are kept for when they are added again."""
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
        self._card: dict[str, Any] = {"pipeline": name, "layout": layout, "channels": channels, "graph": fingerprint}
        file = self.folder / _CARD
        try:
            if file.exists():
                found = _read(file)
                self._check(found, self._card)
                self._settle(fingerprint, _known(found))
        except BaseException:
            self.close()
            raise

    def claim(self) -> None:
        """Write the file that reserves the folder for this pipeline. A run that is refused earlier reserves nothing."""
        file = self.folder / _CARD
        if not file.exists() or _read(file) != self._card:
            self._write()

    def propose(self, fingerprint: str) -> None:
        """Record that the pipeline changes to another graph: until `settle` the folder can be used with either."""
        self._card[_NEXT] = fingerprint
        self._write()

    def settle(self, fingerprint: str) -> None:
        """Record the graph that the pipeline has from now on, and which nodes of others have left something here."""
        self._settle(fingerprint, _known(self._card))
        self._write()

    def check_again(self, fingerprint: str) -> None:
        """Refuse a graph that has a node whose name an earlier, different node has left here."""
        removed = {line.split(" ")[0]: line for line in self._card.get(_REMOVED, ())}
        for line in _nodes(fingerprint):
            name = line.split(" ")[0]
            if removed.get(name, line) != line:
                raise ConfigError(
                    f"the checkpoint of '{name}' is of an earlier node with other inputs or of another kind",
                    where=str(self.folder),
                    remedy=f"give it another name, or delete checkpoints/{name} and channels/{name} there",
                )

    def _settle(self, fingerprint: str, known: set[str]) -> None:
        names = {line.split(" ")[0] for line in _nodes(fingerprint)}
        removed = sorted(line for line in known if line.split(" ")[0] not in names)
        self._card = {key: self._card[key] for key in _ALIKE} | {"graph": fingerprint}
        if removed:
            self._card[_REMOVED] = removed

    def _write(self) -> None:
        file = self.folder / _CARD
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

    def _check(self, found: dict[str, Any], card: dict[str, Any]) -> None:
        if found.get(_NEXT) == card["graph"]:
            found = {**found, "graph": found[_NEXT], _NEXT: found.get("graph")}
        for key, what in _ALIKE.items():
            if found.get(key) != card[key]:
                detail = "" if key == "graph" else f" ('{found.get(key)}')"
                raise EngineError(
                    f"its channels and checkpoints are of {what}{detail}",
                    where=str(self.folder),
                    remedy="run that one, name another folder, or delete this one to start from nothing",
                )


def _known(card: dict[str, Any]) -> set[str]:
    """All nodes that have left something in a folder, each as a line of its name, kind and inputs."""
    return {*_nodes(card["graph"]), *_nodes(card.get(_NEXT, "")), *card.get(_REMOVED, ())}


def _nodes(fingerprint: str) -> list[str]:
    """The lines of a graph that are about nodes."""
    return fingerprint.splitlines()[1:]


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(file, str(error)) from error
    if not isinstance(found, dict):
        raise _unreadable(file, "it is not a JSON object")
    removed = found.get(_REMOVED, [])
    if not isinstance(removed, list) or not all(isinstance(each, str) for each in (*removed, found.get(_NEXT, ""))):
        raise _unreadable(file, f"'{_REMOVED}' is not a list of nodes, or '{_NEXT}' not a graph")
    return found


def _unreadable(file: Path, what: str) -> ConfigError:
    return ConfigError(
        f"does not say which pipeline this folder is of: {what}",
        where=str(file),
        remedy="if it is of this pipeline, delete the file, which is then written again; else name another folder",
    )

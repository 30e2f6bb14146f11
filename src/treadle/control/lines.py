"""The requests and answers of a control socket, as lines of JSON."""

from __future__ import annotations

import errno
import json
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from treadle import errors
from treadle.errors import ConfigError, EngineError, TreadleError


class Lines:
    """Reader of lines from a socket, each limited in bytes and in time. A longer line is refused, not buffered."""

    def __init__(self, connection: socket.socket, largest: int) -> None:
        self._connection = connection
        self._largest = largest
        self._rest = bytearray()

    def next(self, patience: float) -> bytes | None:
        """The next line; None at the end of the stream. `patience` limits the whole line, not each byte."""
        deadline = time.monotonic() + patience
        searched = 0
        while (end := self._rest.find(b"\n", searched)) < 0:
            searched = len(self._rest)
            if searched > self._largest:
                raise self._refused()
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("too slow")
            self._connection.settimeout(left)
            more = self._connection.recv(65536)
            if not more:
                return None
            self._rest += more
        if end > self._largest:
            raise self._refused()
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line

    def _refused(self) -> OSError:
        """Tell the peer that its line is too long; return the error to raise, since what follows can't be parsed."""
        with suppress(OSError):
            self._connection.sendall(line_of({"error": as_json(too_long(self._largest))}))
        return OSError(errno.EMSGSIZE, f"a line of more than {self._largest} bytes")


def parse(line: bytes) -> tuple[str, dict[str, Any]]:
    """Return the command in a request and its arguments."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError("the request is not JSON", remedy="send one JSON object a line") from error
    if isinstance(request, dict):
        command, arguments = request.get("command"), request.get("arguments", {})
        if isinstance(command, str) and isinstance(arguments, dict):
            return command, arguments
    raise ConfigError("the request has no command", remedy='send {"command": "…", "arguments": {…}}')


def result(line: bytes, path: Path) -> Any:
    """Return the result in an answer, or raise the error in it; EngineError if the answer has neither."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict) and "result" in answer:
        return answer["result"]
    error, parts = answer.get("error") if isinstance(answer, dict) else None, ("kind", "message", "where", "remedy")
    if isinstance(error, dict) and all(isinstance(error.get(part), str) for part in parts):
        raise _from_json(error)
    raise EngineError("sends an invalid answer", where=str(path), remedy="check which program listens there")


def too_long(largest: int) -> ConfigError:
    """Return the error for a line of more than `largest` bytes."""
    return ConfigError(f"more than {largest} bytes in one line", remedy="send less at once")


def line_of(value: object) -> bytes:
    """Return a value as a line of JSON."""
    return json.dumps(value).encode() + b"\n"


def as_json(error: TreadleError) -> dict[str, str]:
    """Return an error as what an answer has under `error`; each part is one line."""
    parts = {"message": error.message, "where": error.where, "remedy": error.remedy}
    return {"kind": type(error).__name__} | {part: " ".join(text.split()) for part, text in parts.items()}


def _from_json(error: Mapping[str, str]) -> TreadleError:
    kind = getattr(errors, error["kind"], TreadleError)
    known = isinstance(kind, type) and issubclass(kind, TreadleError)
    return (kind if known else TreadleError)(error["message"], where=error["where"], remedy=error["remedy"])

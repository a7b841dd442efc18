"""A rank's line to the job: how ranks keep together by means that are not being measured."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

SOCKET = "job"
# Longer than any contender's own bound, so that a contender that hangs is the first to say so.
SILENCE_S = 150.0


class Line:
    """Messages of one line of JSON each, over a Unix socket of the job's private folder."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(2 * SILENCE_S)
        self._socket.connect(str(folder / SOCKET))
        self._answers = self._socket.makefile("r", encoding="utf-8")
        self.tell("hello", rank)

    def tell(self, kind: str, value: Any) -> None:
        """Send something to the job, which does not answer."""
        self._socket.sendall((json.dumps([kind, value]) + "\n").encode())

    def share(self, value: Any) -> list[Any]:
        """Give a value, and return when all ranks have: everybody's, in rank order."""
        self.tell("share", value)
        answer = self._answers.readline()
        if not answer:
            raise EOFError("the job has ended")
        shared: list[Any] = json.loads(answer)
        return shared

    def close(self) -> None:
        """Hang up in good order: this rank has nothing more to say."""
        self.tell("bye", None)
        self._answers.close()
        self._socket.close()

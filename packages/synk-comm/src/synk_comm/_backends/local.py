"""The group of one rank: nothing is sent, and nobody is waited for."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from synk_comm._collectives.communicator import RoundCommunicator
from synk_comm._core.fabric import Fabric, Share, describe
from synk_comm._core.guard import DEFAULT_TIMEOUT_S, deadline_after
from synk_comm._core.ops import Array
from synk_comm.abc import Communicator

from .messages import MessageFabric, Peer


class LocalFabric(MessageFabric[Peer]):
    """The slot of the only rank, which has no peers."""

    backend = "local"
    pieces: Any = None

    def __init__(self) -> None:
        super().__init__(0, 1, None)
        self._slot = np.empty(self.slot_bytes, np.uint8)

    def meet(self, deadline: float) -> None:
        """Nobody else comes."""

    def slot(self) -> Array:
        return self._slot

    def sync(self, head: bytes | None, *_: Any, **how: Any) -> None:  # noqa: ARG002
        if head is not None:
            self.own_head = head
            self.turn += 1

    def all_said(self, head: bytes) -> bool:
        return self.own_head == head

    def heads(self) -> list[bytes]:
        return [self.own_head]

    def read(self, rank: int, start: int, stop: int) -> Array:  # noqa: ARG002
        return self._slot[start:stop]

    def split(self, groups: list[list[int]], mine: int | None, share: Share) -> Fabric | None:  # noqa: ARG002
        return None if mine is None else LocalFabric()

    def has_entered(self, rank: int) -> bool:  # noqa: ARG002
        return True

    def last_seen(self, rank: int) -> str:  # noqa: ARG002
        return describe(self.own_head, self.turn)

    def close(self) -> None:
        """There is only memory."""

    drop = close

    def _send(self, peer: Peer, kind: bytes, number: int = 0, text: bytes = b"") -> None:
        """Nobody gets it."""

    def _receive(self) -> bool:
        return False

    def _pause(self, waited_s: float, left_s: float) -> None:
        """Nobody is waited for."""


def local_group(size: int = 1, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[Communicator]:
    """Make the group of this process alone; return its one communicator, in a list.

    Every collective returns at once.

    Raises:
        ValueError: a group of more ranks was asked for, which are processes: see ``launch`` and
            ``create_group``.
    """
    if operator.index(size) != 1:
        raise ValueError(
            f"local_group makes a group of one, got size {size!r}; ranks are processes: start them "
            "by launch(), python -m synk_comm.run, or create_group()"
        )
    deadline_after(timeout_s)
    return [RoundCommunicator(LocalFabric(), timeout_s, "local: this process alone")]

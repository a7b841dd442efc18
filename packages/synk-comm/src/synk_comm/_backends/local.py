"""The group of one rank: nothing is sent, and nobody is waited for."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Callable, NoReturn

import numpy as np

from synk_comm._collectives.communicator import RoundCommunicator
from synk_comm._core.fabric import Fabric, Pieces, Share, aborted, describe
from synk_comm._core.guard import DEFAULT_TIMEOUT_S, deadline_after
from synk_comm._core.ops import Array
from synk_comm.abc import Communicator
from synk_comm.exceptions import CommError


class LocalFabric(Fabric):
    """The slots of the only rank."""

    backend = "local"

    def __init__(self) -> None:
        super().__init__(0, 1, None)
        self._slots = [np.empty(self.slot_bytes, np.uint8) for _ in range(2)]
        self._rounds = self._turn = 0
        self._head = b""
        self._failure: CommError | None = None

    def meet(self, deadline: float) -> None:
        """Nobody else comes."""

    def slot(self) -> Array:
        return self._slots[(self._rounds + 1) & 1]

    def sync(
        self,
        head: bytes | None,
        nbytes: int,  # noqa: ARG002 - of a slot that is read where it was filled
        deadline: float,  # noqa: ARG002
        *,
        to: int | None = None,  # noqa: ARG002
        part: int = 0,  # noqa: ARG002
    ) -> None:
        self._rounds += 1
        if head is not None:
            self._head = head
            self._turn += 1

    def all_said(self, head: bytes) -> bool:
        return self._head == head

    def heads(self) -> list[bytes]:
        return [self._head]

    def read(self, rank: int, start: int, stop: int) -> Array:  # noqa: ARG002
        return self._slots[self._rounds & 1][start:stop]

    def attend(
        self,
        done: Callable[[], bool],  # noqa: ARG002
        rank: int,
        deadline: float,  # noqa: ARG002
        *,
        sending: bool,  # noqa: ARG002
    ) -> None:
        _no_other(rank)

    @property
    def pieces(self) -> Pieces:
        return _no_other(1)

    def split(self, groups: list[list[int]], mine: int | None, share: Share) -> Fabric | None:  # noqa: ARG002
        return None if mine is None else LocalFabric()

    def abort(self, reason: str) -> None:
        self._failure = self._failure or aborted(0, reason)

    def lose(self, rank: int) -> None:
        """Nobody else can be lost."""

    def failure(self) -> CommError | None:
        return self._failure

    def gone(self, ranks: Collection[int]) -> CommError | None:  # noqa: ARG002
        return self._failure

    def has_entered(self, rank: int) -> bool:  # noqa: ARG002
        return True

    def last_seen(self, rank: int) -> str:  # noqa: ARG002
        return describe(self._head, self._turn)

    def close(self) -> None:
        """There is only memory."""

    def drop(self) -> None:
        """There is only memory."""


def _no_other(rank: int) -> NoReturn:
    raise ValueError(f"a group of one has no rank {rank} to send to, or to hear from")


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

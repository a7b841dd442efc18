"""The group of one rank."""

from __future__ import annotations

import operator

from synk_comm._collectives.communicator import meet
from synk_comm._core.fabric import Fabric, Share
from synk_comm._core.guard import DEFAULT_TIMEOUT_S, deadline_after
from synk_comm.abc import Communicator

from .shm.block import create
from .shm.fabric import ShmFabric


class LocalFabric(ShmFabric):
    """The only rank's slot, in memory that no other process has."""

    backend = "local"

    def __init__(self) -> None:
        group_id = bytes(16)
        super().__init__(0, 1, None, fd=create(1, group_id), group_id=group_id)

    def split(self, groups: list[list[int]], mine: int | None, share: Share) -> Fabric | None:  # noqa: ARG002
        return None if mine is None else LocalFabric()


def local_group(size: int = 1, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[Communicator]:
    """Make the group of this process alone; return its one communicator, in a list.

    Every collective returns at once.

    Raises:
        ValueError: size is not 1. More ranks are processes: see ``launch`` and ``create_group``.
    """
    if operator.index(size) != 1:
        raise ValueError(
            f"local_group makes a group of one, got size {size!r}; ranks are processes: start them "
            "by launch(), python -m synk_comm.run, or create_group()"
        )
    deadline = deadline_after(timeout_s)
    return [meet(LocalFabric(), deadline, timeout_s, "local: this process alone")]

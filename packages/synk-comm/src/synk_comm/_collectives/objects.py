"""Small Python objects: pickled, and moved as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synk_comm._core.steps import Steps, pickled, unpickled
from synk_comm.abc import Communicator

from .gathering import Gathering


class ObjectMoves(Communicator):
    """The ``*_object`` methods of a communicator that moves arrays."""

    _steps: Steps
    _gathering: Gathering

    def broadcast_object(
        self, obj: Any = None, root: int = 0, *, timeout_s: float | None = None
    ) -> Any:
        root = self._steps.check_rank(root)
        source = pickled(obj) if self.rank == root else None
        received = self._gathering.broadcast_bytes("broadcast_object", source, root, timeout_s)
        return obj if self.rank == root else unpickled(received)

    def gather_object(
        self, obj: Any, root: int = 0, *, timeout_s: float | None = None
    ) -> list[Any] | None:
        root = self._steps.check_rank(root)
        gathered = self._gathering.gather_bytes("gather_object", pickled(obj), root, timeout_s)
        return [unpickled(data) for data in gathered] if self.rank == root else None

    def all_gather_object(self, obj: Any, *, timeout_s: float | None = None) -> list[Any]:
        source = pickled(obj)
        gathered = self._gathering.gather_bytes("all_gather_object", source, None, timeout_s)
        return [unpickled(data) for data in gathered]

    def scatter_object(
        self,
        objs: Sequence[Any] | None = None,
        root: int = 0,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        root = self._steps.check_rank(root)
        self._steps.check_only_root("scatter_object", objs, root)
        sources = None if objs is None else [pickled(obj) for obj in objs]
        return unpickled(self._gathering.scatter("scatter_object", sources, root, None)(timeout_s))

    def all_to_all_object(
        self, objs: Sequence[Any], *, timeout_s: float | None = None
    ) -> list[Any]:
        sources = [pickled(obj) for obj in objs]
        got = self._gathering.all_to_all("all_to_all_object", sources, None)(timeout_s)
        return [unpickled(data) for data in got]

    def send_object(
        self, obj: Any, dest: int, *, tag: int = 0, timeout_s: float | None = None
    ) -> None:
        self.send(pickled(obj), dest, tag=tag, timeout_s=timeout_s)

    def recv_object(self, source: int, *, tag: int = 0, timeout_s: float | None = None) -> Any:
        return unpickled(self.recv(source, tag=tag, timeout_s=timeout_s))

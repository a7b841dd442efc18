"""Small Python objects: pickled, and moved as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synk_comm._core.steps import Steps, pickled, unpickled
from synk_comm.abc import Communicator

from .gathering import Gathering


class ObjectMoves(Communicator):
    """What is the same for every communicator that stands on a group's rounds: the ``*_object``
    methods, and whose errors are its own."""

    _steps: Steps
    _gathering: Gathering

    def raised(self, error: BaseException) -> bool:
        return self._steps.guard.raised(error)

    def broadcast_object(
        self, obj: Any = None, root: int = 0, *, timeout_s: float | None = None
    ) -> Any:
        root = self._steps.check_rank(root)
        source = pickled(obj) if self.rank == root else None
        got, _ = self._gathering.broadcast("broadcast_object", source, root)(timeout_s)
        return obj if self.rank == root else unpickled(got)

    def gather_object(
        self, obj: Any, root: int = 0, *, timeout_s: float | None = None
    ) -> list[Any] | None:
        got, _ = self._gathering.gather("gather_object", pickled(obj), root, None)(timeout_s)
        return None if got is None else [unpickled(data) for data in got]

    def all_gather_object(self, obj: Any, *, timeout_s: float | None = None) -> list[Any]:
        got, _ = self._gathering.gather("all_gather_object", pickled(obj), None, None)(timeout_s)
        return [unpickled(data) for data in got]

    def scatter_object(
        self,
        objs: Sequence[Any] | None = None,
        root: int = 0,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        sources = None if objs is None else [pickled(obj) for obj in objs]
        got, _ = self._gathering.scatter("scatter_object", sources, root, None)(timeout_s)
        return unpickled(got)

    def all_to_all_object(
        self, objs: Sequence[Any], *, timeout_s: float | None = None
    ) -> list[Any]:
        sources = [pickled(obj) for obj in objs]
        got, _ = self._gathering.all_to_all("all_to_all_object", sources, None)(timeout_s)
        return [unpickled(data) for data in got]

    def send_object(
        self, obj: Any, dest: int, *, tag: int = 0, timeout_s: float | None = None
    ) -> None:
        self.send(pickled(obj), dest, tag=tag, timeout_s=timeout_s)

    def recv_object(self, source: int, *, tag: int = 0, timeout_s: float | None = None) -> Any:
        return unpickled(self.recv(source, tag=tag, timeout_s=timeout_s))

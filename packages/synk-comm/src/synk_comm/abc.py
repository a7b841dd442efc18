"""The contract: what every communicator does, whatever carries the bytes.

A group has ``size`` members, numbered by ``rank`` from 0. Each member holds one
``Communicator`` and calls the same collectives in the same order as all others.

What holds for every collective:

* It synchronises: no rank returns before all ranks have entered.
* The calls of all ranks (which collective, op, root, dtype, shape) are compared before any
  output is written. If they differ, ``MismatchError`` is raised on *every* rank, listing each
  rank's call, and the communicator stays usable.
* Arguments that are wrong by themselves (an unknown op, an ``out`` of the wrong shape) raise
  TypeError or ValueError at once, on this rank alone, before peers hear anything.
* The wait is bounded: ``timeout_s`` seconds for the whole call; None takes the communicator's
  own, given at ``join``. ``CommTimeout`` names the ranks that are missing and what they last did.
* A dead peer raises ``PeerLost``; a peer that gave up raises ``AbortedError``.
* An exception that leaves a collective half-way (a timeout, KeyboardInterrupt, whatever
  ``watch`` raises) ends the group: peers raise ``AbortedError`` at once, and so does every
  later call. Outputs may then be partly written.
* Results do not share memory with inputs or with other ranks' arrays, unless ``out`` says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeVar

from numpy.typing import ArrayLike

from ._ops import Array, ReduceOp

Self = TypeVar("Self", bound="Communicator")


class Communicator(ABC):
    """One rank's voice in a group of ranks.

    To be used by one thread at a time, and never in a child after ``os.fork()``: both raise
    RuntimeError. Only ``abort()`` and ``close()`` may be called from another thread.

    Attributes:
        rank: this member's number, 0 <= rank < size.
        size: how many members the group has.
        backend: ``"shm"``, ``"zmq"`` or ``"local"``.
    """

    rank: int
    size: int
    backend: str

    @abstractmethod
    def barrier(self, *, timeout_s: float | None = None) -> None:
        """Return when all ranks have entered."""

    @abstractmethod
    def broadcast(self, x: Array, root: int = 0, *, timeout_s: float | None = None) -> Array:
        """Overwrite ``x`` on every rank by the root's.

        Args:
            x: array of the same shape and dtype on all ranks, any dtype without objects;
                writeable except on the root. Any memory layout.
            root: the rank whose values are taken.

        Returns:
            ``x`` itself.
        """

    @abstractmethod
    def reduce(
        self,
        x: ArrayLike | None,
        op: str | ReduceOp = "sum",
        root: int = 0,
        *,
        weight: float | None = None,
        out: Array | None = None,
        timeout_s: float | None = None,
    ) -> Array | None:
        """Reduce the arrays of all ranks, element by element, into one on the root.

        Operands are taken in rank order, so the result is the same to the last bit from run to
        run. float16 is accumulated in float32.

        Args:
            x: numeric array of the same shape and dtype on all contributing ranks; None if this
                rank contributes nothing. At least one rank must contribute, else MismatchError.
            op: ``"avg"``, ``"sum"``, ``"min"``, ``"max"`` or ``"prod"``.
            root: the rank that receives the result.
            weight: for ``"avg"`` only: the result is ``sum(w_r * x_r) / sum(w_r)`` over the
                contributing ranks, default 1.0. With weight 0, ``x`` counts as None, even if it
                holds NaN. Computed in the float arithmetic of x's dtype.
            out: on the root, writeable array to receive the result; may be ``x``.
                Ignored on other ranks.

        Returns:
            On the root a new array, or ``out``; None elsewhere.

        Raises:
            TypeError: avg of integers or booleans, sum or prod of booleans, not numeric.
        """

    @abstractmethod
    def all_reduce(
        self,
        x: ArrayLike | None,
        op: str | ReduceOp = "sum",
        *,
        weight: float | None = None,
        out: Array | None = None,
        timeout_s: float | None = None,
    ) -> Array:
        """Reduce as ``reduce`` does, and give the result to every rank, also to those with None.

        The results are bit-identical on all ranks.

        Returns:
            A new array, or ``out`` (which may be ``x``: then the reduction is in place).
        """

    @abstractmethod
    def gather(
        self, x: ArrayLike | None, root: int = 0, *, timeout_s: float | None = None
    ) -> list[Array | None] | None:
        """Collect each rank's array on the root.

        Args:
            x: array of any dtype without objects, or None if this rank contributes nothing.
                Shapes may differ between ranks; dtype and number of dimensions must not.
                At least one rank must contribute, else MismatchError.

        Returns:
            On the root a list of new arrays in rank order, None standing for ranks that gave
            nothing; None elsewhere.
        """

    @abstractmethod
    def all_gather(
        self, x: ArrayLike | None, *, timeout_s: float | None = None
    ) -> list[Array | None]:
        """Collect each rank's array on every rank; arguments and list as for ``gather``."""

    @abstractmethod
    def scatter(
        self,
        xs: Sequence[ArrayLike] | None,
        root: int = 0,
        *,
        timeout_s: float | None = None,
    ) -> Array:
        """Give each rank its own array of the root's list.

        Args:
            xs: on the root ``size`` arrays of one dtype (without objects), of any shapes;
                None elsewhere.

        Returns:
            A new array, on the root too.
        """

    @abstractmethod
    def broadcast_object(
        self, obj: Any = None, root: int = 0, *, timeout_s: float | None = None
    ) -> Any:
        """Return the root's object on every rank (on the root ``obj`` itself).

        This and the other ``*_object`` collectives pickle. Unpickling can run any code: the
        members of a group trust each other, and only authenticated members can be in it.
        For small objects; arrays travel better by the methods made for them.
        """

    @abstractmethod
    def gather_object(
        self, obj: Any, root: int = 0, *, timeout_s: float | None = None
    ) -> list[Any] | None:
        """Collect each rank's object on the root, as a list in rank order; None elsewhere."""

    @abstractmethod
    def all_gather_object(self, obj: Any, *, timeout_s: float | None = None) -> list[Any]:
        """Collect each rank's object on every rank, as a list in rank order."""

    @abstractmethod
    def scatter_object(
        self,
        objs: Sequence[Any] | None = None,
        root: int = 0,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """Give each rank its own object of the root's list of ``size``; others pass None."""

    @abstractmethod
    def decline(self, reason: str, *, timeout_s: float | None = None) -> dict[int, str]:
        """Take this rank's turn in the next collective without doing it, whatever it is.

        For a rank that cannot go on as planned (its own code failed) and wants to let its peers
        go. They raise ``PeerDeclined`` from their collective before any output is written. The
        communicator stays in step and usable.

        Args:
            reason: text for the peers; its middle is cut out beyond some 10,000 characters.

        Returns:
            The reasons of the *other* ranks that declined in the same turn, by rank.
        """

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Give the group up: every rank that waits, or calls later, raises AbortedError.

        Never blocks. May be called from any thread.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave the group and free what it took. Idempotent; never waits for peers.

        Peers that still wait for this rank raise ``PeerLost``.
        """

    def __enter__(self: Self) -> Self:  # noqa: PYI019 - typing.Self is newer than 3.9
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

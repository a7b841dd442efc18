"""The contract of every communicator, on any back-end.

A group has ``size`` members, numbered by ``rank`` from 0. Each member holds one
``Communicator`` and calls the same collectives in the same order as all others.

For every collective:

* It synchronises: no rank returns before all ranks have entered.
* The calls of all ranks (collective, op, root, dtypes, shapes) are compared before any output is
  written. If they differ, *every* rank raises ``MismatchError``, with all calls; the communicator
  stays usable.
* Arguments that are wrong by themselves (an unknown op, an ``out`` of the wrong shape) raise
  TypeError or ValueError at once, on this rank alone.
* The wait is bounded: ``timeout_s`` seconds for the whole call; None takes the time given when the
  communicator was made. ``CommTimeout`` names the missing ranks, the call, and their last calls.
* A dead peer raises ``PeerLost``; a peer that left by ``abort()``, or by an exception out of its
  ``with`` block, raises ``AbortedError``.
* An exception that leaves a collective half-way (a timeout, KeyboardInterrupt, any of ``watch``)
  ends the group: peers raise ``AbortedError`` at once, and so does every later call. Outputs may
  then be partly written.
* A result is a new array in C order; without axes a NumPy scalar of native byte order, as from
  NumPy's own functions: ``all_reduce(3.0)`` is a ``np.float64``. If the caller gives an array to be
  filled, that is returned: ``out``, a writeable array of the result's dtype and shape (or a list of
  such), or ``x`` of broadcast. Nothing else shares memory with inputs or other ranks' arrays.

Arrays: any memory layout and byte order. Moves (broadcast, scatter, gather, all_gather,
all_to_all, send) take every dtype without Python objects, structured ones too; reductions take
integers (which wrap around, as NumPy's), floats, complex numbers, timedeltas for sum, min and max,
booleans for min (and) and max (or). NaN and infinities are results like others. On overflow, the
rank that computes warns or raises as ``np.errstate`` asks.

Several arrays in one call: for *array or list*, a list or tuple of ndarrays is one collective on
each, in order, with one comparison for all: quicker than one call for each if a call is expensive,
as between hosts or with more ranks than cores. Dtypes and shapes may differ within the list, not
between ranks. The result is a list then, and so is ``out``; it holds arrays only, those without
axes too.

Collectives that do not wait: ``iall_reduce`` and its like make the call of that name in a thread of
this rank, in a second group of the same ranks. The first such call splits that group off, so it
waits for all ranks; later ones return at once.

* Every rank begins the same ones in the same order, whatever it does in this group meanwhile. A
  call that waits and one that does not are never matched.
* Arguments that are wrong by themselves raise at once; ``wait`` and ``test`` of the request raise
  all other errors, MismatchError too.
* They go on while this rank computes. Their thread calls ``watch``. Results have the same bits as
  those of the blocking calls.
* The two groups end together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from numpy import ndarray

from ._core.calls import word_to_peers
from ._core.ops import Array, ReduceOp
from ._core.packing import can_receive
from ._core.requests import Request, begins
from ._core.steps import pickled, unpickled
from ._core.table import Arguments

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

__all__ = ["Communicator", "Request"]

Self = TypeVar("Self", bound="Communicator")
Out = Any  # an ndarray, or a list of them: as the docstring of the method says


class Communicator(ABC):
    """One rank's membership in a group of ranks, with a method for each collective of the table.

    For one thread at a time, and never in a child after ``os.fork()``: both raise RuntimeError.
    Only ``abort()`` and ``close()`` may come from another thread. See also ``synk_comm.abc``.

    Attributes:
        rank: this member's number, 0 <= rank < size.
        size: number of members.
        backend: ``"shm"``, ``"zmq"``, ``"mpi"``, ``"nccl"`` or ``"local"``.
        why: a sentence on the choice of this back-end.
        ordered_bytes: length of the longest array that is reduced in rank order, see
            ``all_reduce``; None if all are.
    """

    rank: int
    size: int
    backend: str
    why: str
    ordered_bytes: int | None = None

    # Repeats of calls, by the keys of ``_call``. The methods that programs call most look here
    # themselves: one more function would cost them up to a tenth of their time.
    _shortcuts: dict[Any, Callable[[Any, Any], Any]] = {}  # noqa: RUF012 - none here, never written

    # ``_call(kind, x, out, timeout_s, op, root, weight)`` makes a collective. ``_message(sending,
    # array, peer, tag, timeout_s)`` sends or receives. The others begin the same.
    _call: Callable[..., Any]
    _begin: Callable[[str, Arguments], Request]
    _message: Callable[[bool, Any, int, int, float | None], Any]
    _begin_message: Callable[[bool, Any, int, int], Request]

    # -- collectives --------------------------------------------------------------------------

    def barrier(self, *, timeout_s: float | None = None) -> None:
        """Return when all ranks have entered."""
        shortcut = self._shortcuts.get("barrier") if timeout_s is None else None
        if shortcut is not None:
            shortcut(None, None)
        else:
            self._call("barrier", None, None, timeout_s)

    def all_reduce(
        self,
        x: ArrayLike | Sequence[Array] | None,
        op: str | ReduceOp = "sum",
        *,
        weight: float | None = None,
        out: Out = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Reduce the arrays of all ranks, element by element, into one that every rank gets.

        Operands are taken in rank order, so the result is the same to the last bit on all ranks,
        from run to run, and for every size of array. float16 is accumulated in float32. In arrays
        of more than ``ordered_bytes`` the order is that of a library such as MPI: all ranks still
        hold the same bits, but another number or placement of ranks may round otherwise, and
        overflow is not reported.

        Args:
            x: array or list; same shape and dtype on all contributing ranks. None if this rank
                contributes nothing (it still gets the result). If no rank contributes,
                MismatchError.
            op: ``"avg"``, ``"sum"``, ``"min"``, ``"max"`` or ``"prod"``.
            weight: for ``"avg"`` only: the result is ``sum(w_r * x_r) / sum(w_r)`` over the
                contributing ranks, default 1.0. With weight 0, ``x`` counts as None, even if it
                holds NaN. Computed in the float arithmetic of x's dtype.
            out: may be ``x`` itself: the quickest for large arrays.

        Raises:
            TypeError: avg of integers or booleans (NumPy would give float64, which has no place in
                ``out``: convert first), sum or prod of booleans, a dtype without arithmetic.
        """
        if type(x) is ndarray and timeout_s is None:
            shortcut = self._shortcuts.get(("all_reduce", x.dtype, x.shape, op, 0, weight))
            in_place = out is x and x.flags.writeable
            if shortcut is not None and (out is None or in_place or can_receive(out, x)):
                return shortcut(x, out)
        return self._call("all_reduce", x, out, timeout_s, op, 0, weight)

    def reduce(
        self,
        x: ArrayLike | Sequence[Array] | None,
        op: str | ReduceOp = "sum",
        root: int = 0,
        *,
        weight: float | None = None,
        out: Out = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Reduce as ``all_reduce`` does; only the root gets the result.

        Args:
            x, op, weight: as for ``all_reduce``.
            root: the rank that receives the result; the others get None.
            out: ignored on other ranks.
        """
        if type(x) is ndarray and out is None is timeout_s and type(root) is int:
            shortcut = self._shortcuts.get(("reduce", x.dtype, x.shape, op, root, weight))
            if shortcut is not None:
                return shortcut(x, None)
        return self._call("reduce", x, out, timeout_s, op, root, weight)

    def reduce_scatter(
        self,
        x: ArrayLike | Sequence[Array],
        op: str | ReduceOp = "sum",
        *,
        weight: float | None = None,
        out: Array | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Reduce, and give each rank its own block of the result.

        Args:
            x: an array whose first axis is a multiple of ``size``, to be cut into equal blocks, or
                a list of ``size`` arrays of one dtype and any shapes; alike on all ranks.
            op, weight: as for ``all_reduce``; every rank contributes, so weights are positive.
            out: for this rank's block.
        """
        return self._call("reduce_scatter", x, out, timeout_s, op, 0, weight)

    def broadcast(
        self,
        x: Array | Sequence[Array] | complex | np.generic | None,
        root: int = 0,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """Give every rank the root's array: overwrite ``x``, or make a new one.

        Args:
            x: array or list. On the root an ndarray, or a list of them, of any shape and dtype; on
                other ranks writeable ndarrays of the same shape and dtype, or None. Or, on ranks
                that do not give None, a number, of the same NumPy dtype on all of them.
            root: the rank whose values are taken.

        Returns:
            ``x`` itself; if ``x`` is None a new array, or a list of such; if it is a number, the
            root's as a NumPy scalar, on the root too.
        """
        if type(x) is ndarray and type(root) is int and timeout_s is None:
            shortcut = self._shortcuts.get(("broadcast", x.dtype, x.shape, "sum", root, None))
            if shortcut is not None and (root == self.rank or x.flags.writeable):
                return shortcut(x, None)
        return self._call("broadcast", x, None, timeout_s, "sum", root)

    def scatter(
        self,
        xs: Sequence[ArrayLike] | Array | None,
        root: int = 0,
        *,
        out: Array | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Give each rank its own array of the root's list.

        Args:
            xs: on the root ``size`` arrays of one dtype and any shapes (an array with a first
                axis of length ``size`` is such a list); None elsewhere.
            out: for this rank's array, on the root too; if it does not fit, MismatchError on every
                rank.
        """
        return self._call("scatter", xs, out, timeout_s, "sum", root)

    def gather(
        self,
        x: ArrayLike | Sequence[Array] | None,
        root: int = 0,
        *,
        out: Out = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Collect each rank's array on the root.

        Args:
            x: array or list, or None if this rank contributes nothing. Shapes may differ between
                ranks; dtype and number of dimensions must not. If no rank contributes,
                MismatchError.
            out: on the root, one array with a first axis of length ``size`` whose rows fit, or a
                list of ``size`` arrays (None for ranks that give nothing); if they do not fit,
                MismatchError on every rank. Ignored elsewhere. Not together with a list for ``x``.

        Returns:
            On the root a list of new arrays in rank order, with None for ranks that gave nothing,
            or ``out``; None elsewhere. For a list ``x`` a list of such lists, one for each array.
        """
        return self._call("gather", x, out, timeout_s, "sum", root)

    def all_gather(
        self,
        x: ArrayLike | Sequence[Array] | None,
        *,
        out: Out = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Collect each rank's array on every rank; arguments and list as for ``gather``."""
        return self._call("all_gather", x, out, timeout_s)

    def all_to_all(
        self, xs: Sequence[ArrayLike] | Array, *, out: Out = None, timeout_s: float | None = None
    ) -> Any:
        """Give every rank one array of every rank's list: rank r gets the r-th of each.

        Args:
            xs: ``size`` arrays of any shapes (or one array with a first axis of that length); one
                dtype on all ranks.
            out: array with a first axis of length ``size``, or list of ``size`` arrays; if they do
                not fit, MismatchError on every rank.

        Returns:
            A list of ``size`` new arrays, the r-th from rank r; or ``out``.
        """
        return self._call("all_to_all", xs, out, timeout_s)

    # -- between two ranks --------------------------------------------------------------------

    def send(
        self, x: ArrayLike, dest: int, *, tag: int = 0, timeout_s: float | None = None
    ) -> None:
        """Send an array to one rank, which must ``recv`` it. Not a collective.

        Returns when ``x`` may be changed again: at once if it fits the channel (10 KB do), else
        when the receiver has begun to read. Two ranks that send each other large arrays before
        they receive wait for each other until the timeout: use ``isend``, or ``all_to_all``.

        Args:
            x: array of any shape and dtype without objects.
            dest: the receiving rank; may be this one.
            tag: a number from 0, the same as of ``recv``. Messages of one tag between two ranks
                arrive in the order of ``send`` and ``isend``, and go to ``recv`` and ``irecv`` in
                the order of these calls.

        Raises:
            CommTimeout: if nothing was sent yet, the communicator stays usable.
        """
        self._message(True, x, dest, tag, timeout_s)

    def recv(
        self, source: int, *, tag: int = 0, out: Array | None = None, timeout_s: float | None = None
    ) -> Any:
        """Receive the next array that ``source`` sent to this rank with this tag.

        Args:
            source: the sending rank; may be this one.
            tag: messages with other tags are kept for later calls.
            out: if it does not fit, MismatchError on this rank, and the message is lost.

        Raises:
            CommTimeout: the communicator stays usable, unless half of a message is in ``out``.
        """
        return self._message(False, out, source, tag, timeout_s)

    # -- the same without waiting -------------------------------------------------------------

    ibarrier = begins(barrier)
    iall_reduce = begins(all_reduce)
    ireduce = begins(reduce)
    ireduce_scatter = begins(reduce_scatter)
    ibroadcast = begins(broadcast)
    iscatter = begins(scatter)
    igather = begins(gather)
    iall_gather = begins(all_gather)
    iall_to_all = begins(all_to_all)
    isend = begins(send)
    irecv = begins(recv)

    # -- small objects ------------------------------------------------------------------------

    def broadcast_object(
        self, obj: Any = None, root: int = 0, *, timeout_s: float | None = None
    ) -> Any:
        """Return the root's object on every rank (on the root ``obj`` itself).

        This and the other ``*_object`` methods pickle, and unpickling can run any code: only
        authenticated members can be in a group, and they trust each other.
        """
        source = pickled(obj) if self.rank == root else None
        got = self._call("broadcast_object", source, None, timeout_s, "sum", root)
        return obj if self.rank == root else unpickled(got)

    def gather_object(
        self, obj: Any, root: int = 0, *, timeout_s: float | None = None
    ) -> list[Any] | None:
        """Collect each rank's object on the root, as a list in rank order; None elsewhere."""
        got = self._call("gather_object", pickled(obj), None, timeout_s, "sum", root)
        return None if got is None else [unpickled(data) for data in got]

    def all_gather_object(self, obj: Any, *, timeout_s: float | None = None) -> list[Any]:
        """Collect each rank's object on every rank, as a list in rank order."""
        got = self._call("all_gather_object", pickled(obj), None, timeout_s)
        return [unpickled(data) for data in got]

    def scatter_object(
        self, objs: Sequence[Any] | None = None, root: int = 0, *, timeout_s: float | None = None
    ) -> Any:
        """Give each rank its own object of the root's list of ``size``; others pass None."""
        sources = None if objs is None else [pickled(obj) for obj in objs]
        return unpickled(self._call("scatter_object", sources, None, timeout_s, "sum", root))

    def all_to_all_object(
        self, objs: Sequence[Any], *, timeout_s: float | None = None
    ) -> list[Any]:
        """Give every rank one object of every rank's list of ``size``."""
        sources = [pickled(obj) for obj in objs]
        got = self._call("all_to_all_object", sources, None, timeout_s)
        return [unpickled(data) for data in got]

    def send_object(
        self, obj: Any, dest: int, *, tag: int = 0, timeout_s: float | None = None
    ) -> None:
        """Send an object to one rank, which must ``recv_object`` it; else as ``send``."""
        self._message(True, pickled(obj), dest, tag, timeout_s)

    def recv_object(self, source: int, *, tag: int = 0, timeout_s: float | None = None) -> Any:
        """Receive the next object that ``source`` sent with this tag; else as ``recv``."""
        return unpickled(self._message(False, None, source, tag, timeout_s))

    # -- the group ----------------------------------------------------------------------------

    @abstractmethod
    def split(
        self, color: int | None, key: int = 0, *, timeout_s: float | None = None
    ) -> Communicator | None:
        """Make smaller groups, of the ranks that give the same color. A collective.

        Args:
            color: the group of this rank; None for no group.
            key: ranks of the new group are numbered by key, then by their rank here.

        Returns:
            The communicator of the new group, to be closed by itself; None for color None. Errors
            in one do not end the other.
        """

    @abstractmethod
    def decline(self, reason: str, *, timeout_s: float | None = None) -> dict[int, str]:
        """Take this rank's turn in the next collective, whichever it is, without performing it.

        For a rank whose own code failed: its peers raise ``PeerDeclined`` from their collective
        before any output is written. The communicator stays usable.

        Args:
            reason: text for the peers; its middle is cut out beyond some 10,000 characters.

        Returns:
            The reasons of the *other* ranks that declined in the same turn, by rank.
        """

    @abstractmethod
    def raised(self, error: BaseException) -> bool:
        """Return whether a call of this communicator, not of another group, raised this error."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """End the group, without blocking; all waiting and later calls raise AbortedError."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group, and free its memory; ranks that wait for this one raise PeerLost.

        Idempotent. It first waits, at most for the communicator's own time, until messages of
        ``isend`` to present ranks have moved, and all begun collectives have ended; if they fail,
        their ``wait`` raises. Messages that ``irecv`` waits for are lost.

        Raises:
            CommTimeout: a rank has not received these messages in time; they are lost. The
                communicator is closed all the same.
        """

    def __enter__(self: Self) -> Self:  # noqa: PYI019 - typing.Self is newer than 3.9
        return self

    def __exit__(self, *exc_info: object) -> None:
        word = word_to_peers(exc_info[1])
        if word:
            self.abort(word)
        self.close()

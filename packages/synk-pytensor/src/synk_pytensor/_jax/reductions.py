"""Reductions over ranks inside of XLA's programs: the only use of JAX's experimental callbacks.

XLA calls Python in the middle of a program, on its own stream, with the addresses of its own
buffers. There NCCL reduces them; nothing is copied, and nothing waits. All that may fail happens
before: a rank that failed inside of a program would leave the others' devices waiting.
"""

from __future__ import annotations

import hashlib
import math
import time
from contextlib import nullcontext, suppress
from functools import lru_cache
from typing import Any, Callable, ContextManager, List, Optional, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.buffer_callback import buffer_callback

import synk_comm

from .arrays import is_array, to_host
from .pending import SHARE, Note, Pending

REDUCIBLE = frozenset(
    (
        *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
        *("float16", "float32", "float64"),
    )
)
"""Names of dtypes that NCCL can reduce."""


_OF_ALL_RANKS = frozenset(
    (
        *("barrier", "broadcast", "gather", "all_gather", "scatter", "reduce_scatter"),
        *("broadcast_object", "gather_object", "all_gather_object"),
    )
)
"""Names of a communicator's methods that all ranks call together."""

CLOSE_S = 2.0
"""Seconds that a rank waits for its programs when it leaves the others."""


class JaxCommunicator:
    """The ranks' communicator, which also reduces JAX's arrays: as notes of a `Pending`.

    All else is what `comm` does with arrays in host memory. Results are new arrays: `out` shows
    their forms alone.
    """

    def __init__(self, comm: Any, pending: Pending, group: Any) -> None:
        self._comm, self._pending, self._group = comm, pending, group
        pending.group = group

    def __getattr__(self, name: str) -> Any:
        if name in _OF_ALL_RANKS:
            self._pending.flush()  # what is noted comes first, on all ranks
        return getattr(self._comm, name)

    def all_reduce(
        self, x: Any, op: str = "sum", *, weight: Optional[float] = None, out: Any = None
    ) -> Any:
        """Reduce arrays into new ones, on all ranks; x None contributes nothing."""
        like = out if x is None else x
        many = isinstance(like, (list, tuple))
        likes = like if many else [like]
        if not any(map(is_array, likes)):
            self._pending.flush()
            return self._comm.all_reduce(x, op, weight=weight, out=out)
        if op == "avg" and any(value.dtype.kind != "f" for value in likes):
            return self._comm.all_reduce(*map(_on_host, (x,)), op, weight=weight)  # it says why not
        own = 0.0 if x is None else 1.0 if weight is None else float(weight)
        made = self._noted(likes, op, own)
        return made if many else made[0]

    def _noted(self, likes: Sequence[Any], op: str, own: float) -> List[Any]:
        forms = tuple([(value.dtype.name, tuple(value.shape)) for value in likes])
        step = Note(("reduce", None, op, own != 0.0, forms), weight=own)
        return self._pending.add(step, [SHARE, SHARE, *likes], likes)

    def reduce(
        self, x: Any, op: str = "sum", root: int = 0, *, weight: Optional[float] = None
    ) -> Any:
        """As `all_reduce`; ranks other than the root get None."""
        many = isinstance(x, (list, tuple))
        given = list(x) if many else [x]
        if not any(map(is_array, given)):
            self._pending.flush()
            return self._comm.reduce(x, op, root, weight=weight)
        if op == "avg" and any(value.dtype.kind != "f" for value in given):
            return self._comm.reduce(_on_host(x), op, root, weight=weight)  # it says why not
        made = self._noted(given, op, 1.0 if weight is None else float(weight))
        if self._comm.rank != root:
            return None
        return made if many else made[0]

    def awaiting(self) -> ContextManager[None]:
        """Return a block in which to wait for programs; it ends if a rank dies."""
        return self._group.awaiting()  # type: ignore[no-any-return]

    def raised(self, error: BaseException) -> bool:
        """Return whether an error is about the ranks of this communicator."""
        return self._group.raised is error or bool(self._comm.raised(error))

    def close(self) -> None:
        """Leave the group, once the device has done its work or will never do it."""
        self._group.close()
        self._comm.close()


class _Joined:
    """Reductions over all ranks, as one traceable part of a program."""

    def __init__(self, keys: Sequence[Any], prepare: Callable[..., Any]) -> None:
        self._parts = [(op, contributes, forms) for _, _, op, contributes, forms in keys]
        ops, self._shapes = [], []
        for op, _, forms in self._parts:
            for dtype, shape in forms:
                ops.append("sum" if op == "avg" else op)
                self._shapes.append(jax.ShapeDtypeStruct(shape, _wide(op, dtype)))
        self._call = prepare(ops, self._shapes)

    def __call__(self, given: Sequence[Sequence[Any]], after: Sequence[Any]) -> List[List[Any]]:
        """Return the results of each reduction; `after` are results of what has to come before.

        Args:
            given: of each the factor of this rank, the divisor of the sum, and its arrays.
        """
        sources: List[Any] = []
        for (op, contributes, forms), (factor, _, *arrays) in zip(self._parts, given):
            for array, (dtype, shape) in zip(arrays, forms):
                wide = _wide(op, dtype)
                if not contributes:
                    sources.append(jnp.full(shape, _neutral(op, np.dtype(wide)), wide))
                else:
                    own = array.astype(wide)
                    sources.append(own * factor.astype(wide) if op == "avg" else own)
        reduced = iter(buffer_callback(self._call, self._shapes)(*sources, *after))
        results = []
        for (op, _, forms), (_, divisor, *_) in zip(self._parts, given):
            own = [next(reduced) for _ in forms]
            if op == "avg":
                own = [value / divisor.astype(value.dtype) for value in own]
            results.append([value.astype(dtype) for value, (dtype, _) in zip(own, forms)])
        return results


def _wide(op: str, dtype: str) -> str:
    """Return the dtype in which values are reduced."""
    return "float32" if dtype == "float16" and op not in ("max", "min") else dtype


def _neutral(op: str, dtype: Any) -> Any:
    """Return the number that changes no other one."""
    if op not in ("max", "min"):
        return int(op == "prod")
    if dtype.kind == "f":
        return -math.inf if op == "max" else math.inf
    limits = np.iinfo(dtype)
    return limits.min if op == "max" else limits.max


def _on_host(x: Any) -> Any:
    return [to_host(value) for value in x] if isinstance(x, (list, tuple)) else to_host(x)


class ProgramGroup:
    """The ranks' agreement on the collectives of a program, and its launch.

    Attributes:
        raised: the last error that all ranks have raised.
    """

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.raised: Optional[BaseException] = None

    def joined(self, keys: Sequence[Any]) -> _Joined:
        """Return reductions by the keys of their steps, as a part of programs."""
        return _Joined(keys, self.prepared)

    def prepared(self, ops: Sequence[str], shapes: Sequence[Any]) -> Callable[..., None]:
        """Return what reduces buffers of these forms, for XLA to call."""
        raise NotImplementedError

    def agree(self, steps: Sequence[Note]) -> List[Tuple[float, float]]:
        """Compare reductions on all ranks; return (factor, divisor) of each.

        Raises:
            MismatchError: they differ; raised on all ranks.
        """
        # Whether a rank contributes may differ.
        calls = tuple([(step.key[2], step.key[4]) for step in steps])
        mine = np.array([_named(calls), *(step.weight for step in steps)])
        parts = self.comm.all_gather(mine)
        if any(part[0] != mine[0] for part in parts):
            texts = self.comm.all_gather_object(_described(calls))
            self._raise("the ranks called different collectives, or with unlike arrays", texts)
        shares = []
        for n, step in enumerate(steps, 1):
            weights = [float(part[n]) for part in parts]
            given = [weight for weight in weights if weight]
            if not given:
                texts = self.comm.all_gather_object(_described(calls))
                self._raise("no rank contributes to a reduction", texts)
            if min(given) == max(given):
                shares.append((1.0, float(len(given))))
            else:
                # By a power of two, which changes no bit of the average, into float32's range.
                exponent = -math.frexp(max(given))[1]
                small = [math.ldexp(weight, exponent) for weight in given]
                shares.append((math.ldexp(step.weight, exponent), math.fsum(small)))
        return shares

    def _raise(self, problem: str, texts: Sequence[str]) -> None:
        lines = "".join(f"\n  rank {rank}: {text}" for rank, text in enumerate(texts))
        error = synk_comm.MismatchError(f"{problem}:{lines}", calls=dict(enumerate(texts)))
        self.raised = error
        raise error

    def unchecked(self, compiled: Any) -> Callable[..., List[Any]]:
        """Return what runs a compiled program that calls Python on arguments of its forms. JAX
        would check them each time, which takes longer than the launch."""
        executable = getattr(compiled, "_executable", None)
        run: Callable[..., List[Any]] = getattr(executable, "unsafe_call", compiled)
        return run

    def awaiting(self) -> ContextManager[None]:
        """Return a block in which to wait for programs; it ends if a rank dies."""
        return nullcontext()

    def close(self) -> None:
        """Wait a while for programs that were launched."""


@lru_cache(maxsize=256)
def _named(calls: Any) -> float:
    """Return a number, an integer of 52 bits, that other calls have not."""
    octets = hashlib.blake2b(repr(calls).encode(), digest_size=8).digest()
    return float(int.from_bytes(octets, "little") >> 12)


def _described(calls: Sequence[Any]) -> str:
    texts = []
    for op, forms in calls:
        arrays = ", ".join(f"{dtype} {shape}" for dtype, shape in forms[:8])
        more = f", ... {len(forms)} arrays in all" if len(forms) > 8 else ""
        texts.append(f"{op} of {arrays}{more}")
    return "; ".join(texts)


class NcclGroup(ProgramGroup):
    """The same with NCCL on XLA's stream."""

    def __init__(self, comm: Any) -> None:
        super().__init__(comm)
        self._last: List[Any] = []

    def prepared(self, ops: Sequence[str], shapes: Sequence[Any]) -> Callable[..., None]:
        kinds = [(shape.dtype.str, shape.shape) for shape in shapes]
        enqueue = self.comm.prepared_all_reduce(ops, kinds)

        def reduced(context: Any, outs: Any, *buffers: Any) -> None:
            # Behind them is the result that has to come before.
            froms = [b.__cuda_array_interface__["data"][0] for b in buffers[: len(outs)]]
            tos = [out.__cuda_array_interface__["data"][0] for out in outs]
            enqueue(froms, tos, int(context.stream))

        return reduced

    def launch(self, run: Any, leaves: Sequence[Any]) -> List[Any]:
        """Start a program; all ranks do."""
        try:
            results: List[Any] = run(*leaves)
        except BaseException as error:
            # The others' devices would wait for this one for ever.
            self.comm.abort(f"a program did not start: {type(error).__name__}: {error}")
            raise
        self._last = results
        return results

    def awaiting(self) -> ContextManager[None]:
        awaiting: ContextManager[None] = self.comm.awaiting_work()
        return awaiting

    def close(self) -> None:
        # NCCL cannot be ended in order before.
        deadline = time.monotonic() + CLOSE_S
        while not all(result.is_ready() for result in self._last):
            if time.monotonic() > deadline or self.comm.ended() is not None:
                return
            time.sleep(0.001)
        with suppress(synk_comm.CommError), self.awaiting():
            pass

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
from typing import Any, ContextManager, List, Optional, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.buffer_callback import buffer_callback

import synk_comm

from .pending import SHARE, Pending, Step
from .arrays import is_array, real, to_host

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
        self._steps: dict[Any, Step] = {}
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
        made = self._pending.add(self._step(op, likes, own), [SHARE, SHARE, *likes], likes)
        return list(made) if many else made[0]

    def reduce(
        self, x: Any, op: str = "sum", root: int = 0, *, weight: Optional[float] = None
    ) -> Any:
        """As `all_reduce`; ranks other than the root get None."""
        first = x[0] if isinstance(x, (list, tuple)) and x else x
        if not is_array(first):
            self._pending.flush()
            return self._comm.reduce(x, op, root, weight=weight)
        made = self.all_reduce(x, op, weight=weight)
        return made if self._comm.rank == root else None

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

    def _step(self, op: str, likes: Sequence[Any], weight: float) -> Step:
        """Return the step that reduces such arrays."""
        forms = tuple([(value.dtype.name, tuple(value.shape)) for value in likes])
        key = op, forms, weight != 0.0
        if key not in self._steps:
            wide = [_wide(op, dtype) for dtype, _ in forms]
            shapes = [jax.ShapeDtypeStruct(shape, dtype) for dtype, (_, shape) in zip(wide, forms)]
            reduced = self._group.prepared("sum" if op == "avg" else op, shapes)
            run = _Reduction(op, weight != 0.0, shapes, reduced)
            self._steps[key] = Step(("reduce", *key), run, (op, forms))
        return self._steps[key]._replace(collective=((op, forms), weight))


class _Reduction:
    """The traceable part of a program that reduces arrays over all ranks."""

    def __init__(self, op: str, contributes: bool, shapes: Sequence[Any], reduced: Any) -> None:
        self._op, self._contributes = op, contributes
        self._shapes, self._reduced = list(shapes), reduced

    def __call__(self, factor: Any, divisor: Any, *arrays: Any, after: Sequence[Any] = ()) -> Any:
        """Return the reduced arrays; `after` are results of what has to come before."""
        op, given = self._op, []
        for array, shape in zip(arrays, self._shapes):
            if not self._contributes:
                given.append(jnp.full(shape.shape, _neutral(op, shape.dtype), shape.dtype))
                continue
            own = array.astype(shape.dtype)
            given.append(own * factor.astype(shape.dtype) if op == "avg" else own)
        results = buffer_callback(self._reduced, self._shapes)(*given, *after)
        if op == "avg":
            results = [r / divisor.astype(r.dtype) for r in results]
        return [r.astype(array.dtype) for r, array in zip(results, arrays)]


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


class Group:
    """The ranks' agreement on the collectives of a program, and its launch.

    Attributes:
        raised: the last error that all ranks have raised.
    """

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.raised: Optional[BaseException] = None

    def agree(self, collectives: Sequence[Tuple[Any, float]]) -> List[Tuple[float, float]]:
        """Compare collectives on all ranks; return (factor, divisor) of each.

        Raises:
            MismatchError: they differ; raised on all ranks.
        """
        calls = tuple([call for call, _ in collectives])
        mine = np.array([_named(calls), *(weight for _, weight in collectives)])
        parts = self.comm.all_gather(mine)
        if any(part[0] != mine[0] for part in parts):
            texts = self.comm.all_gather_object(_described(calls))
            self._raise("the ranks called different collectives, or with unlike arrays", texts)
        shares = []
        for n, (_, own) in enumerate(collectives, 1):
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
                shares.append((math.ldexp(own, exponent), math.fsum(small)))
        return shares

    def _raise(self, problem: str, texts: Sequence[str]) -> None:
        lines = "".join(f"\n  rank {rank}: {text}" for rank, text in enumerate(texts))
        error = synk_comm.MismatchError(f"{problem}:{lines}", calls=dict(enumerate(texts)))
        self.raised = error
        raise error

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


class NcclGroup(Group):
    """The same with NCCL on XLA's stream."""

    def __init__(self, comm: Any) -> None:
        super().__init__(comm)
        self._last: List[Any] = []

    def prepared(self, op: str, shapes: Sequence[Any]) -> Any:
        """Return what reduces buffers of these forms, for XLA to call."""
        kinds = [(shape.dtype.str, shape.shape) for shape in shapes]
        enqueue = self.comm.prepared_all_reduce(op, kinds)

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

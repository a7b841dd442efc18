"""What a rank says as it enters a collective, and how the ranks' calls are compared.

A *head* is the encoded form of a ``Call``. Ranks that call the same thing have byte-identical
heads, so the usual comparison is one ``==`` on bytes; only when they differ are they decoded.
Heads are JSON: nothing in them can run code.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .exceptions import MismatchError

HEAD_BYTES = 16384
"""Room for a head and its length (4 bytes)."""

_REASON_CHARS = 10_000

Shape = tuple[int, ...]


class Call(NamedTuple):
    """One rank's call.

    Attributes:
        kind: name of the method.
        op: reduce op, or "".
        root: root rank, or -1.
        dtype: as text (see ``dtype_text``), "" if this rank brings no array.
        shapes: of the array brought; for scatter, of all arrays in rank order.
        weight: weight of this rank's contribution; 0 if it contributes nothing.
        text: reason, of ``decline`` only.
    """

    kind: str
    op: str = ""
    root: int = -1
    dtype: str = ""
    shapes: tuple[Shape, ...] = ()
    weight: float = 1.0
    text: str = ""

    def __str__(self) -> str:
        if self.kind == "decline":
            return f"decline({self.text!r})"
        words = [self.op] if self.op else []
        if self.dtype:
            words.append(self.dtype)
            words.extend(str(shape) for shape in self.shapes)
        if not self.weight:
            words.append("contributing nothing")
        elif self.weight != 1.0:
            words.append(f"weight {self.weight:g}")
        if self.root >= 0:
            words.append(f"root {self.root}")
        return f"{self.kind}({', '.join(words)})"


def shorten(text: str, limit: int = _REASON_CHARS) -> str:
    """Cut the middle out of a long text: the ends of a traceback say most."""
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


@lru_cache(maxsize=256)
def encode(call: Call) -> bytes:
    """Return the head of a call; ValueError if it is too long to be sent."""
    head = json.dumps(call, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    if len(head) > HEAD_BYTES - 4:
        raise ValueError(
            f"the description of this {call.kind} takes {len(head)} bytes, but at most "
            f"{HEAD_BYTES - 4} can be sent; use a simpler dtype or fewer ranks"
        )
    return head


def encode_decline(reason: str) -> bytes:
    """Return the head of a decline, shortened until it fits, whatever characters it holds."""
    limit = _REASON_CHARS
    while True:
        try:
            return encode(Call("decline", weight=0.0, text=shorten(reason, limit)))
        except ValueError:
            limit //= 2


@lru_cache(maxsize=256)
def decode(head: bytes) -> Call:
    """Return the call that a head describes."""
    kind, op, root, dtype, shapes, weight, text = json.loads(head.decode("utf-8"))
    shapes = tuple(tuple(int(n) for n in shape) for shape in shapes)
    return Call(str(kind), str(op), int(root), str(dtype), shapes, float(weight), str(text))


# NumPy 1 does not annotate it.
_FORMAT: Any = np.lib.format


@lru_cache(maxsize=256)
def dtype_text(dtype: np.dtype[Any]) -> str:
    """Describe a dtype in text that ``text_dtype`` reads back; TypeError if that cannot be."""
    if dtype.hasobject or dtype.kind not in "biufcSUmMV":
        raise TypeError(
            f"arrays of dtype {dtype} cannot travel between ranks; expected a dtype without "
            "Python objects (small Python objects go by the *_object methods)"
        )
    plain = dtype.names is None
    text = dtype.str if plain else repr(_FORMAT.dtype_to_descr(dtype))
    if text_dtype(text) != dtype:
        raise TypeError(f"dtype {dtype!r} cannot be described to other ranks; use a view of it")
    return text


@lru_cache(maxsize=256)
def text_dtype(text: str) -> np.dtype[Any]:
    """Return the dtype that ``dtype_text`` described."""
    if text.startswith("["):
        described: np.dtype[Any] = _FORMAT.descr_to_dtype(ast.literal_eval(text))
        return described
    return np.dtype(text)


def bring(
    kind: str,
    x: NDArray[Any] | None,
    root: int | None,
    *,
    op: str = "",
    weight: float | None = None,
) -> Call:
    """Describe a call that brings one array, or none."""
    if weight is None:
        weight = 0.0 if x is None and kind in ("gather", "all_gather") else 1.0
    dtype = "" if x is None else dtype_text(x.dtype)
    shapes = () if x is None else (x.shape,)
    return Call(kind, op, -1 if root is None else root, dtype, shapes, weight)


def nbytes(call: Call, which: int = 0) -> int:
    """Return the length of an array that a call brings; 0 if it brings none."""
    if not call.dtype:
        return 0
    return math.prod(call.shapes[which]) * text_dtype(call.dtype).itemsize


def declined(calls: Sequence[Call]) -> dict[int, str]:
    """Return the reasons of the ranks that declined, by rank."""
    return {rank: call.text for rank, call in enumerate(calls) if call.kind == "decline"}


def check_agreement(calls: Sequence[Call]) -> None:
    """Raise MismatchError, the same on every rank, unless the calls fit together."""
    problem = _disagreement(calls)
    if problem is None:
        return
    said = {rank: str(call) for rank, call in enumerate(calls)}
    lines = "".join(f"\n  rank {rank}: {text}" for rank, text in said.items())
    raise MismatchError(f"{problem}:{lines}", calls=said)


def _disagreement(calls: Sequence[Call]) -> str | None:
    first = calls[0]
    if any((call.kind, call.op, call.root) != (first.kind, first.op, first.root) for call in calls):
        return "the ranks called different collectives"
    kind = first.kind
    optional = kind in ("reduce", "all_reduce", "gather", "all_gather")
    if optional and not any(call.weight for call in calls):
        return f"no rank contributes to this {kind}"
    if optional or kind == "broadcast":
        brought: list[Call] = [call for call in calls if call.dtype]
        if len({call.dtype for call in brought}) > 1:
            return f"the ranks brought different dtypes to this {kind}"
        if kind in ("gather", "all_gather"):
            if len({len(call.shapes[0]) for call in brought}) > 1:
                return f"the ranks brought different numbers of dimensions to this {kind}"
        elif len({call.shapes for call in brought}) > 1:
            return f"the ranks brought different shapes to this {kind}"
    return None

"""Description of a rank's call of a collective, and comparison of all ranks' calls.

A *head* is an encoded ``CollectiveCall``: JSON, compressed if long, so that nothing in it can run
code. Equal calls have equal bytes; heads are decoded only if they differ.
"""

from __future__ import annotations

import ast
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Tuple

import numpy as np

from synk_comm.exceptions import AbortedError, ClosedError, MismatchError, PeerDeclined, PeerLost

from .table import DIMENSIONS, row_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEAD_BYTES = 16384
"""Room for a head and its length (4 bytes)."""

_REASON_CHARS = 10_000
_LONG = 4096
_MAX_TEXT = 1 << 22
_SHOWN = 8
"""Arrays of a long list that an error shows."""

Shape = Tuple[int, ...]
Kind = Tuple[str, Shape]
"""dtype (see ``dtype_text``) and shape of an array."""

ON_DEVICES = " of device arrays"
"""Ends the kind of a call whose arrays lie on GPUs."""


class CollectiveCall(NamedTuple):
    """One rank's call of a collective.

    ``outs`` are those of each ``out``, by source rank (one for scatter), None for ranks that send
    nothing; empty without ``out``. ``place`` is, of device arrays, "apart" if equal arrays of all
    ranks would not lie in one block.
    """

    kind: str  # name of the method; of device arrays with ``ON_DEVICES`` behind it
    op: str = ""
    root: int = -1
    arrays: Tuple[Kind, ...] = ()  # one array, or those of a list, or one for each rank
    outs: Tuple[Optional[Kind], ...] = ()
    weight: float = 1.0  # 0 if this rank contributes nothing
    many: bool = False  # whether this is a collective on each of ``arrays``
    place: str = ""
    text: str = ""  # reason, of ``decline`` only

    def __str__(self) -> str:
        if self.kind == "decline":
            return f"decline({self.text!r})"
        words = [self.op] if self.op else []
        words.extend(_describe(self.arrays))
        if self.outs:
            words.append(f"out={', '.join(_describe(self.outs))}")
        if not self.weight:
            words.append("contributing nothing")
        elif self.weight != 1.0:
            words.append(f"weight {self.weight:g}")
        if self.root >= 0:
            words.append(f"root {self.root}")
        where = ON_DEVICES if self.on_devices else ""
        return f"{self.method}({', '.join(words)}){where}"

    @property
    def on_devices(self) -> bool:
        """Whether the arrays lie on GPUs."""
        return self.kind.endswith(ON_DEVICES)

    @property
    def method(self) -> str:
        """Name of the method alone."""
        return self.kind[: -len(ON_DEVICES)] if self.on_devices else self.kind


def _describe(arrays: Iterable[Kind | None]) -> list[str]:
    said = ["nothing" if array is None else f"{array[0]} {array[1]}" for array in arrays]
    return said if len(said) <= _SHOWN else [*said[:_SHOWN], f"... {len(said)} arrays in all"]


def count_bytes(kind: Kind | None) -> int:
    return 0 if kind is None else math.prod(kind[1]) * text_dtype(kind[0]).itemsize


def shorten(text: str, limit: int) -> str:
    """Cut the middle out of a long text: the ends of a traceback say most."""
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def brief(exc: BaseException) -> str:
    """Return type and first line of an exception."""
    try:
        text = str(exc)
    except (Exception, SystemExit):  # noqa: BLE001 - a broken __str__ must not hide the exception
        text = "(its text cannot be read)"
    first = text.strip().partition("\n")[0]
    return shorten(f"{type(exc).__qualname__}: {first}" if first else type(exc).__qualname__, 500)


_NO_NEWS = (GeneratorExit, ClosedError, MismatchError, PeerDeclined)


def chain(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its cause, the cause of that, and so on."""
    link: BaseException | None = exc
    for _ in range(100):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__


def word_to_peers(exc: object) -> str:
    """Return the abort text of a rank that leaves its group by an exception; "" if it needs none.

    An error that ended the group, or that all ranks raised, is not sent to them again.
    """
    if not isinstance(exc, BaseException) or isinstance(exc, _NO_NEWS):
        return ""
    if isinstance(exc, SystemExit) and not exc.code:
        return ""
    known = any(isinstance(link, (AbortedError, PeerLost)) for link in chain(exc))
    return "" if known else brief(exc)


@lru_cache(maxsize=256)
def encode(call: CollectiveCall) -> bytes:
    """Return the head of a call; ValueError if it is too long to be sent."""
    head = json.dumps(call, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    if len(head) > _LONG:
        head = b"z" + zlib.compress(head, 1)
    if len(head) > HEAD_BYTES - 4:
        raise ValueError(
            f"the description of this {call.kind} takes {len(head)} bytes, but at most "
            f"{HEAD_BYTES - 4} can be sent; use a simpler dtype, fewer ranks or a shorter list"
        )
    return head


def encode_decline(reason: str) -> bytes:
    """Return the head of a decline, shortened until it fits, whatever characters it holds."""
    limit = _REASON_CHARS
    while True:
        try:
            return encode(CollectiveCall("decline", weight=0.0, text=shorten(reason, limit)))
        except ValueError:
            limit //= 2


@lru_cache(maxsize=256)
def decode(head: bytes) -> CollectiveCall:
    """Return the call that a head describes."""
    if head.startswith(b"z"):
        head = zlib.decompressobj().decompress(head[1:], _MAX_TEXT)
    call = CollectiveCall(*json.loads(head.decode("utf-8")))
    return call._replace(arrays=tuple(map(_kind, call.arrays)), outs=tuple(map(_kind, call.outs)))


def _kind(said: Any) -> Any:
    return said and (str(said[0]), tuple(map(int, said[1])))


# NumPy 1 does not annotate it.
FORMAT: Any = np.lib.format


@lru_cache(maxsize=256)
def dtype_text(dtype: np.dtype[Any]) -> str:
    """Describe a dtype in text that ``text_dtype`` reads back; TypeError if that cannot be."""
    if dtype.hasobject or dtype.kind not in "biufcSUmMV":
        raise TypeError(
            f"arrays of dtype {dtype} cannot travel between ranks; expected a dtype without "
            "Python objects (small Python objects go by the *_object methods)"
        )
    plain = dtype.names is None
    text = dtype.str if plain else repr(FORMAT.dtype_to_descr(dtype))
    if text_dtype(text) != dtype:
        raise TypeError(f"dtype {dtype!r} cannot be described to other ranks; use a view of it")
    return text


@lru_cache(maxsize=256)
def text_dtype(text: str) -> np.dtype[Any]:
    """Return the dtype that ``dtype_text`` described."""
    if text.startswith("["):
        described: np.dtype[Any] = FORMAT.descr_to_dtype(ast.literal_eval(text))
        return described
    return np.dtype(text)


def kind_of(x: NDArray[Any]) -> Kind:
    return dtype_text(x.dtype), x.shape


def declined(calls: Sequence[CollectiveCall]) -> dict[int, str]:
    """Return the reasons of the ranks that declined, by rank."""
    return {rank: call.text for rank, call in enumerate(calls) if call.kind == "decline"}


def check_agreement(calls: Sequence[CollectiveCall]) -> None:
    """Raise MismatchError, the same on every rank, unless the calls fit together."""
    problem = _disagreement(calls)
    if problem is not None:
        said = {rank: str(call) for rank, call in enumerate(calls)}
        lines = "".join(f"\n  rank {rank}: {text}" for rank, text in said.items())
        raise MismatchError(f"{problem}:{lines}", calls=said)


def _disagreement(calls: Sequence[CollectiveCall]) -> str | None:
    first = calls[0]
    if any((call.kind, call.op, call.root) != (first.kind, first.op, first.root) for call in calls):
        return "the ranks called different collectives"
    method = first.method
    row = row_of(method)
    if row.optional and not any(call.weight for call in calls):
        return f"no rank contributes to this {method}"
    brought = [call for call in calls if call.arrays]
    if len({(call.many, len(call.arrays)) for call in brought}) > 1:
        return f"the ranks brought different numbers of arrays to this {method}"
    if len({tuple(dtype for dtype, _ in call.arrays) for call in brought}) > 1:
        return f"the ranks brought different dtypes to this {method}"
    shapes = {tuple(shape for _, shape in call.arrays) for call in brought}
    if row.alike == DIMENSIONS:
        if any(call.outs for call in calls) and any(call.many for call in calls):
            return f"this {method} got a list from one rank and out from another"
        shapes = {tuple((len(shape),) for shape in theirs) for theirs in shapes}
    if row.alike and len(shapes) > 1:
        return f"the ranks brought different {row.alike} to this {method}"
    for receiver, call in enumerate(calls):
        if call.outs and list(call.outs) != received(calls, receiver):
            return f"out of rank {receiver} does not fit what this {method} would put there"
    return None


def received(calls: Sequence[CollectiveCall], receiver: int) -> list[Kind | None]:
    """Return the arrays that a rank receives, by source rank, or from the only sender."""
    one = row_of(calls[0].method).root == "sends"
    senders = [calls[calls[0].root]] if one else calls
    return [sent_to(receiver, call, len(calls)) for call in senders]


def sent_to(receiver: int, call: CollectiveCall, size: int) -> Kind | None:
    """Return the array of a rank's call for another rank, or None."""
    row = row_of(call.method)
    if row.in_blocks and not call.many:
        dtype, shape = call.arrays[0]
        return dtype, (shape[0] // size, *shape[1:])
    return call.arrays[receiver if row.sends == "parts" else 0] if call.arrays else None

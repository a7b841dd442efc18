"""Arrays of ``Communicator.empty``: which they are, and where their twins on other ranks lie."""

from __future__ import annotations

import weakref
from typing import NamedTuple

from .lists import address
from .ops import Array


class _Allocation(NamedTuple):
    number: int
    root: weakref.ref[Array]
    start: int
    twins: list[Array]


class Symmetric:
    """The symmetric arrays of one communicator that still live."""

    def __init__(self) -> None:
        self._records: dict[int, _Allocation] = {}
        self._numbered: dict[int, _Allocation] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._records)

    def add(self, own: Array, twins: list[Array]) -> None:
        """Take flat bytes of this rank, and those of all ranks, which must not keep it alive."""
        key, number = id(own), self._count
        self._count += 1

        def forget(_: object) -> None:
            self._records.pop(key, None)
            self._numbered.pop(number, None)

        record = _Allocation(number, weakref.ref(own, forget), address(own), twins)
        self._records[key] = self._numbered[number] = record

    def place(self, x: Array) -> str:
        """Say where ``x`` lies, in words that are the same on all ranks; "" if nowhere."""
        if not self._records or not x.flags.c_contiguous or not isinstance(x.base, type(x)):
            return ""
        record = self._records.get(id(x.base))
        if record is None or record.root() is not x.base:
            return ""
        return f"{record.number}+{address(x) - record.start}"

    def at(self, place: str, nbytes: int) -> list[Array]:
        """Return the flat bytes of all ranks at a place."""
        number, _, offset = place.partition("+")
        start = int(offset)
        return [twin[start : start + nbytes] for twin in self._numbered[int(number)].twins]

"""The data of the model: processes, families, segments with their names, arrays, messages.

Names have three states, because a kill in the middle of a command has two possible outcomes, and so
has a dead family until another process cleans up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

THERE, MAYBE, GONE = "there", "maybe", "gone"


@dataclass(eq=False, repr=False)
class Actor:
    """A process. `armed`: whether it has had shared arrays, so belongs to its home family."""

    name: str
    how: str
    home: str
    parent: Optional[Actor] = None
    mp_parent: Optional[Actor] = None
    daemon: bool = False
    armed: Optional[bool] = False
    alive: bool = True
    vars: dict[str, Holding] = field(default_factory=dict)
    mappings: list[Mapping] = field(default_factory=list)
    locks: dict[str, Segment] = field(default_factory=dict)

    def usable(self, segment: Segment, readonly: bool) -> Optional[Mapping]:
        """Return the mapping that one more attach shares, if there is one."""
        for mapping in self.mappings:
            if (mapping.segment, mapping.readonly) == (segment, readonly):
                if not (mapping.closed or mapping.unlinked):
                    return mapping
        return None


@dataclass(eq=False, repr=False)
class Entry:
    """A name of a segment; `owners` remove it, and its family when that is dead."""

    name: str
    family: str
    owners: set[Mapping]
    state: str = THERE
    user: bool = False


@dataclass(eq=False, repr=False)
class Segment:
    """Memory. `vague`: a resize was killed, so the length is unknown."""

    number: int
    family: str
    backend: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    capacity: int
    inode: int = 0
    vague: bool = False
    ghosts: bool = False
    entries: dict[str, Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # One byte at least: NumPy gives empty arrays an address inside of their buffer.
        self.memory = np.zeros(self.capacity + self.dtype.itemsize, "u1")
        self.known = np.ones(len(self.memory), bool)

    def __repr__(self) -> str:
        return f"segment {self.number} {self.shape} {self.dtype} of family {self.family}"

    def whole(self) -> np.ndarray:
        order: Any = "F" if self.fortran else "C"
        return np.ndarray(self.shape, self.dtype, self.memory, order=order)

    def is_whole(self, array: np.ndarray) -> bool:
        """Return whether `resize` accepts this array as the whole of the segment."""
        return (
            array.dtype == self.dtype
            and array.shape == self.shape
            and array.flags.c_contiguous
            and address(array) == address(self.memory)
        )

    def known_bytes(self, array: np.ndarray) -> np.ndarray:
        """Return, writable, whether the value of each byte of an array here is known."""
        return np.ndarray(
            (*array.shape, array.itemsize),
            bool,
            self.known,
            address(array) - address(self.memory) if array.size else 0,
            (*array.strides, 1),
        )

    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=int)) * self.dtype.itemsize

    def states(self) -> set[str]:
        return {entry.state for entry in self.entries.values()}

    def forget_names(self, state: str = GONE) -> None:
        for entry in self.entries.values():
            if entry.state != GONE:
                entry.state = state


@dataclass(eq=False, repr=False)
class Mapping:
    """A segment in a process. `via`: the names by which it was attached."""

    actor: Actor
    segment: Segment
    readonly: bool
    owner: bool = False
    closed: bool = False
    unlinked: bool = False
    via: set[str] = field(default_factory=set)

    def owned(self) -> list[Entry]:
        return [entry for entry in self.segment.entries.values() if self in entry.owners]

    def arrays(self) -> int:
        return sum(holding.mapping is self for holding in self.actor.vars.values())


@dataclass(eq=False, repr=False)
class Holding:
    """An array of a process, and the same view of the model's memory."""

    array: np.ndarray
    mapping: Mapping


@dataclass(eq=False, repr=False)
class Address:
    """A Handle. For a segment without names it works while its maker has it open."""

    value: Any
    array: np.ndarray
    segment: Segment
    source: Mapping


@dataclass(eq=False, repr=False)
class Message:
    """An array that was sent. `entry` is the name made for it, `address` the sender's."""

    data: bytes
    array: np.ndarray
    source: Mapping
    entry: Optional[Entry]
    address: str
    readonly: bool
    deliveries: int = 0


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])

"""The flight recorder: the phase and the last acts of every rank, in shared memory.

Each rank writes to a block of 64-bit integers of its own, and the master reads it when something
fails, also after the rank was killed.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import partial
from typing import Any, Callable, List, NamedTuple, Tuple

from synk_core._plan.collectives import COLLECTIVES
from synk_core.exceptions import Interrupted


class Phase(IntEnum):
    """Phases of a rank."""

    START = 0
    IDLE = 1
    TAKE_IN = 2
    DISTRIBUTE = 3
    COPY = 4
    COMPUTE = 5
    SLICE = 6
    REDUCE = 7
    COLLECTIVE = 8
    END = 9
    CLOSE = 10
    FAIL = 11
    COMPILE = 12
    DEVICE = 13


OWN_WORK = (Phase.COPY, Phase.COMPUTE, Phase.SLICE)
"""Phases in which a rank does not need the others, and can be interrupted."""


def in_slice(phase: int, number: int) -> int:
    """Return a phase within a slice, from 1."""
    return phase | number << _PHASE_BITS


class ActOutcome(IntEnum):
    """Results of an act."""

    UNDER_WAY = 0
    DONE = 1
    FAILED = 2
    UNDONE = 3


KINDS = ("function", *COLLECTIVES, "distribute", "prefetch", "feature")
"""Kinds of acts."""

RECORDS = 8
"""Acts that are kept of each rank."""

_PHASE, _COUNT, _INTERRUPT = range(3)
_PHASE_BITS = 8
_PHASES = (1 << _PHASE_BITS) - 1
_HEADER = 8
_ACT = struct.Struct("4q")  # serial, kind, subject, outcome
_WIDTH = _ACT.size // 8
_OUTCOME = 3

WORDS = _HEADER + RECORDS * _WIDTH
"""Integers of one rank's block."""


class ActRecord(NamedTuple):
    """One act; its subject is the number of a function, or how many variables there are."""

    serial: int
    kind: str
    subject: int
    outcome: ActOutcome


class Flight:
    """One rank's block, of a vector with `WORDS` int64 for each rank; `enter` records the phase,
    a `Phase` or `in_slice`, that begins."""

    def __init__(self, room: Any, rank: int) -> None:
        self._words: Any = memoryview(room)[rank * WORDS : (rank + 1) * WORDS]
        self._bytes: Any = self._words.cast("B")
        self._count = 0
        self._place = _HEADER
        self.record(None)

    def record(self, recorder: Any) -> None:
        """Inform a recorder from now on; None for none."""
        self.recorder = recorder
        # Hot: without a recorder, no Python code runs.
        store: Callable[[int], None] = partial(self._words.__setitem__, _PHASE)
        self.enter = store if recorder is None else self._enter

    def _enter(self, word: int) -> None:
        self._words[_PHASE] = word
        self.recorder.enter(word & _PHASES, word >> _PHASE_BITS)

    @property
    def word(self) -> int:
        """The phase as an integer, for `enter`."""
        word: int = self._words[_PHASE]
        return word

    def begin(self, serial: int, position: int, act: Any) -> None:
        """Record the begin of an act, whose `record` is its place in `KINDS` and its subject;
        raise Interrupted if the master gives the order up."""
        if self._words[_INTERRUPT] == serial:
            raise Interrupted
        self._place = place = _HEADER + self._count % RECORDS * _WIDTH
        _ACT.pack_into(self._bytes, place * 8, serial, *act.record, 0)
        self._count += 1
        self._words[_COUNT] = self._count
        if self.recorder is not None:
            self.recorder.begin((serial, position), act)

    def end(self, outcome: ActOutcome) -> None:
        """Record the end of the act that began last."""
        self._words[self._place + _OUTCOME] = outcome
        if self.recorder is not None:
            self.recorder.end()

    def mark(self, serial: int, outcome: ActOutcome) -> None:
        """Record another outcome of all acts of an order."""
        words, count = self._words, self._count
        for i in range(count - 1, max(count - RECORDS, 0) - 1, -1):
            place = _HEADER + i % RECORDS * _WIDTH
            if words[place] != serial:
                return
            words[place + _OUTCOME] = outcome

    def raise_if_interrupted(self, serial: int) -> None:
        """Raise Interrupted if the master gives this order up."""
        if self._words[_INTERRUPT] == serial:
            raise Interrupted

    # For the master.

    @property
    def phase(self) -> Tuple[Phase, int]:
        """The rank's phase, and its detail."""
        word = self.word
        return Phase(word & _PHASES), word >> _PHASE_BITS

    @property
    def interrupted(self) -> int:
        """The serial of the order to give up; 0 for none."""
        serial: int = self._words[_INTERRUPT]
        return serial

    @interrupted.setter
    def interrupted(self, serial: int) -> None:
        self._words[_INTERRUPT] = serial

    def acts(self) -> List[ActRecord]:
        """Return the last acts, oldest first."""
        count = self._words[_COUNT]
        found = []
        for i in range(max(count - RECORDS, 0), count):
            values = _ACT.unpack_from(self._bytes, (_HEADER + i % RECORDS * _WIDTH) * 8)
            serial, kind, subject, outcome = values
            found.append(ActRecord(serial, KINDS[kind], subject, ActOutcome(outcome)))
        return found

    def close(self) -> None:
        """Drop the shared memory; later records go nowhere."""
        self._words = memoryview(bytearray(WORDS * 8)).cast("q")
        self._bytes = self._words.cast("B")
        self.record(self.recorder)

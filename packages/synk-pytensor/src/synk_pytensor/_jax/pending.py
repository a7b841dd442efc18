"""Programs of XLA, composed of functions and collectives as an order names them.

`Pending` notes what is to be computed, and returns values that are not there yet. `flush` makes one
program of all notes, or finds the one that it made of such notes before, and starts it. Before a
program with collectives all ranks compare them: from then on nothing may fail on one rank alone.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import OrderedDict, deque
from contextlib import nullcontext
from operator import attrgetter
from typing import (
    Any,
    Callable,
    ContextManager,
    Deque,
    Dict,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import jax
import numpy as np

from .arrays import Lazy, values_at_once

MOST_PROGRAMS = 256
"""Programs that a rank keeps, for all their shapes."""

_keys = itertools.count(1)


class Note(NamedTuple):
    """A function or collective as a part of programs.

    Attributes:
        key: equal for steps that compute the same; second is the `new_key` of a holder, or None.
        run: traceable; takes arrays, and returns a list of them. None of a collective: see
            `ProgramGroup.joined`.
        weight: of this rank in a collective.
    """

    key: Any
    run: Optional[Callable[..., List[Any]]] = None
    weight: float = 1.0


def new_key(holder: Any) -> int:
    """Return a key for steps, whose programs are dropped when their holder is gone."""
    key = next(_keys)
    weakref.finalize(holder, _forget, key)
    return key


def _forget(key: int) -> None:
    # It runs wherever garbage is collected: the programs go at the next flush.
    for pending in list(_all):
        pending.gone.append(key)


Wired = Tuple[Note, Tuple[Any, ...]]
"""A step of a program, and from where its arguments come: the number of a leaf, or a result."""


class _Program:
    """Some steps as one program; compiled once for each form of its arguments."""

    def __init__(self, steps: Sequence[Wired], wanted: Sequence[Any], group: Any) -> None:
        runs = _grouped(steps, group)

        def composed(*leaves: Any) -> List[Any]:
            made: Dict[Any, Any] = {}
            before: Sequence[Any] = ()
            for run, members in runs:
                given = [
                    [leaves[w] if type(w) is int else made[w] for w in steps[number][1]]
                    for number in members
                ]
                if steps[members[0]][0].run is None:
                    # XLA may run independent ones in another order on ranks with other shapes.
                    results = run(given, before)
                    before = [min(itertools.chain(*results), key=attrgetter("size"))]
                else:
                    results = [run(*given[0])]
                for number, values in zip(members, results):
                    made.update(((number, i), value) for i, value in enumerate(values))
            return [made[place] for place in wanted]

        self.keys = {step.key[1] for step, _ in steps}
        self._jitted = jax.jit(composed)
        self._compiled: Dict[Any, Any] = {}
        self._group = group if any(step.run is None for step, _ in steps) else None

    def compiled(self, leaves: Sequence[Any]) -> Any:
        """Return the program for arguments of these forms; it is compiled now, before other ranks
        rely on this one."""
        forms = tuple([(leaf.shape, leaf.dtype) for leaf in leaves])
        found = self._compiled.get(forms)
        if found is None:
            found = self._jitted.lower(*leaves).compile()
            if self._group is not None:
                found = self._group.unchecked(found)
            self._compiled[forms] = found
        return found


def _grouped(steps: Sequence[Wired], group: Any) -> List[Tuple[Any, List[int]]]:
    """Return what runs which steps: collectives together, where none needs another's results."""
    runs: List[Tuple[Any, List[int]]] = []
    for number, (step, wires) in enumerate(steps):
        last = runs[-1][1] if runs else []
        needed = max((wire[0] for wire in wires if type(wire) is tuple), default=-1)
        if step.run is None and last and steps[last[0]][0].run is None and needed < last[0]:
            last.append(number)
        else:
            runs.append((step.run, [number]))
    return [
        (run or group.joined([steps[number][0].key for number in members]), members)
        for run, members in runs
    ]


class Pending:
    """Notes of what this rank is to compute.

    Attributes:
        bring: puts an array of the host on the device.
        group: the `ProgramGroup` that launches programs with collectives; None on a rank alone.
        apart: as of `Device`.
        at_once: whether each step is a program of its own.
        gone: keys of steps whose holders are gone.
    """

    def __init__(self, bring: Callable[[Any], Any]) -> None:
        self.group: Any = None
        self.apart: Callable[[], ContextManager[None]] = nullcontext
        self.at_once = values_at_once()
        self.gone: Deque[int] = deque()
        self.bring = bring
        self._notes = 0  # their number: others are those of earlier programs
        self._steps: List[Wired] = []
        self._leaves: List[Any] = []  # arguments of the program to be
        self._leaf_of: Dict[int, int] = {}  # by their identities
        self._made: List[weakref.ref[Lazy]] = []
        self._kept: List[Lazy] = []
        self._programs: OrderedDict[Any, _Program] = OrderedDict()
        self._places: List[Tuple[List[Any], Any]] = []  # with Lazy values, and the ones before
        self._numbers: Dict[float, Any] = {}
        _all.add(self)

    def add(self, step: Note, arguments: Sequence[Any], likes: Sequence[Any]) -> List[Any]:
        """Note a step; return its results, of the forms of `likes`."""
        wires, notes, leaves, leaf_of = [], self._notes, self._leaves, self._leaf_of
        for argument in arguments:
            value = argument
            if type(argument) is Lazy:
                if argument.array is None and argument.notes == notes:
                    wires.append(argument.wire)
                    continue
                value = argument.force()
            elif argument is SHARE:
                # A number of its own, given after the comparison.
                wires.append(len(leaves))
                leaves.append(self._number(1.0))
                continue
            key = id(value)
            if key not in leaf_of:
                leaf_of[key] = len(leaves)
                leaves.append(value)
            wires.append(leaf_of[key])
        number = len(self._steps)
        self._steps.append((step, tuple(wires)))
        made = [Lazy(self.flush, notes, (number, i), like) for i, like in enumerate(likes)]
        self._made += map(weakref.ref, made)
        if step.run is None:
            # Every rank performs it, whether or not it uses a result.
            self._kept += made
        if self.at_once:
            self.flush()
            return [value.array for value in made]
        return list(made)

    def put(self, place: List[Any], value: Any) -> None:
        """Put a result into a variable's storage."""
        if type(value) is Lazy:
            self._places.append((place, place[0]))
        place[0] = value

    def drop(self) -> None:
        """Forget all notes, as those of an order that failed."""
        self._clear()
        for place, before in reversed(self._places):
            if type(place[0]) is Lazy:
                place[0] = before if place[0].array is None else place[0].array
        self._places.clear()

    def _clear(self) -> None:
        self._notes += 1
        self._steps, self._leaves, self._leaf_of = [], [], {}
        self._made, self._kept = [], []

    def end(self, results: Any) -> bool:
        """Compute what is noted, as far as variables and these results need it; return whether all
        ranks have come here."""
        wanted = {id(place[0]) for place, _ in self._places}
        _find(results, wanted)
        synchronized = self.flush(wanted)
        for place, _ in self._places:
            if type(place[0]) is Lazy:
                place[0] = place[0].array
        self._places.clear()
        return synchronized

    def flush(self, wanted: Optional[Set[int]] = None) -> bool:
        """Compute what is noted; return whether there are collectives, for which all ranks come
        here.

        Args:
            wanted: identities of values; None for all that somebody refers to.

        Raises:
            MismatchError: the ranks' collectives differ; nothing was computed on any rank.
            PeerDeclined: another rank failed before.
        """
        if not self._steps:
            return False
        steps, leaves, made, kept = self._steps, self._leaves, self._made, self._kept
        self._clear()
        self._forget_gone()
        values = [value for value in (ref() for ref in made) if value is not None]
        if wanted is not None:
            # Not those that only a journal holds: nobody gets back to what was between two acts.
            keeps = wanted.union(map(id, kept))
            values = [value for value in values if id(value) in keeps]
        program = self._program(tuple(steps), tuple([value.wire for value in values]))
        run = program.compiled(leaves)
        collectives = [(step, wires) for step, wires in steps if step.run is None]
        if not collectives:
            results = run(*leaves)
        else:
            with self.apart():
                shares = self.group.agree([step for step, _ in collectives])
                for (_, wires), share in zip(collectives, shares):
                    for place, number in zip(wires, share):
                        leaves[place] = self._number(number)
                results = self.group.launch(run, leaves)
        for value, result in zip(values, results):
            value.array = result
        return bool(collectives)

    def _program(self, steps: Sequence[Wired], wanted: Sequence[Any]) -> _Program:
        key = tuple([(step.key, wires) for step, wires in steps]), wanted
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = _Program(steps, wanted, self.group)
            if len(self._programs) > MOST_PROGRAMS:
                self._programs.popitem(last=False)
        else:
            self._programs.move_to_end(key)
        return program

    def _number(self, number: float) -> Any:
        """Return a number on the device; numbers repeat from order to order."""
        if number not in self._numbers:
            if len(self._numbers) >= MOST_PROGRAMS:
                self._numbers.clear()
            self._numbers[number] = self.bring(np.asarray(number))
        return self._numbers[number]

    def _forget_gone(self) -> None:
        while self.gone:
            key = self.gone.popleft()
            for known in [k for k, program in self._programs.items() if key in program.keys]:
                del self._programs[known]


def _find(result: Any, wanted: Set[int]) -> None:
    """Add the identities of the `Lazy` values in results of acts."""
    if type(result) is Lazy:
        wanted.add(id(result))
    elif hasattr(result, "values"):  # a call's
        _find(result.values, wanted)
    elif isinstance(result, (list, tuple)):
        for item in result:
            _find(item, wanted)


SHARE = np.float64(1.0)
"""Stands for a number that a collective gets after the ranks have compared it."""

_all: weakref.WeakSet[Pending] = weakref.WeakSet()


class _Current(threading.local):
    """The notes of the order that this thread performs; None outside of orders."""

    pending: Optional[Pending] = None


CURRENT = _Current()

"""Prove a call: compare the ranks' results of their rows with one process's of all rows.

The master computes all rows from the values that the ranks start from, before its own part of the
call; the other ranks compute meanwhile. So the proof is of the call's own rows and results.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from synk_core._graph.digest import digest
from synk_core._graph.leaves import is_row_share
from synk_core._graph.random_streams import is_random_state
from synk_core._graph.shared import Storage, changed_by, store, value_of
from synk_core._graph.transfer.users_code import code_of, differing
from synk_core._graph.values import is_array, on_host
from synk_core._plan.ops import ROWLESS_OP
from synk_core._plan.rows import split_rows
from synk_core._rank.call import CallResult, PreparedCall
from synk_core._rank.outputs import Accumulator
from synk_core._rank.workplace import Workplace
from synk_core._wire.flight import Phase
from synk_core._wire.messages import PLAIN, Call
from synk_core.exceptions import NotExact

from .report import BY_SLICES, Comparison, Report, largest_magnitude, measure

ROUNDING = 16.0
"""Ulps by which results may differ, times the root of the number of rows: their order differs."""

TF32, MOST_COARSE = 2.0**-11, 0.25
"""Relative rounding of factors in TF32; and the largest limit, relative to the result, that proves
something there."""

_TURN = -1  # of the buffers for all rows

_SHAPES = "no collective combines values of these shapes"

Part = Tuple[int, str]
"""An output's place among the wanted ones, or an updated variable's number; and its name."""

Run = Dict[Part, np.ndarray]
"""The parts that one process has computed."""

Runs = Sequence[Tuple[Run, int]]
"""One run of all rows, or one of each piece, with its number of rows."""

WAYS = ("avg", "sum", "increments", "prod", "max", "min", "gather")
"""Ways in which a program may combine the ranks' new values, which stay on their ranks;
"increments": their sum is added to the old value."""


@dataclass(frozen=True)
class Proof:
    """A variant of calls, with the parts to prove.

    Attributes:
        call: the number of the function's call, from 1; 0 for one that the program has not made.
        updates: those that differ by rank.
        replicas: variables on which the ranks should agree, each with its error's text.
        compares_code: whether the ranks compare the code of users' operations.
        limit: ulps that count as rounding; None for `ROUNDING`.
        raises: whether a difference fails the call; else it is reported.
        rehearses: whether the call fails in any case, and is undone.
    """

    call: int
    outputs: Tuple[Part, ...]
    updates: Tuple[Part, ...]
    replicas: Tuple[Part, ...]
    compares_code: bool
    limit: Optional[float] = None
    raises: bool = True
    rehearses: bool = False

    def prepare(self, here: Workplace, call: Call) -> PreparedProof:
        """Return an object that performs the call, once, and proves it."""
        return PreparedProof(here, call, self)


class PreparedProof(PreparedCall):
    """A call that this rank has read, to be performed once, and proved."""

    def __init__(self, here: Workplace, call: Call, proof: Proof) -> None:
        super().__init__(here, call)
        self._proof = proof
        self._magnitudes = [0.0] * len(self._ops)
        self._comparisons: List[Comparison] = []
        self._notes: List[str] = []
        self._how = "whole"
        self._reruns: Dict[bool, Run] = {}
        self._is_coarse = here.device.is_gpu and here.device.precision != "float32"

    def plan_overlap(self, following: Any) -> None:  # noqa: ARG002 - as of any call
        """Begin no collective early: the proof needs the rank's own values."""
        self._average = None

    def __call__(self, origin: int, place: int) -> Optional[CallResult]:
        """Do this rank's part, and compare in the master, which may raise `NotExact`."""
        try:
            return self._prove(origin, place)
        finally:
            for key in [key for key in self._loaded.buffers if key[1] == _TURN]:
                del self._loaded.buffers[key]

    def _prove(self, origin: int, place: int) -> Optional[CallResult]:
        here, proof = self._here, self._proof
        here.device.flush()
        here.journal.keep(self._changed, always=True)
        if self._loaded.ahead is not None:
            self._loaded.ahead.drop_prefetched()
        here.flight.enter(Phase.COLLECTIVE)
        self._compare_code()
        uneven = self._compare_replicas()
        counts, joined = self._join_rows()
        limit = ROUNDING * max(1.0, float(np.sqrt(sum(counts))))
        self._limit = limit if proof.limit is None else proof.limit
        before = {n: np.array(on_host(value_of(here.registry[n]))) for n, _ in proof.updates}
        runs = None
        if self._reductions is not None and self._call.num_slices > 1:
            self._notes.append(BY_SLICES)
        elif here.is_master and (proof.outputs or proof.updates):
            runs = self._computed(origin, counts, joined)
        result = super().__call__(origin, place)
        here.device.flush()
        if here.device.is_gpu:
            (result,) = here.device.fetch([result])
        if result is not None and result.later:
            result = result.collected(self._comm, here.master)
        here.flight.enter(Phase.COLLECTIVE)
        self._compare_outputs(result, runs)
        for part in proof.updates if any(counts) else ():
            if part[0] in uneven:
                why = "ranks start from different values of it"
                self._comparisons.append(Comparison(part[1], None, reason=why))
            else:
                self._compare_update(part, before[part[0]], runs, counts)
        if result is None:
            return None
        found, notes = tuple(self._comparisons), tuple(self._notes)
        name = self._loaded.recipe.name
        report = Report(name, tuple(counts), found, notes, proof.call, self._how)
        if here.is_master and (proof.rehearses or (proof.raises and not report.ok)):
            raise NotExact(report)
        return result._replace(report=report)

    # ---- the state that the ranks start from --------------------------------------------------

    def _compare_code(self) -> None:
        if self._proof.compares_code:
            tables = self._comm.all_gather_object(code_of(self._loaded.forms[PLAIN]))
            texts = differing(tables) if self._here.is_master else []
            self._comparisons += [
                Comparison("operations", None, reason=text, is_wrong=True) for text in texts
            ]

    def _compare_replicas(self) -> List[int]:
        """Compare variables on which the ranks should agree; return those, among the updated ones,
        on which they do not."""
        here, replicas = self._here, self._proof.replicas
        parts = [*replicas, *self._proof.updates]
        if not parts:
            return []
        own = "".join(digest(value_of(here.registry[number])) for number, _ in parts)
        digests = np.frombuffer(own.encode(), np.uint8).reshape(len(parts), -1)
        tables = [np.asarray(table) for table in self._comm.all_gather(digests)]
        uneven = []
        for i, (number, because) in enumerate(parts):
            right = tables[here.master][i]
            others = [r for r, table in enumerate(tables) if not np.array_equal(table[i], right)]
            if others and i < len(replicas):
                what = f"{here.registry.label(number)} on rank {', '.join(map(str, others))}"
                self._comparisons.append(Comparison(what, None, reason=because, is_wrong=True))
            elif others:
                uneven.append(number)
        return uneven

    def _join_rows(self) -> Tuple[Tuple[int, ...], Dict[int, np.ndarray]]:
        """Return the number of rows of each rank, and in the master the rows of sliceable variables
        of all ranks."""
        joined: Dict[int, np.ndarray] = {}
        if self._slices is None:
            return self._counts, joined
        counts = self._slices.select()
        for number in self._loaded.recipe.sliceable:
            values = on_host(value_of(self._here.registry[number]))
            own = values[self._slices.selection.positions]
            parts = self._comm.gather(np.ascontiguousarray(own), root=self._here.master)
            if parts is not None:
                joined[number] = np.concatenate(parts)
        return counts, joined

    # ---- one process --------------------------------------------------------------------------

    def _computed(
        self, origin: int, counts: Sequence[int], joined: Dict[int, np.ndarray]
    ) -> Optional[Runs]:
        """Compute all rows, with the `joined` ones of sliceable variables; None, with a note, if
        that is impossible.

        Rows that do not fit into memory at once are computed in pieces, of fewer rows than any
        rank's: another partition, which has to agree.
        """
        total = sum(counts) if self._call.rows is not None or joined else 0
        if not total:
            self._notes.append("there are no rows")
            return None
        changed = changed_by(self._loaded.forms[PLAIN])
        self._start = [(storage, self._here.journal.kept(storage[0])) for storage in changed]
        self._all = origin, total if self._call.rows is not None else 0, joined
        try:
            try:
                return [(self._run_all(), total)]
            except Exception as error:
                is_full = isinstance(error, MemoryError) or "out of memory" in str(error).lower()
                if joined or not is_full:
                    raise
                pieces = split_rows(total, min(2 * self._comm.size + 1, total))
                self._how = f"{len(pieces)} pieces"
                taken = ((self._inputs.take(origin, *one, _TURN), one) for one in pieces)
                return [(self._plainly(rows, {}), stop - start) for rows, (start, stop) in taken]
        except Exception as error:  # noqa: BLE001 - the call itself raises what concerns it
            first = (str(error).strip().splitlines() or [""])[0]
            self._notes.append(
                f"not compared: all rows in one process raise {type(error).__name__}: {first}"
            )
            return None

    def _again(self, part: Part, is_disturbed: bool = False) -> Any:
        """Return one process's value of a part once more, or from numbers that differ by one
        rounding; None if that fails."""
        if is_disturbed not in self._reruns:
            self._reruns[is_disturbed] = {}
            with suppress(Exception):
                self._reruns[is_disturbed] = self._run_all(is_disturbed)
        return self._reruns[is_disturbed].get(part)

    def _run_all(self, is_disturbed: bool = False) -> Run:
        origin, total, joined = self._all
        arguments, given = self._inputs.take(origin, 0, total, _TURN), joined
        if is_disturbed:
            coarse = self._is_coarse
            arguments = [_disturbed(value, coarse) for value in arguments]
            given = {n: _disturbed(value, coarse) for n, value in joined.items()}
            start = {id(storage): value for storage, value in self._start}
            for variable in self._loaded.forms[PLAIN].get_shared():
                number = self._here.registry.number_of(variable)
                value = start.get(id(variable.container.storage), value_of(variable))
                own = number in given or is_random_state(variable) or is_row_share(variable)
                if is_array(value) and not own:
                    given[number] = _disturbed(np.array(on_host(value)), coarse)
        return self._plainly(arguments, given)

    def _plainly(self, arguments: Sequence[Any], given: Dict[int, np.ndarray]) -> Run:
        """Run the plain function with the given values of variables; undo its updates."""
        here, function, registry = self._here, self._loaded.forms[PLAIN], self._here.registry
        storages: List[Storage] = [*changed_by(function)]
        storages += [registry[number].container.storage for number in given]
        before = [(storage, storage[0]) for storage in storages]
        drawn = np.random.get_state(), random.getstate()  # noqa: NPY002 - users' operations
        try:
            here.flight.enter(Phase.COMPUTE)
            here.flight.raise_if_interrupted(here.serial)  # a Ctrl-C of before, which waited
            for storage, value in self._start:
                storage[0] = here.journal.kept(value)
            for number, value in given.items():
                store(registry[number], value)
            results = function(*arguments)
            wanted = self._call.outputs or range(len(self._ops))
            run: Run = {}
            for part in self._proof.outputs:
                least = 1 if self._ops[part[0]] == "gather" else 0
                run[part] = np.array(on_host(results[wanted[part[0]]]), ndmin=least)
            for part in self._proof.updates:
                run[part] = np.array(on_host(value_of(registry[part[0]])))
            return run
        finally:
            here.flight.enter(Phase.COLLECTIVE)
            np.random.set_state(drawn[0])  # noqa: NPY002
            random.setstate(drawn[1])
            for storage, value in reversed(before):
                storage[0] = value
            for container in function.input_storage[: len(arguments)]:
                container.storage[0] = None

    # ---- comparisons --------------------------------------------------------------------------

    def _collect(self, values: Optional[List[Any]], counts: Tuple[int, ...]) -> CallResult:
        if values is not None:
            for place, _ in self._proof.outputs:
                self._magnitudes[place] = largest_magnitude(on_host(values[place]))
        return super()._collect(values, counts)

    def _compare_outputs(self, result: Optional[CallResult], runs: Optional[Runs]) -> None:
        if not self._proof.outputs:
            return
        magnitudes = self._comm.gather(np.array(self._magnitudes), root=self._here.master)
        if runs is None or result is None or magnitudes is None:
            return
        for part in self._proof.outputs:
            place, op = part[0], self._ops[part[0]]
            scale = _scale(op, [sizes[place] for sizes in magnitudes])
            got = np.asarray(on_host(result.values[place]))
            wanted = _combined(op, [(run[part], rows) for run, rows in runs])
            self._comparisons.append(self._judged(part, op, got, scale, wanted))

    def _compare_update(
        self, part: Part, before: np.ndarray, runs: Optional[Runs], counts: Sequence[int]
    ) -> None:
        """Compare a new value: try the ways to combine the ranks' values until one is right."""
        rows = counts[self._comm.rank]
        own = np.asarray(on_host(value_of(self._here.registry[part[0]]))) if rows else None
        gathered = self._comm.gather(own, root=self._here.master)
        if gathered is None or runs is None:
            return
        parts = [(np.asarray(value), n) for value, n in zip(gathered, counts) if n]
        sizes = [largest_magnitude(value) for value, _ in parts]
        whole = [(run[part], n) for run, n in runs]
        kind = before.dtype.kind
        found = []
        for way in WAYS if kind in "fc" else WAYS[4:] if kind == "b" else WAYS[1:]:
            got, wanted = _combined(way, parts, before), _combined(way, whole, before)
            if got is not None and wanted is not None:
                found.append(self._judged(part, way, got, _scale(way, sizes), wanted))
                if found[-1].ok:
                    break
        found = found or [self._unproved(part[1], None, _SHAPES)]
        self._comparisons.append(min(found, key=lambda c: c.severity))

    def _unproved(self, what: str, op: Optional[str], reason: str) -> Comparison:
        self._notes.append(f"{what} is not proved: {reason}")
        return Comparison(what, op, reason=reason)

    def _judged(
        self, part: Part, op: Optional[str], got: Any, scale: float, wanted: Any
    ) -> Comparison:
        """Compare with the result of one process; `scale` is the magnitude of the ranks' parts.

        Differences are counted in epsilons of the largest magnitude in the array, because entries
        that cancel to nearly nothing have no more digits. Whole results may do so, too: over the
        limit, the magnitude of the parts counts; and if inputs that differ by one rounding change
        the result of one process by more than that, so may the order of sums.
        """
        what, slices, limit = part[1], self._call.num_slices, self._limit
        if got.dtype == object:
            return Comparison(what, op, reason="it is no array")
        if wanted is None:
            return self._unproved(what, op, _SHAPES)
        difference = measure(got, wanted)
        if difference.ulps > limit and self._how == "whole":
            again = self._again(part)
            if again is None or measure(again, wanted).ulps > limit:
                self._notes.append(f"{what} is not the same twice in one process: it is not proved")
                return Comparison(what, op, reason="an operation draws numbers of its own")
            difference = measure(got, wanted, scale)
            is_far = limit < difference.ulps < np.inf
            other = self._again(part, is_disturbed=True) if is_far else None
            if other is not None:
                scale = max(scale, largest_magnitude(other))  # what is 0 may be so by chance
                difference, noise = measure(got, wanted, scale), measure(other, wanted, scale).ulps
                # Products of factors in TF32 are added with the precision of float32.
                if np.isfinite(noise):
                    limit = max(limit, (ROUNDING if self._is_coarse else limit) * noise)
                if self._is_coarse and limit * np.finfo(got.dtype).eps > MOST_COARSE:
                    return self._unproved(what, op, "TF32 leaves it too few digits")
        run = f"{slices} slices" if slices > 1 else "parallel"
        return Comparison(what, op, run, difference, limit)


def _scale(op: Optional[str], sizes: Sequence[Any]) -> float:
    """Return the magnitude of the ranks' parts of a result."""
    if op in ("sum", "increments"):
        return float(sum(sizes))
    return float(max(sizes)) if op in ("avg", ROWLESS_OP) else 0.0


def _combined(
    way: Optional[str], parts: Sequence[Tuple[np.ndarray, int]], before: Any = None
) -> Any:
    """Return the values of several numbers of rows, combined; None if their shapes prevent it."""
    if len(parts) == 1:
        return parts[0][0]
    base = before if way == "increments" else None
    one = Accumulator("sum" if way == "increments" else way, "")
    with np.errstate(all="ignore"), suppress(ValueError):
        for value, rows in parts:
            one.add(value if base is None else value - base, rows)
        return one.result() if base is None else np.asarray(base + one.result(), base.dtype)
    return None


def _disturbed(value: Any, coarse: bool) -> Any:
    """Return floats with a relative change of one rounding up or down; other values unchanged.

    Whole numbers do not change: they may be labels, flags or masks, which a graph compares.
    """
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or not value.size:
        return value
    octets = np.random.RandomState(value.size % 2**32).bytes(value.size // 8 + 1)
    ups = np.unpackbits(np.frombuffer(octets, np.uint8), count=value.size).reshape(value.shape)
    eps = TF32 if coarse and value.dtype == np.float32 else np.finfo(value.dtype).eps
    up, down = (value.dtype.type(1 + sign * eps) for sign in (1, -1))
    with np.errstate(all="ignore"):
        return value * np.where(np.trunc(value) == value, 1, np.where(ups, up, down))

"""Prove a call: compare what the ranks make of their rows with what one process makes of all.

The master computes all rows at once, from the values that the ranks start from, before it does its
own part of the call; the other ranks compute meanwhile. So the comparison is of the call's own rows
and of the result that the user gets. If all rows at once do not fit into its memory, it computes
them in pieces, fewer rows each than any rank's: another partition, which has to agree.

An output is combined over ranks by its op. The new value of an updated variable stays on its rank,
and the program combines it: some collective over the ranks' values, or over what they have added,
has to give the new value of one process.

Sums of rows are added up in another order, so the limit grows with the rows. Differences are
counted in epsilons of the largest magnitude in the array, because entries that cancel to nearly
nothing have no more digits. Whole results may do so, too: where one exceeds the limit, the
magnitude of each rank's part counts; and if numbers that differ by one rounding change the result
of one process by more than that, so may the order.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

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

from .report import BY_SLICES, Comparison, Rehearsed, Report, largest_magnitude, measure

ROUNDING = 16.0
"""Ulps by which results may differ, times the root of the number of rows for the order of sums."""

TF32, MOST_COARSE = 2.0**-11, 0.25
"""Relative rounding of factors where the device may use TF32; and the largest limit, relative to
the result, that proves something there."""

WAYS = ("avg", "sum", "increments", "max", "min", "prod", "gather")
"""Ways in which a program may combine the ranks' new values; "increments": the old value, and the
sum of what the ranks have added."""

_TURN = -1  # of the buffers for all rows


class Whole(NamedTuple):
    """The results of one process: the wanted outputs, and new values by the variable's number; in
    pieces, the values of each and its rows."""

    outputs: List[Any]
    updated: Dict[int, Any]


@dataclass(frozen=True)
class Proof:
    """What is compared in a call that is proved: a variant of calls.

    Attributes:
        call: the number of the function's call, from 1; 0 for one that the program has not made.
        outputs: places among the wanted outputs; `names` has names of all of these.
        updates: updated variables that differ by rank, each with its name.
        replicas: variables on which the ranks should agree, each with what is wrong if they do not.
        compares_code: whether the ranks compare the code of users' operations.
        limit: ulps that count as rounding; None for those that the number of rows asks for.
        raises: whether a difference fails the call; else it is reported.
        rehearses: whether the call is undone in any case.
    """

    call: int
    outputs: Tuple[int, ...] = ()
    names: Tuple[str, ...] = ()
    updates: Tuple[Tuple[int, str], ...] = ()
    replicas: Tuple[Tuple[int, str], ...] = ()
    compares_code: bool = False
    limit: Optional[float] = None
    raises: bool = True
    rehearses: bool = False

    def prepare(self, here: Workplace, call: Call) -> PreparedProof:
        """Return what performs the call, once, and proves it."""
        return PreparedProof(here, call, self)


class PreparedProof(PreparedCall):
    """A call that this rank has read, to be performed once, and proved."""

    def __init__(self, here: Workplace, call: Call, proof: Proof) -> None:
        super().__init__(here, call)
        self._proof = proof
        self._magnitudes: List[float] = []
        self._comparisons: List[Comparison] = []
        self._notes: List[str] = []
        self._how = "whole"
        self._is_coarse = here.device.is_gpu and here.device.precision != "float32"

    def plan_overlap(self, following: Any) -> None:  # noqa: ARG002 - as of any call
        """Begin no collective early: the proof needs the rank's own values."""
        self._average = None

    def __call__(self, origin: int, place: int) -> Optional[CallResult]:
        """Do this rank's part, and compare in the master.

        Raises:
            NotExact: in the master; the other ranks learn that it has declined.
        """
        try:
            return self._prove(origin, place)
        finally:
            for key in [key for key in self._loaded.buffers if key[1] == _TURN]:
                del self._loaded.buffers[key]

    def _prove(self, origin: int, place: int) -> Optional[CallResult]:
        here, proof = self._here, self._proof
        here.journal.keep(self._changed, always=True)
        if self._loaded.ahead is not None:
            self._loaded.ahead.drop_prefetched()
        here.flight.enter(Phase.COLLECTIVE)
        self._compare_code()
        uneven = self._compare_replicas()
        counts, joined = self._join_rows() if self._selects else (self._counts, {})
        limit = ROUNDING * max(1.0, float(np.sqrt(sum(counts))))
        self._limit = limit if proof.limit is None else proof.limit
        before = {n: np.array(on_host(value_of(here.registry[n]))) for n, _ in proof.updates}
        whole = None
        if self._reductions is not None and self._call.num_slices > 1:
            self._notes.append(BY_SLICES)
        elif here.is_master and (proof.outputs or proof.updates):
            whole = self._computed(origin, counts, joined)
        result = super().__call__(origin, place)
        if here.device.is_gpu:
            (result,) = here.device.fetch([result])
        if result is not None and result.later:
            result = result.collected(self._comm, here.master)
        here.flight.enter(Phase.COLLECTIVE)
        self._compare_outputs(result, whole)
        for number, name in proof.updates if any(counts) else ():
            if number in uneven:
                why = "ranks start from different values of it"
                self._comparisons.append(Comparison(f"update of {name}", None, reason=why))
            else:
                self._compare_update(number, f"update of {name}", before[number], whole, counts)
        return None if result is None else self._reported(result, counts)

    def _reported(self, result: CallResult, counts: Sequence[int]) -> CallResult:
        """Return the result with the report, in the master; or raise that."""
        name, proof = self._loaded.recipe.name, self._proof
        found, notes = tuple(self._comparisons), tuple(self._notes)
        report = Report(name, tuple(counts), found, notes, proof.call, self._how)
        if self._here.is_master and proof.rehearses:
            raise Rehearsed(report)
        if self._here.is_master and proof.raises and not report.ok:
            raise NotExact(report)
        return result._replace(report=report)

    # ---- what the ranks start from ------------------------------------------------------------

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
        here, proof = self._here, self._proof
        numbers = [*(n for n, _ in proof.replicas), *(n for n, _ in proof.updates)]
        if not numbers:
            return []
        own = [digest(value_of(here.registry[n])) for n in numbers]
        ranks = self._comm.all_gather(np.frombuffer("".join(own).encode(), np.uint8))
        length = len(own[0])
        tables = [np.asarray(text).tobytes() for text in ranks]
        uneven = []
        for i, number in enumerate(numbers):
            ours = [table[i * length : (i + 1) * length] for table in tables]
            if len(set(ours)) == 1:
                continue
            if i < len(proof.replicas):
                others = [r for r, text in enumerate(ours) if text != ours[here.master]]
                what = f"{here.registry.label(number)} on rank {', '.join(map(str, others))}"
                because = proof.replicas[i][1]
                self._comparisons.append(Comparison(what, None, reason=because, is_wrong=True))
            else:
                uneven.append(number)
        return uneven

    def _join_rows(self) -> Tuple[Tuple[int, ...], Dict[int, np.ndarray]]:
        """Return the number of rows of each rank, and in the master the rows of sliceable variables
        of all ranks."""
        selection, counts = self._select_rows()
        joined = {}
        for number in self._loaded.recipe.sliceable:
            own = on_host(value_of(self._here.registry[number]))[selection.positions]
            parts = self._comm.gather(np.ascontiguousarray(own), root=self._here.master)
            if parts is not None:
                joined[number] = np.concatenate(parts)
        return counts, joined

    # ---- one process --------------------------------------------------------------------------

    def _computed(
        self, origin: int, counts: Sequence[int], joined: Dict[int, np.ndarray]
    ) -> Optional[Whole]:
        """Compute all rows; None, with a note, if that cannot be done.

        Args:
            joined: all rows of the sliceable variables.
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
                return self._run_all()
            except BaseException as error:
                if joined or not _is_out_of_memory(error):
                    raise
                return self._run_in_pieces(origin, total)
        except Exception as error:  # noqa: BLE001 - the call itself raises what concerns it
            first = (str(error).strip().splitlines() or [""])[0]
            self._notes.append(
                f"not compared: all rows in one process raise {type(error).__name__}: {first}"
            )
            return None

    @cached_property
    def _disturbed(self) -> Optional[Whole]:
        """The results of one process from numbers that differ by one rounding; None without."""
        with suppress(Exception):  # then the limit is not raised
            return self._run_all(is_disturbed=True)
        return None

    @cached_property
    def _again(self) -> Optional[Whole]:
        """The results of one process once more; None without."""
        with suppress(Exception):
            return self._run_all()
        return None

    def _run_all(self, is_disturbed: bool = False) -> Whole:
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

    def _run_in_pieces(self, origin: int, total: int) -> Whole:
        pieces = split_rows(total, min(2 * self._comm.size + 1, total))
        self._how = f"{len(pieces)} pieces"
        places = self._proof.outputs
        updated: Dict[int, List[Any]] = {number: [] for number, _ in self._proof.updates}
        sums = [Accumulator(self._ops[place] or "last", self.doing) for place in places]
        for start, stop in pieces:
            part = self._plainly(self._inputs.take(origin, start, stop, _TURN), {})
            for one, place in zip(sums, places):
                one.add(part.outputs[place], stop - start)
            for number, value in part.updated.items():
                updated[number].append((value, stop - start))
        outputs: List[Any] = [None] * len(self._ops)
        for one, place in zip(sums, places):
            outputs[place] = one.result()
        return Whole(outputs, updated)

    def _plainly(self, arguments: Sequence[Any], given: Dict[int, np.ndarray]) -> Whole:
        """Run the plain function in this process, and undo its updates.

        Args:
            given: values of variables, for this run.
        """
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
            wanted = self._call.outputs
            some = results if wanted is None else [results[i] for i in wanted]
            outputs = [np.array(on_host(value)) for value in some[: len(self._ops)]]
            updated = {
                number: np.array(on_host(value_of(registry[number])))
                for number, _ in self._proof.updates
            }
            return Whole(outputs, updated)
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
        self._magnitudes = [0.0] * len(self._ops)
        if values is not None:
            for place in self._proof.outputs:
                self._magnitudes[place] = largest_magnitude(on_host(values[place]))
        return super()._collect(values, counts)

    def _compare_outputs(self, result: Optional[CallResult], whole: Optional[Whole]) -> None:
        if not self._proof.outputs:
            return
        magnitudes = self._comm.gather(np.array(self._magnitudes), root=self._here.master)
        if whole is None or result is None or magnitudes is None:
            return
        for place in self._proof.outputs:
            op, ranks = self._ops[place], [float(sizes[place]) for sizes in magnitudes]
            scale = sum(ranks) if op == "sum" else max(ranks) if op in ("avg", ROWLESS_OP) else 0.0
            got = np.asarray(on_host(result.values[place]))
            name, pick = self._proof.names[place], partial(_output, place)
            self._comparisons.append(self._judged(name, op, got, scale, whole, pick))

    def _compare_update(
        self,
        number: int,
        what: str,
        before: np.ndarray,
        whole: Optional[Whole],
        counts: Sequence[int],
    ) -> None:
        """Compare a new value; all ranks try the ways to combine it, until one gives the whole."""
        comm, own = self._comm, np.array(on_host(value_of(self._here.registry[number])))
        form = np.array([own.shape, before.shape], np.int64)
        used = [f for f, rows in zip(comm.all_gather(form), counts) if rows]
        is_same = all(np.array_equal(f, used[0]) for f in used)
        best: Optional[Comparison] = None
        for way in WAYS:
            fits = is_same or way == "gather"
            fits = fits and (way != "avg" or own.dtype.kind in "fc")
            fits = fits and (way != "gather" or own.ndim > 0)
            fits = fits and (way != "increments" or np.array_equal(*used[0]))
            if not fits or (own.dtype.kind == "b" and way not in ("max", "min", "gather")):
                continue
            mine = own if counts[comm.rank] else None
            got, scale = self._combined(way, mine, before, counts)
            is_right = np.ones((), np.int8)
            if whole is not None:
                pick = partial(self._new_value, number, way, before)
                found = self._judged(what, way, got, scale, whole, pick)
                is_right[...] = found.ok
                best = found if best is None or found.severity < best.severity else best
            comm.broadcast(is_right, root=self._here.master)
            if is_right:
                break
        if best is not None:
            self._comparisons.append(best)

    def _new_value(self, number: int, way: str, before: np.ndarray, run: Whole) -> Any:
        """Return a variable's new value in one process: pieces are combined as the ranks' are."""
        if self._how == "whole":
            return run.updated[number]
        one = Accumulator("sum" if way == "increments" else way, self.doing)
        for value, rows in run.updated[number]:
            one.add(value - before if way == "increments" else value, rows)
        got = one.result()
        return np.asarray(before + got, before.dtype) if way == "increments" else got

    def _combined(
        self, way: str, own: Optional[np.ndarray], before: np.ndarray, counts: Sequence[int]
    ) -> Tuple[Any, float]:
        """Return in the master the ranks' values combined, and the magnitude of their parts."""
        comm, master = self._comm, self._here.master
        size = 0.0 if own is None else largest_magnitude(own)
        sizes = [float(one) for one in comm.all_gather(np.array(size))]
        if way == "gather":
            parts = comm.gather(own, root=master)
            joined = None if parts is None else [one for one in parts if one is not None]
            return None if joined is None else np.concatenate(joined), 0.0
        if way == "increments" and own is not None:
            own = own - before
        op = "sum" if way == "increments" else way
        weight = {"weight": float(counts[comm.rank]) or 1.0} if way == "avg" else {}
        got = comm.reduce(own, op, master, **weight)
        if got is not None:
            got = np.asarray(got)
            if way == "increments":
                got = np.asarray(before + got, before.dtype)
        scale = sum(sizes) if op == "sum" else max(sizes) if op == "avg" else 0.0
        return got, scale

    def _judged(
        self,
        what: str,
        op: Optional[str],
        got: Any,
        scale: float,
        whole: Whole,
        pick: Callable[[Whole], Any],
    ) -> Comparison:
        """Compare with the result of one process.

        Args:
            scale: the magnitude of the parts.
            pick: finds the result in a run.
        """
        slices, limit = self._call.num_slices, self._limit
        if got.dtype == object:
            return Comparison(what, op, reason="it is no array")

        def of(run: Whole) -> Any:
            return np.atleast_1d(pick(run)) if op == "gather" else pick(run)

        wanted = of(whole)
        difference = measure(got, wanted)
        if difference.ulps > limit and self._how == "whole":
            if self._again is None or measure(of(self._again), wanted).ulps > limit:
                self._notes.append(f"{what} is not the same twice in one process: it is not proved")
                return Comparison(what, op, reason="an operation draws numbers of its own")
            if difference.ulps < np.inf:
                difference = measure(got, wanted, scale)
        if limit < difference.ulps < np.inf and self._how == "whole":
            noise = 0.0
            if self._disturbed is not None:
                other = of(self._disturbed)
                scale = max(scale, largest_magnitude(other))  # what is 0 may be so by chance
                difference, noise = measure(got, wanted, scale), measure(other, wanted, scale).ulps
            # No digit of a gradient that is 0 but for rounding has a meaning. Products of factors
            # that are rounded to TF32 are added with the precision of float32.
            if np.isfinite(noise):
                limit = max(limit, (ROUNDING if self._is_coarse else limit) * noise)
            if self._is_coarse and limit * np.finfo(got.dtype).eps > MOST_COARSE:
                self._notes.append(f"{what} is not proved: TF32 leaves it too few digits")
                return Comparison(what, op, reason="TF32 leaves it too few digits")
        run = f"{slices} slices" if slices > 1 else "parallel"
        return Comparison(what, op, run, difference, limit)


def _output(place: int, run: Whole) -> Any:
    return run.outputs[place]


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "out of memory" in str(error).lower()


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

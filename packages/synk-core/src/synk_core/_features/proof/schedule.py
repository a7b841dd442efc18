"""Decide which calls of a function are proved, and what of them; and `verify()`.

What the graph shows to be exact needs no proof; what it shows to be wrong was said when the
function was built. The rest is proved at calls 1, 2, 4, 8 ... At these, the ranks also compare the
values of the variables that they should agree on, and the code of users' operations.

A result that is drawn cannot be compared. Where it has to be proved, a twin of the function is
called with the same inputs, and undone: it has a fixed value in place of each draw.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

import numpy as np

from synk_core._graph.leaves import Lineage, differs_by_rank, draws, lineage_of
from synk_core._graph.rowwise.check import check_spec
from synk_core._graph.shared import value_of
from synk_core._graph.still import still
from synk_core._graph.transfer.users_code import has_users_code, is_as_before
from synk_core._graph.values import is_array
from synk_core._plan.rows import is_int
from synk_core._text import shown
from synk_core._warn import warn_user
from synk_core._wire.messages import Call
from synk_core.exceptions import InputValueError, NotExact, ProofWarning

from .comparing import Proof
from .report import BY_SLICES, Comparison, Rehearsed, Report

MOST_SLICINGS = 100
"""Numbers of slices that `verify` tries at most: each is a run."""

_NEVER = 1 << 62


def checked_policy(policy: Any) -> Union[str, bool]:
    """Return what becomes of a call that is not exact: "raise", "warn" or False.

    Raises:
        InputValueError: it is something else.
    """
    if policy in ("raise", "warn") or policy is False:
        return policy
    raise InputValueError(f"proof: got {shown(policy)}, expected 'raise', 'warn' or False")


class _Provable(NamedTuple):
    """An output or an update.

    Attributes:
        place: among the outputs; of an update, the number of the variable.
        is_open: whether its graph leaves something to prove.
        reason: why it cannot be compared.
    """

    place: int
    name: str
    op: Optional[str]
    is_open: bool
    reason: str


class Prover:
    """Proves the calls of one function.

    Args:
        function: the `Function`.
        plain: its compiled form.
        runtime: whose ranks compute it.
        policy: see `checked_policy`.
        proofs: the `Proofs` of the runtime.

    Attributes:
        due: the number of calls before the next one that is proved.
        report: of the latest proof.
    """

    def __init__(
        self,
        function: Any,
        plain: Any,
        runtime: Any,
        policy: Union[str, bool],
        proofs: Any,
    ) -> None:
        self._function, self._plain, self._runtime = function, plain, runtime
        self._origins, self._every = proofs.origins, proofs.every or _NEVER
        self._policy = policy
        self.due = 0 if policy and runtime.size > 1 else _NEVER
        self.report: Optional[Report] = None
        self._compares_code = self.due < _NEVER and has_users_code(plain)
        self._twin: Any = None
        self._rehearsed: Tuple[Comparison, ...] = ()
        self._said: Set[str] = set()

    @cached_property
    def _lineage(self) -> Lineage:
        return lineage_of(self._function.spec)

    @cached_property
    def _parts(self) -> Tuple[List[_Provable], List[_Provable]]:
        """The outputs and the updates."""
        spec, lineage = self._function.spec, self._lineage
        has_rows = bool(spec.n_scattered or spec.sliceable)
        verdicts = check_spec(spec)
        outputs, updates = [], []
        for i, (variable, op, leaves) in enumerate(
            zip(spec.outputs, spec.output_ops, lineage.outputs)
        ):
            reason = _DRAWN if draws(leaves) else "" if has_rows else _NO_ROWS
            if op is None:
                reason = "it is the master's own result"
            name = f"output {i}" + (f" ({variable.name})" if variable.name else "")
            is_open = op is not None and has_rows and verdicts[i].verdict == "unknown"
            outputs.append(_Provable(i, name, op, is_open, reason))
        known = {verdict.position: verdict for verdict in verdicts.updates}
        for i, (target, _, leaves, _) in enumerate(lineage.updates):
            verdict = known.get(i)  # none of random states
            is_open = verdict is not None and verdict.verdict == "unknown"
            is_reduced = lineage.has_reductions and is_open
            if verdict is None or not (is_reduced or differs_by_rank(leaves, spec)):
                continue
            number = self._runtime.registry.number_of(target)
            name = self._runtime.registry.label(number)
            reason = _DRAWN if draws(leaves) else _LAST if verdict.op == "last" else ""
            updates.append(_Provable(number, name, verdict.op, is_open, reason))
        return outputs, updates

    def warn_of_slices(self) -> None:
        """Before a call in slices: say once if these change what in-graph reductions reduce."""
        if self._policy and self._lineage.has_reductions:
            self._say(f"{self._label}: {BY_SLICES}")

    def is_due(self) -> bool:
        """Return whether the next call is proved: its number says so, or code has changed here."""
        if self._function.calls >= self.due:
            return True
        if not self._compares_code or is_as_before(self._plain):
            return False
        self.due = self._function.calls
        return True

    def rehearse(self, values: Sequence[Any], options: Any) -> None:
        """Before a call that is due, prove what is drawn. Nothing may be staged yet.

        Raises:
            NotExact: it is not exact.
        """
        self._function.orders.require_ready()  # first: a child of the program has locks of others
        parts = [part for several in self._parts for part in several]
        if not any(part.is_open and part.reason == _DRAWN for part in parts):
            return
        if self._twin is None:
            try:
                self._twin = self._runtime.twin(still(self._function.spec))
            except Exception as error:  # noqa: BLE001 - whatever the engine makes of it
                self._twin = False
                self._say(f"{self._label} is not proved: {type(error).__name__}: {error}")
        if self._twin is not False:
            call, origin = self._twin.planner.prepare(values, options, 0)
            if not _is_divided(call.act):
                return
            proof = self._twin.prover.proof(options.output_subset, self._function.calls + 1)
            report = self._rehearse(call, origin, proof)
            if not report.ok and self._policy == "raise":
                raise NotExact(report)
            self._rehearsed = report.comparisons
            self._judge(report)

    def _rehearse(self, call: Any, origin: int, proof: Proof) -> Report:
        """Have all ranks perform a call and undo it; return what it proves. The caller holds the
        lock, and has staged no other act."""
        orders = self._function.orders
        proof = replace(proof, rehearses=True)
        once = orders.enter(call.once(replace(call.act, variant=proof)))
        try:
            orders.perform((once,), (origin,))
        except Rehearsed as done:
            return done.report
        raise AssertionError("a rehearsal was not undone")

    def proving(self, call: Any, output_subset: Any) -> Any:
        """Return the act that performs a planned call and proves it; the same act, if there is
        nothing to prove. A call of one part proves nothing, and the next one is due."""
        if not _is_divided(call.act):
            return call
        proof = self.proof(output_subset, self._function.calls + 1)
        if proof.outputs or proof.updates or proof.replicas or proof.compares_code:
            return self._function.orders.enter(call.once(replace(call.act, variant=proof)))
        self._go_on(self._function.calls + 1)
        return call

    def proof(self, output_subset: Any, call: int, everything: bool = False) -> Proof:
        """Return what is to be proved of a call.

        Args:
            everything: also what the graph shows to be exact, or wrong.
        """
        outputs, updates = self._parts
        wanted = outputs if output_subset is None else [outputs[i] for i in output_subset]
        number, origins = self._function.number, self._origins
        registry = self._runtime.registry
        to_agree = [
            variable
            for variable in origins.to_agree(number, is_first=call <= 1)
            if variable in registry.variables and is_array(value_of(registry[variable]))
        ]
        return Proof(
            call,
            tuple(i for i, p in enumerate(wanted) if not p.reason and (p.is_open or everything)),
            tuple(p.name for p in wanted),
            tuple((p.place, p.name) for p in updates if not p.reason and (p.is_open or everything)),
            tuple((variable, origins.because(variable, number)) for variable in to_agree),
            self._compares_code,
            raises=self._policy == "raise",
        )

    def done(self, report: Report) -> None:
        """Judge the proof of the call that was performed last."""
        found = (*self._rehearsed, *report.comparisons)
        self._judge(replace(report, comparisons=found))
        self._go_on(self._function.calls)

    def _go_on(self, call: int) -> None:
        self._rehearsed = ()
        self.due = min(2 * call, call + self._every) - 1

    @property
    def _label(self) -> str:
        name = self._function.name
        return f"function {name!r}" if name else "this function"

    def _judge(self, report: Report) -> None:
        """Keep a report; warn once of what is wrong, and of what cannot be proved."""
        self.report = report
        for text in (*map(str, report.wrong), *report.notes):
            self._say(f"call {report.call} of {self._label}: {text}")

    def _say(self, text: str) -> None:
        key = text.partition(": ")[2]
        if key not in self._said:
            self._said.add(key)
            warn_user(text, ProofWarning, self._function.spec.built_at)

    def verify(
        self, values: Sequence[Any], options: Any, num_slices: Any, limit: Optional[float]
    ) -> Report:
        """Perform a call, also in slices, prove all of it, and undo it; see `Function.verify`."""
        several = _checked_slices(num_slices)
        # NaN is not at least 0.
        is_number = isinstance(limit, (int, float, np.integer, np.floating))
        if limit is not None and not (is_number and limit >= 0):
            raise InputValueError(f"limit: got {shown(limit)}, expected a number of ulps, or None")
        spec = self._function.spec
        notes: Tuple[str, ...] = ()
        if not spec.n_scattered and not spec.sliceable:
            notes = ("not run in slices: the function has no rows to slice",)
        elif self._lineage.has_reductions:
            notes = ("not run in slices: its in-graph reductions would reduce slice by slice",)
        found: List[Comparison] = []
        with self._function.orders.lock:
            for count in [1] if notes else [1, *several]:
                wanted = self._function.planner.wanted(options.output_subset)
                if count > 1:
                    every = range(len(spec.outputs)) if wanted is None else wanted
                    wanted = tuple(i for i in every if spec.output_ops[i] is not None)
                of_it = options._replace(output_subset=wanted, num_slices=count)
                call, origin = self._function.planner.prepare(values, of_it, 0)
                proof = replace(self.proof(wanted, 0, everything=True), limit=limit)
                report = self._rehearse(call, origin, proof)
                # The ranks' values are the same in each run.
                found += [c for c in report.comparisons if count == 1 or c.difference]
                if count == 1:
                    first = report
        outputs, updates = self._parts
        asked = self._function.planner.wanted(options.output_subset)
        asked = outputs if asked is None else [outputs[i] for i in asked]
        named = [(part, part.name) for part in asked]
        for part, what in [*named, *((part, f"update of {part.name}") for part in updates)]:
            if part.reason:
                found.append(Comparison(what, part.op, reason=part.reason))
        notes = (*first.notes, *(notes if several else ()))
        return replace(first, comparisons=tuple(found), notes=notes)


def _is_divided(call: Call) -> bool:
    """Return whether a call has several parts: else it is what one process computes."""
    parts = 2 if call.rows is None else sum(map(bool, call.rows.counts))
    return parts > 1 or call.num_slices > 1


_DRAWN = "it draws random numbers"
_LAST = "op 'last' takes one part for the whole"
_NO_ROWS = "there are no rows: each rank computes the same"


def _checked_slices(num_slices: Any) -> List[int]:
    """Return the numbers of slices to try."""
    several = [num_slices] if is_int(num_slices) else num_slices
    is_list = isinstance(several, (list, tuple, range)) and len(several) <= MOST_SLICINGS
    if not is_list or not all(is_int(n) and n > 0 for n in several):
        raise InputValueError(
            f"num_slices: got {shown(num_slices)}, expected an int of at least 1, or a list of at "
            f"most {MOST_SLICINGS} of these"
        )
    return [int(n) for n in several if n > 1]

"""Prove calls of a function now and then, and on demand: `f.proof` and `f.verify()`.

What the graph shows to be exact needs no proof; what it shows to be wrong was reported when the
function was built. The rest is proved at calls 1, 2, 4, 8 ...
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

import numpy as np

from synk_core._features.feature import FunctionFeature
from synk_core._graph.leaves import Leaves, Lineage, differs_by_rank, draws, lineage_of
from synk_core._graph.rowwise.check import Verdict, check_spec
from synk_core._graph.shared import value_of
from synk_core._graph.spec import FunctionSpec
from synk_core._graph.still import still
from synk_core._graph.transfer.users_code import has_users_code, is_as_before
from synk_core._graph.values import is_array
from synk_core._master.acts import Prepared
from synk_core._plan.arguments import Options
from synk_core._plan.rows import is_int
from synk_core._text import shown
from synk_core._tracebacks import brief_traceback
from synk_core._warn import warn_user
from synk_core._wire.messages import Call
from synk_core.exceptions import InputValueError, NotExact, ProofWarning

from .comparing import Part, Proof
from .origins import Origins
from .report import BY_SLICES, Comparison, Report

MOST_SLICINGS = 100
"""Numbers of slices that `verify` tries at most: each is a run."""

_NEVER = 1 << 62

_DRAWN = "it draws random numbers"


class _Provable(NamedTuple):
    """An output or an update, of which `number` is the variable; `reason`: why it cannot be
    compared."""

    number: int
    name: str
    verdict: Verdict
    reason: str

    @property
    def is_open(self) -> bool:
        """Whether its graph leaves something to prove."""
        return self.verdict.verdict == "unknown"


class Proving(FunctionFeature):
    """Calls that are proved when they are due, and on demand."""

    @classmethod
    def take_options(cls, runtime: Any, options: Dict[str, Any]) -> None:
        """Take `proof` and `proof_every`."""
        super().take_options(runtime, options)
        policy, every = options.pop("proof", "raise"), options.pop("proof_every", None)
        if every is not None and not (is_int(every) and every > 0):
            raise InputValueError(f"proof_every: got {shown(every)}, expected 1 or more")
        runtime.proof_policy, runtime.proof_every = _checked_policy(policy), every or _NEVER

    @classmethod
    def begin(cls, runtime: Any) -> None:
        """Follow which function wrote which variable."""
        super().begin(runtime)
        runtime.origins = Origins(runtime.registry, runtime.specs, runtime.size)
        runtime.orders.observers.add(runtime.origins)

    @classmethod
    def of_function(cls, runtime: Any, options: Dict[str, Any]) -> Dict[str, Any]:
        """Take `proof`."""
        policy = options.pop("proof", None)
        policy = runtime.proof_policy if policy is None else _checked_policy(policy)
        return {**super().of_function(runtime, options), "policy": policy}

    def attach(self, runtime: Any, **settings: Any) -> None:
        """Begin with the first call, if the policy is to prove."""
        self._policy: Union[str, bool] = settings.pop("policy")
        super().attach(runtime, **settings)
        self._runtime = runtime
        self._who = f"function {self.spec.name!r}" if self.spec.name else "this function"
        self._due = 0 if self._policy and runtime.size > 1 else _NEVER  # calls before the next one
        self._compares_code = self._due < _NEVER and has_users_code(self._plain)
        self.asks_from = self._due
        self._report: Optional[Report] = None
        self._twin: Any = None
        self._rehearsed: Tuple[Comparison, ...] = ()
        self._warned: Set[str] = set()

    @cached_property
    def _lineage(self) -> Lineage:
        return lineage_of(self.spec)

    @cached_property
    def _parts(self) -> Tuple[List[_Provable], List[_Provable]]:
        """The outputs and the updates."""
        spec, lineage, registry = self.spec, self._lineage, self._runtime.registry
        verdicts, outputs, updates = check_spec(spec), [], []
        for verdict, variable, leaves in zip(verdicts, spec.outputs, lineage.outputs):
            name = f"output {verdict.position}" + (f" ({variable.name})" if variable.name else "")
            outputs.append(_Provable(0, name, verdict, _reason(spec, verdict.op, leaves)))
        for verdict in verdicts.updates:
            target, _, leaves, _ = lineage.updates[verdict.position]
            is_reduced = lineage.has_reductions and verdict.verdict == "unknown"
            if is_reduced or differs_by_rank(leaves, spec):
                number = registry.number_of(target)
                name = f"update of {registry.label(number)}"
                is_sparse = not is_array(value_of(target))
                reason = "it is no array" if is_sparse else _reason(spec, verdict.op or "", leaves)
                updates.append(_Provable(number, name, verdict, reason))
        return outputs, updates

    def before_slices(self) -> None:
        """Warn once if slices change what in-graph reductions reduce."""
        if self._policy and self._lineage.has_reductions:
            self._warn(f"{self._who}: {BY_SLICES}")

    def is_due(self) -> bool:
        """Return whether the next call is proved: its number says so, or code has changed here."""
        if self.calls >= self._due:
            return True
        if not self._compares_code or is_as_before(self._plain):
            return False
        self._due = self.calls
        return True

    def rehearse(self, values: Sequence[Any], options: Any) -> None:
        """Prove the random parts of a call that is due. They cannot be compared: call a twin of the
        function, with a fixed value in place of each draw, and undo that."""
        self.orders.require_ready()  # first: a child of the program has locks of others
        outputs, updates = self._parts
        if not any(part.is_open and part.reason == _DRAWN for part in (*outputs, *updates)):
            return
        if self._twin is None:
            try:
                self._twin = self._runtime.twin(still(self.spec))
            except Exception as error:  # noqa: BLE001 - whatever the engine makes of it
                self._twin = False
                self._warn(f"{self._who} is not proved: {type(error).__name__}: {error}")
        if self._twin is not False:
            call, origin = self._twin.planner.prepare(values, {}, options, 0)
            if not _is_divided(call.act):
                return
            proof = self._twin._proof_of(options.output_subset, self.calls + 1)
            report = self._undone(call, origin, proof)
            if not report.ok and self._policy == "raise":
                raise NotExact(report)
            self._rehearsed = report.comparisons
            self._judge(report)

    def variant(self, call: Any, options: Any) -> Prepared:
        """Return the act that performs a planned call and proves it; the same act, if there is
        nothing to prove. A call of one part proves nothing, and the next one is due."""
        planned: Prepared = call
        if not _is_divided(call.act):
            return planned
        proof = self._proof_of(options.output_subset, self.calls + 1)
        if proof.outputs or proof.updates or proof.replicas or proof.compares_code:
            return self._proved(call, proof)
        self._go_on(self.calls + 1)
        return planned

    def reported(self, report: Report) -> None:
        """Judge the proof of the call that was performed last."""
        found = (*self._rehearsed, *report.comparisons)
        self._judge(replace(report, comparisons=found))
        self._go_on(self.calls)

    def _go_on(self, call: int) -> None:
        self._rehearsed = ()
        self._due = min(2 * call, call + self._runtime.proof_every) - 1
        self.asks_from = 0 if self._compares_code else self._due

    def _proved(self, call: Any, proof: Proof) -> Prepared:
        return self.orders.enter(call.once(replace(call.act, variant=proof)))

    def _undone(self, call: Any, origin: int, proof: Proof) -> Report:
        """Perform a call and undo it; return its proof. The caller holds the lock, and has staged
        no other act."""
        try:
            self.orders.perform((self._proved(call, replace(proof, rehearses=True)),), (origin,))
        except NotExact as undone:
            report: Report = undone.report
            return report
        raise AssertionError("a rehearsal was not undone")

    def _proof_of(self, output_subset: Any, call: int, everything: bool = False) -> Proof:
        """Return the parts of a call to prove; `everything`: also those that the graph shows to be
        exact, or wrong."""
        origins, registry = self._runtime.origins, self._runtime.registry

        def provable(parts: Iterable[Tuple[int, _Provable]]) -> Tuple[Part, ...]:
            some = ((n, p) for n, p in parts if not p.reason and (p.is_open or everything))
            return tuple((n, p.name) for n, p in some)

        return Proof(
            call,
            provable(enumerate(self._wanted(output_subset))),
            provable((part.number, part) for part in self._parts[1]),
            tuple(
                (variable, origins.because(variable, self.number))
                for variable in origins.to_agree(self.number, is_first=call <= 1)
                if variable in registry.variables and is_array(value_of(registry[variable]))
            ),
            self._compares_code,
            raises=self._policy == "raise",
        )

    def _wanted(self, output_subset: Optional[Sequence[int]]) -> List[_Provable]:
        outputs = self._parts[0]
        return outputs if output_subset is None else [outputs[i] for i in output_subset]

    def _judge(self, report: Report) -> None:
        """Keep a report; warn once of what is wrong, and of what cannot be proved."""
        self._report = report
        for text in (*map(str, report.wrong), *report.notes):
            self._warn(f"call {report.call} of {self._who}: {text}")

    def _warn(self, text: str) -> None:
        key = text.partition(": ")[2]
        if key not in self._warned:
            self._warned.add(key)
            warn_user(text, ProofWarning, self.spec.built_at)

    @property
    def proof(self) -> Optional[Report]:
        """The report of the latest proof, with the number of its call; None before the first.

        None, too, if the graph shows that all is exact, and reads no variable on which the ranks
        should agree. See ``fork(proof=...)``.
        """
        return self._report

    @brief_traceback
    def verify(
        self,
        *args: Any,
        output_subset: Optional[Sequence[int]] = None,
        batch: Any = None,
        batch_s: Any = None,
        num_slices: Union[int, Sequence[int]] = (2, 3),
        limit: Optional[float] = None,
        **kwargs: Any,
    ) -> Report:
        """Compute serially, in parallel and sliced, and compare; blocks until all is done.

        It proves a call as ``fork(proof=...)`` does, but all of it: each output that is not random,
        each update, and whether the ranks agree on the variables that the function reads. The call
        is undone on all ranks, states of random streams included, and counts nowhere.

        Args:
            *args, **kwargs: inputs, as in `__call__`.
            output_subset, batch, batch_s: as in `__call__`.
            num_slices: numbers of slices to compute in, besides none.
            limit: machine epsilons that count as rounding, by default 16 * sqrt(rows).

        Returns:
            A `Report`: print it; `Report.ok`; `Report.raise_if_wrong()`.

        Raises:
            What a call raises.
        """
        values = self._signature.ordered(args, kwargs)
        several = _checked_slices(num_slices)
        # NaN is not at least 0.
        is_number = isinstance(limit, (int, float, np.integer, np.floating))
        if limit is not None and not (is_number and limit >= 0):
            raise InputValueError(f"limit: got {shown(limit)}, expected a number of ulps, or None")
        spec = self.spec
        note = ""
        if not spec.n_scattered and not spec.sliceable:
            note = "not run in slices: the function has no rows to slice"
        elif self._lineage.has_reductions:
            note = "not run in slices: its in-graph reductions would reduce slice by slice"
        asked = self.planner.wanted(output_subset)
        places = range(len(spec.outputs)) if asked is None else asked
        combined = tuple(i for i in places if spec.output_ops[i] is not None)
        reports = []
        with self.orders.lock:
            for count in [1] if note else [1, *several]:
                wanted = asked if count == 1 else combined
                options = Options(wanted, batch, batch_s, count)
                call, origin = self.planner.prepare(values, {}, options, 0)
                proof = replace(self._proof_of(wanted, 0, everything=True), limit=limit)
                reports.append(self._undone(call, origin, proof))
        first, *others = reports
        # The ranks' values are the same in each run.
        sliced = [c for report in others for c in report.comparisons if c.difference]
        parts = [part for part in (*self._wanted(asked), *self._parts[1]) if part.reason]
        skipped = [Comparison(part.name, part.verdict.op, reason=part.reason) for part in parts]
        notes = (*first.notes, note) if note and several else first.notes
        return replace(first, comparisons=(*first.comparisons, *sliced, *skipped), notes=notes)


def _reason(spec: FunctionSpec, op: Optional[str], leaves: Leaves) -> str:
    """Return why a value cannot be compared; "" if it can."""
    if op is None:
        return "it is the master's own result"
    if draws(leaves):
        return _DRAWN
    if op == "last":
        return "op 'last' takes one part for the whole"
    has_rows = spec.n_scattered or spec.sliceable
    return "" if has_rows else "there are no rows: each rank computes the same"


def _checked_policy(policy: Any) -> Union[str, bool]:
    """Return what becomes of a call that is not exact: "raise", "warn" or False."""
    if policy in ("raise", "warn") or policy is False:
        return policy
    raise InputValueError(f"proof: got {shown(policy)}, expected 'raise', 'warn' or False")


def _is_divided(call: Call) -> bool:
    """Return whether a call has several parts: else it is what one process computes."""
    parts = 2 if call.rows is None else sum(map(bool, call.rows.counts))
    return parts > 1 or call.num_slices > 1


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

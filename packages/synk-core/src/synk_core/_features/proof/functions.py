"""What proofs add to functions: `f.verify()`, `f.proof`, and calls that are proved now and then."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Sequence, Union

from synk_core._features.feature import FunctionFeature
from synk_core._master.acts import Prepared
from synk_core._plan.arguments import Options
from synk_core._plan.rows import is_int
from synk_core._text import shown
from synk_core._tracebacks import brief_traceback
from synk_core.exceptions import InputValueError

from .origins import Origins
from .report import Report
from .schedule import Prover, checked_policy


class Proofs(NamedTuple):
    """The proofs of a runtime.

    Attributes:
        policy: see `checked_policy`; of functions that have none of their own.
        every: calls after which one is proved at the latest; None for no limit.
    """

    policy: Union[str, bool]
    every: Optional[int]
    origins: Optional[Origins] = None


class Proving(FunctionFeature):
    """Calls that are proved at their due, and all of it on demand.

    Attributes:
        prover: proves the calls of this function.
    """

    @classmethod
    def take_options(cls, runtime: Any, options: Dict[str, Any]) -> None:
        """Take `proof` and `proof_every`."""
        super().take_options(runtime, options)
        policy, every = options.pop("proof", "raise"), options.pop("proof_every", None)
        if every is not None and not (is_int(every) and every > 0):
            raise InputValueError(f"proof_every: got {shown(every)}, expected 1 or more")
        runtime.proofs = Proofs(checked_policy(policy), every)

    @classmethod
    def begin(cls, runtime: Any) -> None:
        """Follow who wrote which variable."""
        super().begin(runtime)
        origins = Origins(runtime.registry, runtime.specs, runtime.size)
        runtime.proofs = runtime.proofs._replace(origins=origins)
        runtime.orders.observers.add(origins)

    @classmethod
    def of_function(cls, runtime: Any, options: Dict[str, Any]) -> Dict[str, Any]:
        """Take `proof`."""
        policy = options.pop("proof", None)
        policy = runtime.proofs.policy if policy is None else checked_policy(policy)
        return {**super().of_function(runtime, options), "policy": policy}

    def attach(self, runtime: Any, plain: Any, **settings: Any) -> None:
        """Have a `Prover` follow the calls."""
        policy = settings.pop("policy")
        super().attach(runtime, plain, **settings)
        self.prover = Prover(self, plain, runtime, policy, runtime.proofs)
        self.is_due, self.rehearse = self.prover.is_due, self.prover.rehearse
        self.before_slices, self.reported = self.prover.warn_of_slices, self.prover.done

    def variant(self, call: Any, options: Any) -> Prepared:
        """Return the call with what is to be proved of it."""
        proved: Prepared = self.prover.proving(call, options.output_subset)
        return proved

    @property
    def proof(self) -> Optional[Report]:
        """What the latest proof has compared, at which call; None before the first.

        None, too, where the graph shows that all is exact, and reads no variable on which the ranks
        should agree. See ``fork(proof=...)``.
        """
        return self.prover.report

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

        It proves a call as ``fork(proof=...)`` has some proved, but all of it: each output that is
        not drawn, what the function updates, and whether the ranks agree on what it reads. The call
        is undone on all ranks, states of random streams included, and counts nowhere.

        Args:
            *args, **kwargs: inputs, as in `__call__`.
            output_subset, batch, batch_s: as in `__call__`.
            num_slices: with how many slices to compute, besides without.
            limit: machine epsilons that are taken for rounding, by default 16 * sqrt(rows).

        Returns:
            A `Report`: print it; `Report.ok`; `Report.raise_if_wrong()`.

        Raises:
            What a call raises.
        """
        values = self._signature.ordered(args, kwargs)
        options = Options(output_subset, batch, batch_s)
        return self.prover.verify(values, options, num_slices, limit)

"""Notice variables whose values may differ between ranks."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Sequence, Set, Tuple

from synk_core._features.feature import RuntimeFeature
from synk_core._graph.leaves import is_row_share
from synk_core._graph.random_streams import content, is_random_state, require_seedable
from synk_core._graph.shared import Storage, value_of
from synk_core._graph.values import is_array, on_host
from synk_core._master.record import Record
from synk_core._plan.collectives import RESTORING, WRITING
from synk_core._rank.workplace import Workplace
from synk_core._warn import warn_user
from synk_core._wire.messages import PLAIN, Call, Collective, Distribute
from synk_core._wire.settings import Settings
from synk_core.engine import TITLE
from synk_core.exceptions import ReplicasDiffer, ReplicaWarning

_Used = List[Tuple[int, Storage]]
"""Number and storage of the variables that a function uses."""


class Replicas:
    """An observer of orders that follows which variables the ranks agree on.

    Args:
        reseed: gives all ranks the states of random streams with these numbers.
    """

    def __init__(
        self, here: Workplace, settings: Settings, reseed: Callable[[Tuple[int, ...]], None]
    ) -> None:
        self._reseed = reseed
        self._registry = here.registry
        self._functions = here.functions
        self._is_alone = here.size == 1
        self._atomic = settings.atomic or self._is_alone
        self._same_streams = not settings.reseeds
        self._differ: Set[int] = set()
        self._seen: Dict[int, Any] = {}
        self._random: Dict[int, bool] = {}  # whether variables are random states
        self._contents: Dict[int, bytes] = {}  # of random states, seen or changed in place
        self._uses: Dict[int, Tuple[_Used, _Used]] = {}

    def before(self, record: Record) -> None:
        """Check the variables of an order, and reseed states that the program has set.

        Raises:
            ReplicasDiffer: after a failure, ranks may have different values of some.
            SpecError: a random state cannot be seeded for each rank.
        """
        if self._is_alone:
            return
        seen = self._seen
        states: _Used = []
        for prepared in record.acts:
            act = prepared.act
            if isinstance(act, Call):
                values, drawn = self._uses.get(act.function_id) or self._use(act)
                for number, storage in values:
                    if storage[0] is not seen.get(number, storage[0]):
                        self._warn_of_changes(act)
                        break
                states += drawn
            elif isinstance(act, Collective) and act.kind != "reseed":
                states += self._states(act.variables)
        if states:
            self._reseed_changed(states)
        if self._differ:
            self._require_all(record.acts)

    def after(self, record: Record) -> None:
        """Note the values that all ranks have after an order."""
        seen = self._seen
        for prepared in record.acts:
            act = prepared.act
            if isinstance(act, Call):
                # Operations may change variables without an update.
                values, states = self._uses.get(act.function_id) or self._use(act)
                for number, storage in values:
                    seen[number] = storage[0]
                if states:
                    self._see(number for number, _ in states)
            elif isinstance(act, Collective):
                self._see(act.variables)
                if act.kind in ("broadcast", "reseed"):
                    self._differ.difference_update(act.variables)
            elif isinstance(act, Distribute):
                self._see([n for n in self._registry.variables if n not in seen])

    def failed(self, record: Record) -> None:
        """Note that an order has failed on some rank."""
        if self._atomic:
            return
        for prepared in record.acts:
            act = prepared.act
            if isinstance(act, Call):
                values, states = self._use(act)
                if act.variant is None:  # a variant is undone even so
                    self._differ.update(self._functions[act.function_id].recipe.updated)
                    if self._same_streams:  # drawing a number is no update of the recipe
                        self._differ.update(number for number, _ in states)
                self._see(number for number, _ in (*values, *states))
            elif isinstance(act, Collective) and act.kind in WRITING:
                self._differ.update(act.variables)

    def forget_function(self, number: int) -> None:
        """Forget a function that the program has dropped."""
        self._uses.pop(number, None)

    def forget_variables(self, numbers: Sequence[int]) -> None:
        """Forget shared variables that the program has dropped."""
        for number in numbers:
            self._seen.pop(number, None)
            self._random.pop(number, None)
            self._contents.pop(number, None)
            self._differ.discard(number)

    def close(self) -> None:
        """Drop everything: the runtime has ended."""
        self._differ.clear()
        self._seen.clear()
        self._contents.clear()
        self._uses.clear()

    def _reseed_changed(self, states: _Used) -> None:
        """Reseed random states that the program has set in the master alone."""
        changed = {
            number
            for number, storage in states
            if number in self._seen
            and (
                storage[0] is not self._seen[number]
                or content(storage[0]) != self._contents[number]
            )
        }
        if changed:
            if not self._same_streams:
                for number in changed:
                    require_seedable(self._registry[number])
            self._reseed(tuple(sorted(changed)))

    def _require_all(self, acts: Sequence[Any]) -> None:
        mended: Set[int] = set()
        for prepared in acts:
            act = prepared.act
            if isinstance(act, Call):
                values, states = self._use(act)
                used = [n for n, _ in (*values, *(states if self._same_streams else ()))]
                self._require(used, mended, f"function {self._name(act)!r}")
            elif isinstance(act, Collective):
                if act.kind == "broadcast":
                    # Later acts of the same order may use the variables.
                    mended.update(act.variables)
                elif act.kind not in RESTORING:
                    self._require(act.variables, mended, f"{act.kind}()")

    def _require(self, numbers: Iterable[int], mended: Set[int], what: str) -> None:
        differing = sorted(self._differ.intersection(numbers) - mended)
        if differing:
            names = ", ".join(self._named(number) for number in differing)
            cure = (
                "use broadcast() of it first, which gives all ranks the master's values, or close()"
            )
            if self._states(differing):
                cure = "use synkhronos.seed(n), or seed(n) of the streams themselves"
            raise ReplicasDiffer(
                f"got {what}, which uses {names}: an earlier call that updates this failed when "
                f"some ranks had finished, so their values may differ; {cure}. "
                f"With fork(atomic=True) a failed call changes nothing"
            )

    def _warn_of_changes(self, act: Call) -> None:
        """Warn of values that the program has set in the master alone."""
        seen, registry = self._seen, self._registry
        changed = [
            number
            for number, storage in self._use(act)[0]
            if number in seen and seen[number] is not storage[0]
        ]
        # An equal value is no change, as after `as_theano()` and the old value again.
        news = [n for n in changed if not _same(seen[n], value_of(registry[n]))]
        self._see(changed)
        if not news:
            return
        names = ", ".join(self._named(number) for number in news)
        have = "has" if len(news) == 1 else "have"
        warn_user(
            f"{names} {have} been given a value in the master only, by set_value() of the variable "
            f"itself or by a {TITLE} function: the workers go on with the old one, in function "
            f"{self._name(act)!r}. Call broadcast() after it, or broadcast(variables, values) in "
            f"its place.",
            ReplicaWarning,
        )

    def _see(self, numbers: Iterable[int]) -> None:
        seen, registry = self._seen, self._registry
        for number in numbers:
            seen[number] = value = registry[number].container.storage[0]
            if self._random.get(number, True) and self._is_random(number):
                self._contents[number] = content(value)

    def _use(self, act: Call) -> Tuple[_Used, _Used]:
        """Return the variables of a function that ranks have in common, and its random states."""
        use = self._uses.get(act.function_id)
        if use is None:
            shared = self._functions[act.function_id].forms[PLAIN].get_shared()
            numbers = [self._registry.number_of(v) for v in shared if not is_row_share(v)]
            values = [
                (number, self._registry[number].container.storage)
                for number in numbers
                if not self._is_random(number)
            ]
            use = self._uses[act.function_id] = values, self._states(numbers)
        return use

    def _states(self, numbers: Iterable[int]) -> _Used:
        """Return the random states among variables."""
        random = self._random
        return [
            (number, self._registry[number].container.storage)
            for number in numbers
            if random.get(number, True) and self._is_random(number)
        ]

    def _is_random(self, number: int) -> bool:
        random = self._random[number] = is_random_state(self._registry[number])
        return random

    def _name(self, act: Call) -> str:
        return self._functions[act.function_id].recipe.name

    def _named(self, number: int) -> str:
        return repr(self._registry.label(number))


class WatchedReplicas(RuntimeFeature):
    """Follows which variables the ranks agree on."""

    def _begin(self) -> None:
        super()._begin()
        settings, reseed = self._lifecycle.settings, self.orders.reseed
        self.orders.observers.add(Replicas(self._rank, settings, reseed))


def _same(one: Any, other: Any) -> bool:
    """Return whether two values of a variable are equal."""
    if not (is_array(one) and is_array(other)) or one.shape != other.shape:
        return False
    return on_host(one).tobytes() == on_host(other).tobytes()

"""Notice variables whose values may differ between ranks."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Sequence, Set, Tuple

from synk_core._features.feature import RuntimeFeature
from synk_core._graph.digest import digest
from synk_core._graph.leaves import is_row_share
from synk_core._graph.random_streams import content, is_random_state, require_seedable
from synk_core._graph.shared import Storage
from synk_core._graph.values import is_array
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
    """An observer of orders that follows which variables the ranks agree on. `reseed` gives all
    ranks the states of random streams with these numbers."""

    def __init__(
        self, here: Workplace, settings: Settings, reseed: Callable[[Tuple[int, ...]], None]
    ) -> None:
        self._reseed = reseed
        self._registry = here.registry
        self._functions = here.functions
        self._atomic = settings.atomic
        self._same_streams = not settings.reseeds
        self._differ: Set[int] = set()
        self._seen: Dict[int, Any] = {}
        self._contents: Dict[int, bytes] = {}  # of random states, which may change in place
        self._uses: Dict[int, Tuple[_Used, _Used]] = {}

    def before(self, record: Record) -> None:
        """Refuse variables that may differ after a failure, warn of those that the program has set
        in the master alone, and reseed such random states."""
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
            elif self._contents and isinstance(act, Collective) and act.kind != "reseed":
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
        seen, contents = self._seen, self._contents
        changed = {
            n
            for n, (value,) in states
            if n in seen and (value is not seen[n] or content(value) != contents[n])
        }
        if changed:
            for number in () if self._same_streams else changed:
                require_seedable(self._registry[number])
            self._reseed(tuple(sorted(changed)))

    def _require_all(self, acts: Sequence[Any]) -> None:
        """Refuse an order that uses variables which may differ."""
        mended: Set[int] = set()  # by an act of this order, for later ones
        for prepared in acts:
            act = prepared.act
            used: Iterable[int] = ()
            if isinstance(act, Call):
                values, states = self._use(act)
                used = [n for n, _ in (*values, *(states if self._same_streams else ()))]
            elif isinstance(act, Collective) and act.kind == "broadcast":
                mended.update(act.variables)
            elif isinstance(act, Collective) and act.kind not in RESTORING:
                used = act.variables
            differing = sorted(self._differ.intersection(used) - mended)
            if not differing:
                continue
            what = f"function {self._name(act)!r}" if isinstance(act, Call) else f"{act.kind}()"
            cure = (
                "use broadcast() of it first, which gives all ranks the master's values, or close()"
            )
            if self._states(differing):
                cure = "use synkhronos.seed(n), or seed(n) of the streams themselves"
            raise ReplicasDiffer(
                f"got {what}, which uses {self._named(differing)}: an earlier call that updates "
                f"this failed when some ranks had finished, so their values may differ; {cure}. "
                f"With fork(atomic=True) a failed call changes nothing"
            )

    def _warn_of_changes(self, act: Call) -> None:
        """Warn of values that the program has set in the master alone."""
        seen = self._seen
        values = [(n, seen.get(n, storage[0]), storage[0]) for n, storage in self._use(act)[0]]
        changed = [one for one in values if one[1] is not one[2]]
        # An equal value is no change, as after `as_theano()` and the old value again.
        news = [
            number
            for number, *both in changed
            if not all(map(is_array, both)) or len(set(map(digest, both))) > 1
        ]
        self._see(number for number, *_ in changed)
        if not news:
            return
        have = "has" if len(news) == 1 else "have"
        warn_user(
            f"{self._named(news)} {have} been given a value in the master only, by set_value() of "
            f"the variable itself or by a {TITLE} function: the workers go on with the old one, in "
            f"function {self._name(act)!r}. Call broadcast() after it, or broadcast(variables, "
            f"values) in its place.",
            ReplicaWarning,
        )

    def _see(self, numbers: Iterable[int]) -> None:
        seen, contents, registry = self._seen, self._contents, self._registry
        for number in numbers:
            value = registry[number].container.storage[0]
            # Each variable is seen when it is distributed, before any other act.
            if number in contents or (number not in seen and is_random_state(registry[number])):
                contents[number] = content(value)
            seen[number] = value

    def _use(self, act: Call) -> Tuple[_Used, _Used]:
        """Return the variables of a function that ranks have in common, and its random states."""
        use = self._uses.get(act.function_id)
        if use is None:
            shared = self._functions[act.function_id].forms[PLAIN].get_shared()
            numbers = [self._registry.number_of(v) for v in shared if not is_row_share(v)]
            others = [n for n in numbers if n not in self._contents]
            values = [(n, self._registry[n].container.storage) for n in others]
            use = self._uses[act.function_id] = values, self._states(numbers)
        return use

    def _states(self, numbers: Iterable[int]) -> _Used:
        """Return the random states among variables."""
        states = [n for n in numbers if n in self._contents]
        return [(n, self._registry[n].container.storage) for n in states]

    def _name(self, act: Call) -> str:
        return self._functions[act.function_id].recipe.name

    def _named(self, numbers: Iterable[int]) -> str:
        return ", ".join(repr(self._registry.label(number)) for number in numbers)


class WatchedReplicas(RuntimeFeature):
    """Follows which variables the ranks agree on."""

    def _begin(self) -> None:
        super()._begin()
        if self.orders.size > 1:
            replicas = Replicas(self._rank, self._lifecycle.settings, self.orders.reseed)
            self.orders.observers.add(replicas)

"""Compare the ranks' values of shared variables every so many calls, by digests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import (
    Any,
    Dict,
    Iterable,
    List,
    Optional,
    Sequence,
    Tuple,
)

from synk_core._api.collectives import listed_variables
from synk_core._graph.facts import Event
from synk_core._graph.leaves import is_row_share
from synk_core._graph.random_streams import is_random_state
from synk_core._master.executor import Executor
from synk_core._plan.collectives import WRITING
from synk_core._plan.rows import is_int
from synk_core._text import shown
from synk_core._warn import warn_user
from synk_core._watch.history import CallHistory
from synk_core._wire.messages import Collective
from synk_core.exceptions import InputValueError, ReplicasDiffer, ReplicaWarning

ACTIONS = ("warn", "raise", "broadcast")

TALLY = "watch_replicas()"


@dataclass(frozen=True)
class ReplicaDifference:
    """A variable whose values differ between ranks.

    Attributes:
        variable: the shared variable.
        groups: the ranks, grouped by equal value.
        written: the function or collective that wrote the variable last, in words.
        calls: number of calls since the watch began.
        equal_at: the same number when the ranks were last found to agree, or None.
    """

    variable: Any
    groups: Tuple[Tuple[int, ...], ...]
    written: str
    calls: int
    equal_at: Optional[int]

    def __str__(self) -> str:
        name = repr(self.variable.name) if self.variable.name else str(self.variable)
        values = ", ".join(f"{_ranks(group)} another" for group in self.groups[1:])
        since = "" if self.equal_at is None else f"; all ranks agreed after call {self.equal_at}"
        return (
            f"{name} is not the same on all ranks after call {self.calls}: "
            f"{_ranks(self.groups[0])} one value, {values}; written last by {self.written}{since}"
        )


class ReplicaWatch:
    """Compares the ranks' values of shared variables; made by `synkhronos.watch_replicas`.

    A context manager: it stops at the end of the block.

    Args:
        executor: of the runtime.
        writers: finds the last writer of a variable.
        shared_vars: one variable or a list of them.
        every: calls from one comparison to the next.
        action: "warn", "raise" or "broadcast".

    Attributes:
        variables: the shared variables.
        calls: number of successful calls since it began.
        watching: False once it is stopped.

    Raises:
        NotSharedVariable, InputTypeError, InputValueError: bad arguments.
    """

    def __init__(
        self, executor: Executor, writers: Writers, shared_vars: Any, every: Any, action: Any
    ) -> None:
        if not is_int(every) or every < 1:
            raise InputValueError(
                f"watch_replicas(): every: got {shown(every)}, expected an int of at least 1"
            )
        if not isinstance(action, str) or action not in ACTIONS:
            raise InputValueError(
                f"watch_replicas(): action: got {shown(action)}, expected 'warn', 'raise' or "
                f"'broadcast'"
            )
        self.variables, _ = listed_variables(shared_vars)
        for variable in self.variables:
            if is_random_state(variable) or is_row_share(variable):
                raise InputValueError(
                    f"watch_replicas(): got {variable}, the state of a random stream or a "
                    f"row_share(), which ranks ought to have different values of; leave it out"
                )
        self.calls = 0
        self.watching = True
        self._executor = executor
        self._writers = writers
        self._every = int(every)
        self._action = action
        self._equal_at: Dict[int, int] = {}

    def __repr__(self) -> str:
        state = f"every {self._every} calls" if self.watching else "stopped"
        return f"<ReplicaWatch of {len(self.variables)} variables, {state}>"

    def __enter__(self) -> ReplicaWatch:  # noqa: PYI034 - typing.Self is not there on Python 3.9
        return self

    def __exit__(self, *exc: object) -> None:
        self.watching = False

    def stop(self) -> None:
        """Stop comparing. Idempotent, and harmless when the runtime is closed."""
        self.watching = False

    def check(self) -> List[ReplicaDifference]:
        """Compare now, even if stopped; blocks until all ranks have done their part.

        Returns:
            The differences; an empty list if all ranks have the same values, bit by bit.

        Raises:
            ReplicasDiffer: some differ, and the action is "raise".
            Closed: the runtime is closed.
        """
        with self._executor.lock:
            return self._compare()

    def called(self) -> None:
        """Count an order with calls; the caller holds the lock."""
        self.calls += 1
        if self.calls % self._every == 0:
            self._compare()

    def _compare(self) -> List[ReplicaDifference]:
        numbers = self._executor.numbers(self.variables)
        if self._executor.size == 1:
            return []
        act = Collective("get_digests", numbers)
        digests = self._executor.run_act(act, TALLY, ("get_digests", numbers))
        differences, differing = [], []
        for number, variable, ranks in zip(numbers, self.variables, digests):
            groups = grouped(ranks)
            if len(groups) == 1:
                self._equal_at[number] = self.calls
                continue
            written = self._writers.last(number)
            equal_at = self._equal_at.get(number)
            differing.append(number)
            differences.append(ReplicaDifference(variable, groups, written, self.calls, equal_at))
        if differences:
            self._act(differences, tuple(differing))
        return differences

    def _act(self, differences: List[ReplicaDifference], numbers: Tuple[int, ...]) -> None:
        text = "\n".join(map(str, differences))
        if self._action == "raise":
            raise ReplicasDiffer(
                f"got replicas that differ:\n{text}\nexpected the same bits on every rank. "
                f"broadcast() gives all ranks the master's values; synk.lint() looks for what let "
                f"them part. The call itself is done.",
                tuple(differences),
            )
        if self._action == "broadcast":
            arguments = {"values": None, "forms": None}
            self._executor.run_act(Collective("broadcast", numbers, arguments), TALLY)
            self._equal_at.update(dict.fromkeys(numbers, self.calls))
            text += "\nAll ranks have been given the master's values of this."
        warn_user(text, ReplicaWarning)


class Writers:
    """Finds the last writer of a variable.

    Args:
        history: the calls and collectives so far.
    """

    def __init__(self, history: CallHistory) -> None:
        self._history = history

    def last(self, number: int) -> str:
        """Return the last writer of the variable with this number, in words."""
        for event in self._history.latest():
            if event.kind == "call" and event.function_id is not None:
                name, updated = self._history.updated_by(event.function_id)
                if number in updated:
                    return f"function {name!r}"
            elif event.kind in WRITING and number in event.variables:
                return f"{event.kind}()" + _of_rank(event)
        return "nothing since it was distributed, as far as is known"


def grouped(digests: Sequence[str]) -> Tuple[Tuple[int, ...], ...]:
    """Group ranks by equal digests, each group in rank order, by their lowest rank.

    >>> grouped(["a", "b", "a"])
    ((0, 2), (1,))
    """
    groups: Dict[str, List[int]] = {}
    for rank, named in enumerate(digests):
        groups.setdefault(named, []).append(rank)
    return tuple(map(tuple, groups.values()))


def _ranks(group: Iterable[int]) -> str:
    listed = [str(rank) for rank in group]
    if len(listed) == 1:
        return f"rank {listed[0]} has"
    return f"ranks {', '.join(listed[:-1])} and {listed[-1]} have"


def _of_rank(event: Event) -> str:
    return "" if event.rank is None else f" on rank {event.rank}"

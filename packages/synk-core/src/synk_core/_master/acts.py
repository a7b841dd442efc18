"""The acts of a runtime: the lock that they are staged and performed under, their numbers, and
what ends them: the program drops functions, arrays and shared variables.

Weak references put these into queues, at any time and from any thread. The workers forget them with
the next order.
"""

from __future__ import annotations

import _thread
import itertools
import os
import weakref
from collections import deque
from time import perf_counter
from typing import Any, Callable, Deque, Dict, Hashable, List, Optional, Sequence, Set

from synk_core._rank.workplace import Workplace
from synk_core._shield import require_frames
from synk_core._weakqueue import QueuedRef
from synk_core._wire.messages import Act, Call, Collective, Extras, Prefetch, Step
from synk_core.engine import held_by
from synk_core.exceptions import NestedCall

from .replicas import Replicas
from .store import DataStore

LIMIT = 1000
"""Acts that are kept; the oldest are forgotten."""

LINGERING_ORDERS = 2
"""Orders until the master itself has dropped a function's variables: acts are forgotten with the
first, and the journal's values with the second."""

_RLock: Any = _thread.RLock


class OrderLock(_RLock):  # type: ignore[misc] # Any, because some versions' stubs are final
    """A lock around staging and performing. Other threads wait for it.

    The thread that holds it cannot take it again: that would be a call from inside a computation,
    or from a signal handler, which would write into the memory that the outer one has prepared.

    Its release is written in C, as plain locks' is: Ctrl-C comes before or after it.

    Attributes:
        running: whether an order is being performed.
        began: when the lock was taken, in seconds of `time.perf_counter`.
    """

    def __init__(self) -> None:
        self.running = False
        self.began = 0.0
        self._pid = os.getpid()

    def __enter__(self) -> None:
        require_frames()  # an order that has begun comes to its end
        if os.getpid() != self._pid:  # a child, without the thread that may hold the lock
            self._at_fork_reinit()
            self._pid = os.getpid()
        if self._is_owned():
            raise NestedCall(
                "got a call inside a call: this thread is at work on another one of the same "
                "runtime (the inner one comes from an Op's perform, a callback or a signal "
                "handler), expected one at a time; synk.step() has several things done in one go"
            )
        try:
            self.acquire()
            self.began = perf_counter()
        except BaseException:  # a signal: `__exit__` will not run
            if self._is_owned():
                self.release()
            raise


class ActTable:
    """Numbers acts. New ones travel with the next order."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._acts: Dict[int, Act] = {}
        self._names: Dict[int, Hashable] = {}
        self._named: Dict[Hashable, int] = {}
        self._users: Dict[int, Set[int]] = {}
        self._unsent: List[int] = []
        self._latest: List[int] = []  # those that came last
        self._once: Set[int] = set()
        # For the next order, in the order of `Extras`.
        self._forgotten: List[int] = []
        self._forgotten_arrays: List[int] = []
        self._forgotten_functions: List[int] = []
        self._forgotten_variables: List[int] = []
        self._all_forgotten = (
            self._forgotten,
            self._forgotten_arrays,
            self._forgotten_functions,
            self._forgotten_variables,
        )
        self._holders: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def __contains__(self, number: int) -> bool:
        return number in self._acts

    def get(self, number: int) -> Optional[Act]:
        """Return the act of this number; None if it is forgotten."""
        return self._acts.get(number)

    def enter(self, act: Act, name: Optional[Hashable] = None, holder: Any = None) -> int:
        """Return a number for `act`; a known `name` has the same as before.

        When the act is forgotten, its `holder`, if it still exists, is closed by its `close()`. An
        act that is proved, or is no call and has no name, is kept for one order only.
        """
        if name is not None and name in self._named:
            return self._named[name]
        number = next(self._numbers)
        self._acts[number] = act
        self._unsent.append(number)
        if holder is not None:
            self._holders[number] = holder
        if isinstance(act, Call) and act.proof is None:
            for ref in act.arrays():
                self._users.setdefault(ref.key, set()).add(number)
        elif name is None:
            self._once.add(number)
        if name is not None:
            self._named[name] = number
            self._names[number] = name
        return number

    def forget(self, numbers: Sequence[int]) -> None:
        """Forget acts, here and with the next order in the workers."""
        for number in numbers:
            act = self._acts.pop(number, None)
            if act is None:
                continue
            self._once.discard(number)
            holder = self._holders.pop(number, None)
            if holder is not None:
                holder.close()
            self._named.pop(self._names.pop(number, None), None)
            if isinstance(act, Call):
                ahead = self._named.get(Prefetch(number).act_name)
                if ahead is not None:
                    self.forget((ahead,))
                for ref in act.arrays():
                    users = self._users.get(ref.key)
                    if users is not None:
                        users.discard(number)
                        if not users:
                            del self._users[ref.key]
            if number in self._unsent:
                self._unsent.remove(number)
            else:
                self._forgotten.append(number)

    def forget_arrays(self, keys: Sequence[int]) -> None:
        """Forget acts that refer to arrays which are gone or have moved."""
        for key in keys:
            self.forget(tuple(self._users.get(key, ())))
        self._forgotten_arrays += keys

    def forget_function(self, function_id: int) -> None:
        """Forget a function that the program has dropped, and its calls."""
        calls = [
            number
            for number, act in self._acts.items()
            if isinstance(act, Call) and act.function_id == function_id
        ]
        self.forget(calls)
        self._forgotten_functions.append(function_id)

    def forget_variables(self, numbers: Sequence[int]) -> None:
        """Forget shared variables that the program has dropped, and their collectives."""
        gone = set(numbers)
        collectives = [
            number
            for number, act in self._acts.items()
            if isinstance(act, Collective) and not gone.isdisjoint(act.variables)
        ]
        self.forget(collectives)
        self._forgotten_variables += numbers

    def extras(self) -> Optional[Extras]:
        """Return what the workers need before the next order; None if that is nothing."""
        if not self._unsent and not any(self._all_forgotten):
            return None
        new = {number: self._acts[number] for number in self._unsent}
        acts, arrays, functions, variables = map(tuple, self._all_forgotten)
        return Extras(new, acts, arrays, functions, variables)

    def sent(self, extras: Extras) -> None:
        """Note that all ranks have taken these in."""
        del self._forgotten[: len(extras.forget_acts)]
        del self._forgotten_arrays[: len(extras.forget_arrays)]
        del self._forgotten_functions[: len(extras.forget_functions)]
        del self._forgotten_variables[: len(extras.forget_variables)]
        self._unsent = [number for number in self._unsent if number not in extras.acts]
        self._latest = list(extras.acts)

    def failed(self, extras: Optional[Extras]) -> None:
        """Forget the acts that came with a failed order: some ranks may have taken them in.

        And those that came last before it: that may be the order which a worker failed to end.
        """
        if extras is not None:
            self._unsent = [number for number in self._unsent if number not in extras.acts]
            self.forget(tuple(extras.acts))
        self.forget(self._latest)

    def end(self, steps: Sequence[Step]) -> None:
        """After an order, forget the acts that were for it alone, and the oldest beyond `LIMIT`."""
        if self._once:
            self.forget([step.number for step in steps if step.number in self._once])
        if len(self._acts) > LIMIT:
            self.forget(list(self._acts)[: len(self._acts) - LIMIT])


class Garbage:
    """Collects what the program has dropped.

    Attributes:
        on_function: called with the number of each function that was dropped.
    """

    def __init__(
        self, here: Workplace, acts: ActTable, store: DataStore, replicas: Replicas
    ) -> None:
        self.on_function: Callable[[int], None] = lambda _number: None
        self._here = here
        self._registry = here.registry
        self._acts = acts
        self._store = store
        self._replicas = replicas
        self._functions: Dict[int, QueuedRef] = {}
        self._gone: Deque[QueuedRef] = deque()
        self._lingers_until = -1

    def watch(self, function: Any, number: int) -> None:
        """Forget a function once the program has dropped it."""
        self._functions[number] = QueuedRef(function, self._gone, number)

    def watched(self) -> List[Any]:
        """Return the functions that the program still has."""
        return [one for one in (known() for known in list(self._functions.values())) if one]

    def collect(self) -> None:
        """Forget what is gone, and acts whose arrays have moved; the caller holds the lock.

        To be called before staging: an older act may refer to the same room.
        """
        if self._gone or self._registry.gone or self._store.released or self._lingers():
            self._collect()

    def _lingers(self) -> bool:
        """Return whether the master may still hold variables of something that is gone."""
        return self._here.serial <= self._lingers_until

    def _collect(self) -> None:
        # Removed from the queues last: after an interrupt it is handled once more.
        if self._gone or self._registry.gone:
            self._lingers_until = self._here.serial + LINGERING_ORDERS
        while self._gone:
            self._forget_function(self._gone[0].number)
            self._gone.popleft()
        if self._store.released:
            keys = self._store.released_keys()
            self._acts.forget_arrays(keys)
            self._store.forget(keys)
        if self._lingers():
            self._forget_variables()

    def _forget_function(self, number: int) -> None:
        self.on_function(number)
        self._acts.forget_function(number)
        self._store.forget_function(number)
        self._replicas.forget_function(number)
        loaded = self._here.functions.pop(number, None)
        if loaded is not None:
            for form in loaded.compiled():
                self._registry.watch(held_by(form))
        self._functions.pop(number, None)

    def _forget_variables(self) -> None:
        count = len(self._registry.gone)
        numbers = self._registry.unused()
        self._replicas.forget_variables(numbers)
        self._acts.forget_variables(numbers)
        self._registry.let_go(numbers)
        self._registry.forget_gone(count)

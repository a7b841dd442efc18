"""The master's table of acts: the numbers that workers know, and those that they have to forget."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Dict, Hashable, List, Optional, Sequence, Set

from synk_theano._wire.messages import Act, Call, Collective, Extras, Prefetch, Step

LIMIT = 1000
"""Acts that are kept; the oldest are forgotten."""


class ActTable:
    """Numbers acts. New ones travel with the next order."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._acts: Dict[int, Act] = {}
        self._names: Dict[int, Hashable] = {}
        self._named: Dict[Hashable, int] = {}
        self._users: Dict[int, Set[int]] = {}
        self._unsent: List[int] = []
        self._once: Set[int] = set()
        self._forgotten: List[int] = []
        self._forgotten_arrays: List[int] = []
        self._forgotten_functions: List[int] = []
        self._forgotten_variables: List[int] = []
        self._holders: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def __contains__(self, number: int) -> bool:
        return number in self._acts

    def get(self, number: int) -> Optional[Act]:
        """Return the act of this number; None if it is forgotten."""
        return self._acts.get(number)

    def enter(self, act: Act, name: Optional[Hashable] = None, holder: Any = None) -> int:
        """Return a number for `act`; a known `name` has the same as before.

        When the act is forgotten, its `holder`, if it still exists, is closed by its `close()`. An
        act that is no call and has no name is kept for one order only.
        """
        if name is not None and name in self._named:
            return self._named[name]
        number = next(self._numbers)
        self._acts[number] = act
        self._unsent.append(number)
        if holder is not None:
            self._holders[number] = holder
        if isinstance(act, Call):
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
        if not (
            self._unsent
            or self._forgotten
            or self._forgotten_arrays
            or self._forgotten_functions
            or self._forgotten_variables
        ):
            return None
        return Extras(
            {number: self._acts[number] for number in self._unsent},
            tuple(self._forgotten),
            tuple(self._forgotten_arrays),
            tuple(self._forgotten_functions),
            tuple(self._forgotten_variables),
        )

    def sent(self, extras: Extras) -> None:
        """Note that all ranks have taken these in."""
        del self._forgotten[: len(extras.forget_acts)]
        del self._forgotten_arrays[: len(extras.forget_arrays)]
        del self._forgotten_functions[: len(extras.forget_functions)]
        del self._forgotten_variables[: len(extras.forget_variables)]
        self._unsent = [number for number in self._unsent if number not in extras.acts]

    def failed(self, extras: Optional[Extras]) -> None:
        """Forget the acts that came with a failed order: some ranks may have taken them in."""
        if extras is not None:
            self._unsent = [number for number in self._unsent if number not in extras.acts]
            self.forget(tuple(extras.acts))

    def end(self, steps: Sequence[Step]) -> None:
        """After an order, forget the acts that were for it alone, and the oldest beyond `LIMIT`."""
        if self._once:
            self.forget([step.number for step in steps if step.number in self._once])
        if len(self._acts) > LIMIT:
            self.forget(list(self._acts)[: len(self._acts) - LIMIT])

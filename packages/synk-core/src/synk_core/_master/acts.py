"""The acts of a runtime: prepared once, numbered, and found again by what makes them equal."""

from __future__ import annotations

import itertools
from typing import Any, Callable, Dict, Hashable, List, Optional, Sequence, Set, Tuple

from synk_core._wire.messages import Act, Call, Collective, Extras, Prefetch

LIMIT = 1000
"""Acts that are kept; the oldest are forgotten."""


class Prepared:
    """An act that is numbered and can be performed again and again, while its arrays last."""

    def __init__(self, act: Act, label: Optional[str] = None, nbytes: int = 0) -> None:
        self.act = act
        self.label = label  # in figures; None for none
        self.nbytes = nbytes  # of inputs that the ranks read
        self.number = 0  # also once it is forgotten
        self.key: Hashable = None  # also of an act of one order alone

    def once(self, act: Act) -> Prepared:
        """Return another act, for one order, that counts as this one."""
        return Prepared(act, self.label, self.nbytes)

    def close(self) -> None:
        """Drop references to shared memory: the act is forgotten."""


class ActTable:
    """Numbers acts, and remembers them by key. New ones travel with the next order.

    Attributes:
        find: returns the act of a key; None if there is none.
        changed: whether there is something for `extras` or `end` to do.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._acts: Dict[int, Prepared] = {}
        self._by_key: Dict[Hashable, Prepared] = {}
        self.find: Callable[[Hashable], Optional[Any]] = self._by_key.get
        self._users: Dict[int, Set[int]] = {}
        self._unsent: List[int] = []
        self._latest: List[int] = []  # those that came last
        self._passing = 0  # acts for one order alone
        self.changed = False
        # For the next order, in the order of `Extras`.
        self._all_forgotten: Tuple[List[int], ...] = ([], [], [], [])
        self._forgotten, self._forgotten_arrays = self._all_forgotten[:2]
        self._forgotten_functions, self._forgotten_variables = self._all_forgotten[2:]

    def get(self, number: int) -> Optional[Act]:
        """Return the act of this number; None if it is forgotten."""
        prepared = self._acts.get(number)
        return None if prepared is None else prepared.act

    def enter(self, prepared: Prepared, key: Hashable = None) -> Prepared:
        """Number an act, and return it; without a key it is kept for one order only."""
        number = prepared.number = next(self._numbers)
        self._acts[number] = prepared
        self._unsent.append(number)
        self.changed = True
        if key is None:
            self._passing += 1
        else:
            prepared.key = key
            self._by_key[key] = prepared
            for ref in _arrays_of(prepared.act):
                self._users.setdefault(ref.key, set()).add(number)
        return prepared

    def forget(self, numbers: Sequence[int]) -> None:
        """Forget acts, here and with the next order in the workers."""
        for number in numbers:
            prepared = self._acts.pop(number, None)
            if prepared is None:
                continue
            self.changed = True
            prepared.number = 0
            prepared.close()
            if prepared.key is None:
                self._passing -= 1
            else:
                self._by_key.pop(prepared.key, None)
                ahead = self.find(Prefetch(number).key)
                if ahead is not None:
                    self.forget((ahead.number,))
                for ref in _arrays_of(prepared.act):
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
        self.changed = True

    def forget_function(self, function_id: int) -> None:
        """Forget a function that the program has dropped, and its calls."""
        self._forget_if(lambda act: isinstance(act, Call) and act.function_id == function_id)
        self._forgotten_functions.append(function_id)
        self.changed = True

    def forget_variables(self, numbers: Sequence[int]) -> None:
        """Forget shared variables that the program has dropped, and their collectives."""
        gone = set(numbers)
        self._forget_if(
            lambda act: isinstance(act, Collective) and not gone.isdisjoint(act.variables)
        )
        self._forgotten_variables += numbers
        self.changed = True

    def _forget_if(self, is_meant: Callable[[Act], bool]) -> None:
        self.forget([n for n, prepared in self._acts.items() if is_meant(prepared.act)])

    def extras(self) -> Optional[Extras]:
        """Return what the workers need before the next order; None if that is nothing."""
        if not self._unsent and not any(self._all_forgotten):
            return None
        new = {number: self._acts[number].act for number in self._unsent}
        acts, arrays, functions, variables = map(tuple, self._all_forgotten)
        return Extras(new, acts, arrays, functions, variables)

    def sent(self, extras: Extras) -> None:
        """Note that all ranks have received these."""
        del self._forgotten[: len(extras.forget_acts)]
        del self._forgotten_arrays[: len(extras.forget_arrays)]
        del self._forgotten_functions[: len(extras.forget_functions)]
        del self._forgotten_variables[: len(extras.forget_variables)]
        self._unsent = [number for number in self._unsent if number not in extras.acts]
        self._latest = list(extras.acts)

    def failed(self, extras: Optional[Extras]) -> None:
        """Forget the acts that came with a failed order: some ranks may have received them.

        And those before it: a worker may have failed to end that order.
        """
        if extras is not None:
            self._unsent = [number for number in self._unsent if number not in extras.acts]
            self.forget(tuple(extras.acts))
        self.forget(self._latest)

    def end(self, performed: Sequence[Prepared]) -> None:
        """After an order, forget the acts that were for it alone, and the oldest beyond `LIMIT`."""
        for prepared in performed:
            if prepared.key is None:
                self.forget((prepared.number,))
        if len(self._acts) > LIMIT:
            self.forget(list(self._acts)[: len(self._acts) - LIMIT])
        self.changed = bool(self._unsent or self._passing or any(self._all_forgotten))

    def close(self) -> None:
        """Drop references to shared memory: the runtime has ended."""
        for prepared in self._acts.values():
            prepared.close()


def _arrays_of(act: Act) -> Sequence[Any]:
    """Return where the arrays lie that an act refers to, if it may be performed again."""
    return act.arrays() if isinstance(act, Call) else ()

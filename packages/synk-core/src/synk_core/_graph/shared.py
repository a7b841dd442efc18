"""The registry of shared variables: variable <-> number, the same on every rank.

A shared variable's identity is the one-element list in which its value lies
(``sv.container.storage``): compiled functions hold that list, clones of the variable share it.
The registry keeps the list alive until all ranks have forgotten the variable, so that an identity
is never used twice.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

from synk_core._text import shown
from synk_core._weakqueue import QueuedRef
from synk_core.engine import NAME, TITLE, SharedVariable
from synk_core.exceptions import NotSharedVariable

from .random_streams import is_random_state
from .values import is_array, on_host

Storage = List[Any]
"""The one-element list in which a shared variable's value lies."""

storage_of: Callable[[Any], Storage] = attrgetter("container.storage")
"""Returns that of a variable."""

_OWN = 2
"""References that `sys.getrefcount` counts in `unused` for a storage without other holders."""

_KEPT_TAGS = ("is_rng", "synk_row_share")


@dataclass(frozen=True)
class VariableRecord:
    """A shared variable as it is sent; the variable itself would bring graphs along in its tags.
    It has the `shape` of a value that is not sent with it, but from device to device."""

    number: int
    cls: type
    type: Any
    name: Optional[str]
    strict: bool
    allow_downcast: Optional[bool]
    value: Any
    shape: Optional[Tuple[int, ...]]
    is_random: bool


def require_shared(variable: Any) -> None:
    """Raise NotSharedVariable if `variable` is no shared variable."""
    if not isinstance(variable, SharedVariable):
        raise NotSharedVariable(
            f"got {shown(variable)} of type {type(variable).__name__}, expected a "
            f"{TITLE} shared variable; make one with {NAME}.shared(value)"
        )


def value_of(variable: Any) -> Any:
    """Return the variable's value itself, not a copy."""
    return variable.container.storage[0]


def store(variable: Any, value: Any) -> None:
    """Set the variable's value, without a copy if its type allows that."""
    variable.set_value(value, borrow=True)


def changed_by(compiled: Any) -> List[Storage]:
    """Return the storages of the variables that a compiled function updates."""
    return [
        container.storage
        for item, container in zip(compiled.maker.expanded_inputs, compiled.input_storage)
        if item.update is not None
    ]


class VariableRegistry:
    """Numbers for shared variables, each used once; see the module's docstring.

    It holds clones of the user's variables with the same storage, so that it can find the
    variables that the user's program no longer refers to.

    Attributes:
        variables: clones by number.
        end: number of the next new variable.
        drifting: numbers of variables whose values differ between ranks on purpose.
        gone: holders of variables that are gone, so that a variable may be unused now.
    """

    def __init__(self) -> None:
        self.variables: Dict[int, Any] = {}
        self.end = 0
        self.drifting: Set[int] = set()
        self.gone: deque[QueuedRef] = deque()
        self._watched: Dict[int, QueuedRef] = {}
        self._leaving: Dict[int, Any] = {}
        self._users: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._numbers: Dict[int, int] = {}

    def __getitem__(self, number: int) -> Any:
        return self.variables[number]

    def number_of(self, variable: Any) -> int:
        """Return the variable's number; a new one if it had none."""
        number = self._numbers.get(id(variable.container.storage))
        if number is None:
            number = self._insert(self.end, _clone(variable))
            self._users[number] = variable
            self.watch(variable.container)
        return number

    def known_number(self, storage: Storage) -> Optional[int]:
        """Return the number of the variable whose value lies in `storage`, or None."""
        return self._numbers.get(id(storage))

    def known_numbers(self, variables: Sequence[Any]) -> Tuple[Optional[int], ...]:
        """Return variables' numbers; None for one that has none yet."""
        return tuple(map(self._numbers.get, map(id, map(storage_of, variables))))

    def label(self, number: int) -> str:
        """Return the name of a variable for messages."""
        return self._user(number).name or f"shared variable {number}"

    def _user(self, number: int) -> Any:
        """Return the user's own variable; the clone if it is gone."""
        variable = self._users.get(number)
        return self.variables[number] if variable is None else variable

    def watch(self, holder: Any) -> None:
        """Append to `gone` when a holder of variables is gone."""
        reference = QueuedRef(holder, self.gone)
        self._watched[id(reference)] = reference

    def unused(self) -> List[int]:
        """Return the numbers of the variables whose storage has no other holder."""
        return [
            number
            for number, variable in self.variables.items()
            if sys.getrefcount(variable.container.storage) <= _OWN
        ]

    @contextmanager
    def held(self) -> Iterator[Dict[int, Any]]:
        """Give all variables by number; none becomes unused during the block."""
        variables = dict(self.variables)
        storages = [variable.container.storage for variable in variables.values()]
        yield variables
        del storages

    def let_go(self, numbers: Iterable[int]) -> None:
        """Remove variables from `variables`, before all ranks forget them."""
        for number in numbers:
            # Kept until then, because their storages' identities are in use.
            self._leaving[number] = self.variables.pop(number)

    def forget_gone(self, count: int) -> None:
        """Remove the first `count` of `gone`."""
        for _ in range(count):
            self._watched.pop(id(self.gone[0]), None)
            self.gone.popleft()

    def forget(self, number: int) -> None:
        """Remove a variable, which no rank holds any more."""
        for variables in (self.variables, self._leaving):
            variable = variables.pop(number, None)
            if variable is not None:
                del self._numbers[id(variable.container.storage)]
        self._users.pop(number, None)

    def records(
        self, start: int, goes_apart: Callable[[Sequence[Any]], bool]
    ) -> List[VariableRecord]:
        """Return records of all variables from number `start` on, without arrays that go apart."""
        records = []
        for number, variable in self.variables.items():
            if number < start:
                continue
            value, user = value_of(variable), self._user(number)
            random = is_random_state(user)
            apart = not random and is_array(value) and goes_apart([value])
            record = VariableRecord(
                number=number,
                cls=type(variable),
                type=variable.type,
                name=user.name,
                strict=variable.container.strict,
                allow_downcast=variable.container.allow_downcast,
                value=None if apart else on_host(value),
                shape=value.shape if apart else None,
                is_random=random,
            )
            records.append(record)
        return records

    def adopt(self, record: VariableRecord, value: Any) -> None:
        """Create the variable of `record` on this rank, with `value`.

        A variable that exists was sent twice: it stays as it is, unless its value comes separately.
        """
        if record.number < self.end:
            if record.shape is not None:
                self.variables[record.number].container.storage[0] = value
            return
        variable = record.cls(
            name=record.name,
            type=record.type,
            # Not strict, because a variable of a device would refuse an array of the host.
            value=record.type.filter(value, strict=False, allow_downcast=record.allow_downcast),
            strict=record.strict,
            allow_downcast=record.allow_downcast,
        )
        if record.is_random:
            variable.tag.is_rng = True
        self._insert(record.number, variable)

    def truncate(self, length: int) -> None:
        """Forget the variables from number `length` on."""
        for number in [*self.variables, *self._leaving]:
            if number >= length:
                self.forget(number)
        self.end = length

    def _insert(self, number: int, variable: Any) -> int:
        self.variables[number] = variable
        self._numbers[id(variable.container.storage)] = number
        self.end = number + 1
        return number


def _clone(variable: Any) -> Any:
    """Return a variable with the same storage that keeps nothing else of this one alive."""
    clone = variable.clone()
    clone.container = copy.copy(variable.container)
    clone.tag = type(variable.tag)()
    for name in _KEPT_TAGS:
        if hasattr(variable.tag, name):
            setattr(clone.tag, name, getattr(variable.tag, name))
    return clone

"""The registry of Theano shared variables: variable <-> number, the same on every rank.

A shared variable's identity is the one-element list in which its value lies
(``sv.container.storage``): compiled functions hold that list, clones of the variable share it.
The registry keeps the list alive until all ranks have been told to forget the variable, so that an
identity is never used twice.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Deque, Dict, Iterable, Iterator, List, Optional, Tuple

from theano.compile import SharedVariable
from theano.gof.utils import scratchpad

from synk_theano._text import shown
from synk_theano._weakqueue import QueuedRef
from synk_theano.exceptions import NotSharedVariable

from .values import on_host

Storage = List[Any]
"""The one-element list in which a shared variable's value lies."""


_OWN = 2
"""References to a storage that nobody else has, as `sys.getrefcount` counts them in `unused`."""

_KEPT_TAGS = ("is_rng", "synk_row_share")


@dataclass(frozen=True)
class VariableRecord:
    """A shared variable as it travels: never the object itself, whose tags drag graphs along."""

    number: int
    cls: type
    type: Any
    name: Optional[str]
    strict: bool
    allow_downcast: Optional[bool]
    value: Any
    is_random: bool


def require_shared(variable: Any) -> None:
    """
    Raises:
        NotSharedVariable: if `variable` is not a Theano shared variable.
    """
    if not isinstance(variable, SharedVariable):
        raise NotSharedVariable(
            f"got {shown(variable)} of type {type(variable).__name__}, expected a Theano shared "
            f"variable; make one with theano.shared(value)"
        )


def value_of(variable: Any) -> Any:
    """The variable's value itself, not a copy."""
    return variable.container.storage[0]


def store(variable: Any, value: Any) -> None:
    """Make `value` the variable's value, without a copy where its type allows."""
    variable.set_value(value, borrow=True)


def changed_by(compiled: Any) -> List[Storage]:
    """Where the variables have their values that a compiled function itself gives new ones."""
    return [
        container.storage
        for item, container in zip(compiled.maker.expanded_inputs, compiled.input_storage)
        if item.update is not None
    ]


class VariableRegistry:
    """Numbers for shared variables, each given once; see the module's docstring.

    Of the user's variables it has twins, which have the same storage: so it can tell when the user
    has let go of one.

    Attributes:
        variables: by number.
        end: the number that the next new one gets.
        left: what had variables and is gone, so that somebody may have let go of one.
    """

    def __init__(self) -> None:
        self.variables: Dict[int, Any] = {}
        self.end = 0
        self.gone: Deque[QueuedRef] = deque()
        self._watched: Dict[int, QueuedRef] = {}
        self._leaving: Dict[int, Any] = {}
        self._users: Dict[int, weakref.ref[Any]] = {}
        self._numbers: Dict[int, int] = {}

    def __getitem__(self, number: int) -> Any:
        return self.variables[number]

    def number_of(self, variable: Any) -> int:
        """The variable's number; a new one if it was not known."""
        number = self._numbers.get(id(variable.container.storage))
        if number is None:
            number = self._insert(self.end, _twin(variable))
            self._users[number] = weakref.ref(variable)
            self.watch(variable.container)
        return number

    def known_number(self, storage: Storage) -> Optional[int]:
        """The number of the variable whose value lies in `storage`, or None."""
        return self._numbers.get(id(storage))

    def name_of(self, number: int) -> Optional[str]:
        """The name of a variable, as it is now."""
        name: Optional[str] = self._user(number).name
        return name

    def label(self, number: int) -> str:
        """How messages call a variable."""
        return self.name_of(number) or f"shared variable {number}"

    def _user(self, number: int) -> Any:
        """The user's own variable, or what there is of it."""
        reference = self._users.get(number)
        variable = None if reference is None else reference()
        return self.variables[number] if variable is None else variable

    def watch(self, holder: Any) -> None:
        """Notice in `gone` when something is gone that has variables."""
        reference = QueuedRef(holder, self.gone)
        self._watched[id(reference)] = reference

    def unused(self) -> List[int]:
        """The numbers of the variables whose storage nobody else has."""
        return [
            number
            for number, variable in self.variables.items()
            if sys.getrefcount(variable.container.storage) <= _OWN
        ]

    @contextmanager
    def held(self) -> Iterator[Dict[int, Any]]:
        """All variables, by number; nobody lets go of one meanwhile."""
        variables = dict(self.variables)
        storages = [variable.container.storage for variable in variables.values()]
        yield variables
        del storages

    def let_go(self, numbers: Iterable[int]) -> None:
        """All ranks will be told to forget variables: nobody shall find them here any more."""
        for number in numbers:
            # Kept until then: their storages' identities are taken.
            self._leaving[number] = self.variables[number]
            del self.variables[number]

    def forget_gone(self, count: int) -> None:
        """Drop the first `count` entries of `gone`, which have been dealt with."""
        for _ in range(count):
            self._watched.pop(id(self.gone[0]), None)
            self.gone.popleft()

    def forget(self, number: int) -> None:
        """Nobody has a variable any more."""
        for variables in (self.variables, self._leaving):
            variable = variables.pop(number, None)
            if variable is not None:
                del self._numbers[id(variable.container.storage)]
        self._users.pop(number, None)

    def records(self, start: int) -> Tuple[VariableRecord, ...]:
        """Records of all variables from number `start` on."""
        return tuple(
            VariableRecord(
                number=number,
                cls=type(variable),
                type=variable.type,
                name=self.name_of(number),
                strict=variable.container.strict,
                allow_downcast=variable.container.allow_downcast,
                value=on_host(value_of(variable)),
                is_random=bool(getattr(self._user(number).tag, "is_rng", False)),
            )
            for number, variable in self.variables.items()
            if number >= start
        )

    def adopt(self, record: VariableRecord, value: Any) -> None:
        """Make the variable of `record` on this rank, with `value` as its own.

        A variable that is known already stays as it is: it was sent twice.
        """
        if record.number < self.end:
            return
        variable = record.cls(
            name=record.name,
            type=record.type,
            # A strict variable of a device would refuse an array of the host.
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


def _twin(variable: Any) -> Any:
    """Another variable with the same storage, which keeps nothing else of this one alive."""
    twin = variable.clone()
    twin.container = copy.copy(variable.container)
    twin.tag = scratchpad()
    for name in _KEPT_TAGS:
        if hasattr(variable.tag, name):
            setattr(twin.tag, name, getattr(variable.tag, name))
    return twin

"""The registry of Theano shared variables: variable <-> number, the same on every rank.

A shared variable's identity is the one-element list in which its value lies
(``sv.container.storage``): compiled functions hold that list, clones of the variable share it.
The registry keeps variables alive, so that an identity is never used twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Tuple

from theano.compile import SharedVariable

from ._shown import shown
from ._values import on_host
from .exceptions import NotSharedVariable

Storage = List[Any]
"""The one-element list in which a shared variable's value lies."""


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
    """Numbers for shared variables; see the module's docstring."""

    def __init__(self) -> None:
        self._variables: List[Any] = []
        self._numbers: Dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._variables)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._variables)

    def __getitem__(self, number: int) -> Any:
        return self._variables[number]

    def number_of(self, variable: Any) -> int:
        """The variable's number; a new one if it was not known."""
        number = self._numbers.get(id(variable.container.storage))
        if number is None:
            number = len(self._variables)
            self._variables.append(variable)
            self._numbers[id(variable.container.storage)] = number
        return number

    def known_number(self, storage: Storage) -> Optional[int]:
        """The number of the variable whose value lies in `storage`, or None."""
        return self._numbers.get(id(storage))

    def records(self, start: int) -> Tuple[VariableRecord, ...]:
        """Records of all variables from number `start` on."""
        return tuple(
            VariableRecord(
                number=number,
                cls=type(variable),
                type=variable.type,
                name=variable.name,
                strict=variable.container.strict,
                allow_downcast=variable.container.allow_downcast,
                value=on_host(value_of(variable)),
                is_random=bool(getattr(variable.tag, "is_rng", False)),
            )
            for number, variable in enumerate(self._variables[start:], start)
        )

    def adopt(self, record: VariableRecord, value: Any) -> None:
        """Make the variable of `record` on this rank, with `value` as its own.

        A variable that is known already stays as it is: it was sent twice.
        """
        if record.number < len(self._variables):
            return
        if record.number > len(self._variables):
            raise RuntimeError(
                f"variable number {record.number} arrived, expected {len(self._variables)}"
            )
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
        self.number_of(variable)

    def truncate(self, length: int) -> None:
        """Forget the variables from number `length` on."""
        for variable in self._variables[length:]:
            del self._numbers[id(variable.container.storage)]
        del self._variables[length:]

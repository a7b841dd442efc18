"""The state of a training step, collected from its graphs: what a checkpoint has to keep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from synk_core.engine import RandomStateType, SharedVariable, Variable, leaves_of


@dataclass(frozen=True)
class TrainingState:
    """The shared variables that a training step changes, by their relation over the ranks.

    Attributes:
        params: The trained parameters: equal on all ranks.
        optimizer: State of the update rule (velocities, counters): equal on all ranks.
        local: Variables that each rank keeps for itself: targets of ``updates=`` and
            ``default_update``, such as the running averages of batch normalisation.
        random: States of random streams, of ``MRG_RandomStreams`` or ``RandomStreams``: each rank
            has its own, unless ``fork(random_streams="identical")``.
        read: All variables that a step reads, changed or not.
        centre: Variables of a rule of :mod:`synkhronos.extensions.sync`: equal on all ranks.
        takes_local_steps: Whether there is such a rule: parameters and the state of the update
            rule then differ between ranks.
    """

    params: tuple[Any, ...] = ()
    optimizer: tuple[Any, ...] = ()
    local: tuple[Any, ...] = ()
    random: tuple[Any, ...] = ()
    read: tuple[Any, ...] = ()
    centre: tuple[Any, ...] = ()
    takes_local_steps: bool = False


def training_state(
    params: Any, param_updates: Sequence[Any], expressions: Iterable[Any], updates: Sequence[Any]
) -> TrainingState:
    """Sort the shared variables that a step changes.

    ``updates`` are the user's, of the gradient function, and may have an op; ``expressions`` are
    loss, outputs, gradients, and the values of givens.
    """
    read = _shared_leaves([*expressions, *(pair[1] for pair in (*param_updates, *updates))])
    of_rule = [target for target, *_ in param_updates]
    others = [target for target, *_ in updates]
    others += [variable for variable in read if _default_update(variable) is not None]
    random = _distinct(variable for variable in (*of_rule, *others) if is_random(variable))
    trained = _distinct([params] if isinstance(params, SharedVariable) else params)
    optimizer = _distinct(of_rule, [*trained, *random])
    local = _distinct(others, [*trained, *random, *optimizer])
    return TrainingState(trained, optimizer, local, random, read)


def is_random(variable: Any) -> bool:
    """Return whether a shared variable is the state of a random stream."""
    is_object = isinstance(variable.type, RandomStateType)
    return is_object or bool(getattr(variable.tag, "is_rng", False))


def storage_of(variable: Any) -> int:
    """Return a shared variable's identity: its clones share the list that holds its value."""
    return id(variable.container.storage)


def _default_update(variable: Any) -> Any:
    return getattr(variable, "default_update", None)


def _shared_leaves(expressions: Iterable[Any]) -> tuple[Any, ...]:
    """Return the shared variables that are read, also by default updates of others.

    Of several clones, the one with a default update represents all.
    """
    found: dict[int, Any] = {}
    waiting = [expression for expression in expressions if isinstance(expression, Variable)]
    while waiting:
        reached, waiting = leaves_of(waiting), []
        for leaf in reached:
            if not isinstance(leaf, SharedVariable):
                continue
            known, update = found.get(storage_of(leaf)), _default_update(leaf)
            if known is None or (update is not None and _default_update(known) is None):
                found[storage_of(leaf)] = leaf
                waiting += [] if update is None else [update]
    return tuple(found.values())


def _distinct(variables: Iterable[Any], taken: Iterable[Any] = ()) -> tuple[Any, ...]:
    """Return each variable once, without those that are taken."""
    others, found = {storage_of(variable) for variable in taken}, dict[int, Any]()
    for variable in variables:
        found.setdefault(storage_of(variable), variable)
    return tuple(variable for key, variable in found.items() if key not in others)

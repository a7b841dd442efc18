"""The state of a training step: the shared variables that a checkpoint has to keep.

They are collected from the graphs before compilation, the same for the parallel and the serial
step.
"""

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

    It has the pairs of the update rule, the user's ``updates`` of the gradient function, which may
    have an op, and all other ``expressions``: loss, outputs, gradients, values of givens.
    """
    read = _shared_leaves([*expressions, *(pair[1] for pair in (*param_updates, *updates))])
    of_rule = [target for target, *_ in param_updates]
    others = [target for target, *_ in updates]
    others += [variable for variable in read if _default_update(variable) is not None]
    random = _distinct(variable for variable in (*of_rule, *others) if is_random(variable))
    trained = _distinct([params] if isinstance(params, SharedVariable) else params)
    optimizer = _distinct(of_rule, [*trained, *random])
    local = _distinct(others, [*trained, *random, *optimizer])
    return TrainingState(tuple(trained), tuple(optimizer), tuple(local), tuple(random), tuple(read))


def is_random(variable: Any) -> bool:
    """Return whether a shared variable is the state of a random stream."""
    return bool(getattr(variable.tag, "is_rng", False)) or isinstance(
        variable.type, RandomStateType
    )


def storage_of(variable: Any) -> int:
    """Return a shared variable's identity: its clones share the list that holds its value."""
    return id(variable.container.storage)


def _default_update(variable: Any) -> Any:
    return getattr(variable, "default_update", None)


def _shared_leaves(expressions: Iterable[Any]) -> list[Any]:
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
            known = found.get(storage_of(leaf))
            update = _default_update(leaf)
            if known is None or (update is not None and _default_update(known) is None):
                found[storage_of(leaf)] = leaf
                waiting += [] if update is None else [update]
    return list(found.values())


def _distinct(variables: Iterable[Any], taken: Iterable[Any] = ()) -> list[Any]:
    """Return each variable once, without those that are taken."""
    seen = {storage_of(variable) for variable in taken}
    kept = []
    for variable in variables:
        if storage_of(variable) not in seen:
            seen.add(storage_of(variable))
            kept.append(variable)
    return kept

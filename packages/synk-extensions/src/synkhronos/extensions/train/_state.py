"""What a training step remembers: the shared variables that a checkpoint has to keep.

They are found in the graphs before anything is compiled, the same for the parallel and the serial
step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from theano.compile import SharedVariable
from theano.gof import Variable
from theano.gof.graph import inputs as leaves
from theano.tensor.raw_random import RandomStateType


@dataclass(frozen=True)
class TrainingState:
    """The shared variables that a training step changes, by what becomes of them over the ranks.

    Attributes:
        params: What is trained: equal in all ranks.
        optimizer: What the update rule remembers (velocities, counters): equal in all ranks.
        local: What each rank keeps for itself: targets of ``updates=`` and ``default_update``, as
            the running averages of batch normalisation.
        random: States of random streams, of ``MRG_RandomStreams`` or ``RandomStreams``: each rank
            has its own, unless ``fork(random_streams="identical")``.
    """

    params: tuple[Any, ...] = ()
    optimizer: tuple[Any, ...] = ()
    local: tuple[Any, ...] = ()
    random: tuple[Any, ...] = ()


def training_state(
    params: Any,
    param_updates: Sequence[Any],
    expressions: Iterable[Any],
    updates: Sequence[Any],
) -> TrainingState:
    """Sort the shared variables that a step changes.

    Args:
        params: A shared variable or several.
        param_updates: Pairs of the update rule.
        expressions: All else that is computed: loss, outputs, gradients, what givens bring in.
        updates: The user's own updates of the gradient function: pairs, or triples with an op.
    """
    trained = _distinct([params] if isinstance(params, SharedVariable) else list(params))
    optimizer: list[Any] = []
    local: list[Any] = []
    random: list[Any] = []
    for target, *_ in param_updates:
        (random if is_random(target) else optimizer).append(target)
    for target, *_ in updates:
        (random if is_random(target) else local).append(target)
    values = [*expressions, *(pair[1] for pair in (*param_updates, *updates))]
    for variable in _updated_by_default(values):
        (random if is_random(variable) else local).append(variable)
    taken = {storage_of(variable) for variable in trained}
    optimizer = _distinct(optimizer, taken)
    taken.update(storage_of(variable) for variable in optimizer)
    return TrainingState(
        tuple(trained), tuple(optimizer), tuple(_distinct(local, taken)), tuple(_distinct(random))
    )


def is_random(variable: Any) -> bool:
    """Whether a shared variable is the state of a random stream."""
    return bool(getattr(variable.tag, "is_rng", False)) or isinstance(
        variable.type, RandomStateType
    )


def storage_of(variable: Any) -> int:
    """A shared variable's identity: its clones share the list in which its value lies."""
    return id(variable.container.storage)


def _updated_by_default(expressions: Iterable[Any]) -> list[Any]:
    """Shared variables with a default update, also where only such an update uses them."""
    found: dict[int, Any] = {}
    waiting = [expression for expression in expressions if isinstance(expression, Variable)]
    while waiting:
        reached, waiting = leaves(waiting), []
        for leaf in reached:
            update = getattr(leaf, "default_update", None)
            if update is not None and storage_of(leaf) not in found:
                found[storage_of(leaf)] = leaf
                waiting.append(update)
    return list(found.values())


def _distinct(variables: Iterable[Any], taken: Iterable[int] = ()) -> list[Any]:
    """The variables once each, without those whose storages are taken."""
    seen = set(taken)
    kept = []
    for variable in variables:
        if storage_of(variable) not in seen:
            seen.add(storage_of(variable))
            kept.append(variable)
    return kept

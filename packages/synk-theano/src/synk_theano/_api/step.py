"""What `step()` is made of: calls and collectives that are described now and performed later."""

from __future__ import annotations

from typing import Any, Callable, FrozenSet, NamedTuple, Optional

from synk_theano._graph.facts import Event
from synk_theano._watch.stats import Tally
from synk_theano._wire.messages import Step


class Standing(NamedTuple):
    """Where an act stands among the acts of a step.

    Attributes:
        place: from 0.
        called: numbers of the functions that acts before it call.
    """

    place: int = 0
    called: FrozenSet[int] = frozenset()


ALONE = Standing()


class Prepared(NamedTuple):
    """An act that is ready to be performed.

    Attributes:
        finish: makes the caller's result of what comes back.
        tally: where its figures go.
        event: what `lint()` is told of it.
        nbytes: of inputs that the ranks read.
    """

    step: Step
    finish: Callable[[Any], Any]
    tally: Tally
    event: Event
    nbytes: int = 0


class Delayed:
    """A call or a collective for `step()`; made by ``f.delayed(...)`` and ``delayed.all_reduce``.

    Args:
        launcher: the runtime that is to perform it.
        prepare: checks and stages it, given where it stands.
        function: the number of the function that it calls, if it does.
    """

    def __init__(
        self,
        launcher: Any,
        prepare: Callable[[Standing], Prepared],
        function: Optional[int] = None,
    ) -> None:
        self.launcher = launcher
        self.prepare = prepare
        self.function = function

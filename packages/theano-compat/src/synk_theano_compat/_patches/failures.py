"""P16, P18: optimizations that fail or are interrupted."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

from .rewrite import rewrite, wrap


def released_observers() -> str:
    """P16: remove an observer of a rewriting's new variables also after an error.

    Errors are usual there: Theano tries operations in place. The list of an observer that stays
    holds all later graphs, with their shared variables' values.
    """
    from theano.gof import graph

    @wrap(graph, "nodes_constructed")
    @contextmanager
    def nodes_constructed(plain: Any) -> Iterator[Any]:
        observers = graph.Variable.construction_observers
        before = len(observers)
        try:
            with plain() as new_nodes:
                yield new_nodes
        finally:
            del observers[before:]

    return "theano.gof.graph.nodes_constructed"


def kept_interrupts() -> str:
    """P18: set the times that a `finally` reads before its `try`, in place of a comment's line.

    Theano sets them inside the `try`: Ctrl-C before that became an UnboundLocalError.
    """
    from theano.compile.function_module import FunctionMaker

    rewrite(
        FunctionMaker.__init__,
        "# Why we add stack on node when it get done in output var?\n",
        "start_optimizer, optimizer_profile, opt_time = time.time(), None, None\n",
    )
    return "theano.compile.function_module.FunctionMaker"

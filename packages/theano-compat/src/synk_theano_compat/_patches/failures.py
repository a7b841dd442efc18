"""P16, P18: optimizations that fail or are interrupted.

P16: While Theano rewrites a part of a graph, an observer collects the new variables. It is not
taken away after an error, and errors are usual there: operations are tried in place, and most
graphs have one that cannot be. From then on the list holds all later graphs, with their shared
variables' values.

P18: A `finally` reads times that are first set inside its `try`, behind changes of Theano's
configuration. Ctrl-C there became an UnboundLocalError.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

from .rewrite import rewrite


def released_observers() -> str:
    """P16: take an observer of new variables away after an error, too."""
    from theano.gof import graph

    plain = graph.nodes_constructed

    @contextmanager
    def nodes_constructed() -> Iterator[Any]:
        observers = graph.Variable.construction_observers
        before = len(observers)
        try:
            with plain() as new_nodes:
                yield new_nodes
        finally:
            del observers[before:]

    graph.nodes_constructed = nodes_constructed
    return "theano.gof.graph.nodes_constructed"


def kept_interrupts() -> str:
    """P18: set the times before `try`, in place of a comment, so that lines keep their numbers."""
    from theano.compile.function_module import FunctionMaker

    rewrite(
        FunctionMaker.__init__,
        "# Why we add stack on node when it get done in output var?\n",
        "start_optimizer, optimizer_profile, opt_time = time.time(), None, None\n",
        1,
    )
    return "theano.compile.function_module.FunctionMaker"

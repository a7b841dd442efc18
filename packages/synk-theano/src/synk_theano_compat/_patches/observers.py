"""P16: after an optimization that failed, Theano goes on listing every variable that is made.

While it rewrites a part of a graph, an observer collects the new variables. It is not taken away
after an error, and errors are usual there: operations are tried in place, and most graphs have one
that cannot be. From then on the list holds all later graphs, with their shared variables' values.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator


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

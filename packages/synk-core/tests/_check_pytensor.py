"""Templates of random graphs of what only PyTensor has, or has in another form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as T
from pytensor.compile.builders import OpFromGraph
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.random.type import random_generator_type


def of_graph(build: Any, *variables: Any) -> Any:
    """The result of an operation that is made of a graph."""
    inner = [variable.type() for variable in variables]
    return OpFromGraph(inner, [build(*inner)])(*variables)


def twice(build: Any, first: Any, second: Any) -> Any:
    """The results of one such operation of two variables of a type."""
    inner = first.type()
    op = OpFromGraph([inner], [build(inner)])
    return op(first), op(second)


def drawn(name: str, *parameters: Any, **settings: Any) -> Any:
    """Draws that can have one value only, so that they do not depend on the generator's state."""
    rng = random_generator_type.make_constant(np.random.default_rng(1))
    return getattr(T.random, name)(*parameters, **settings, rng=rng)


checked = CheckAndRaise(ValueError, "refused")

WORDS = {
    "drawn": drawn,
    "of_graph": of_graph,
    "twice": twice,
}
MORE_UNARY = ["T.log1mexp", "T.erfcx", "T.gamma"]
_AXIS = ["0", "1", "-1", "None", "(0, 1)"]
_PLACES = ["lab", "{L}", "[0, 2]", "[1, 0]", "T.arange(x.shape[0])", ":", ":", "1:", "k:", "1",
           "lab % 2", "[[0], [1]]", "lab[:, None]", "k"]  # fmt: skip


def _indexed(pick: Any) -> str:
    places = ", ".join(pick(_PLACES) for _ in range(pick([1, 2, 2, 3])))
    return f"{pick(['{P}', '{M}', '{C}', 't', 'x', 'w', 'w'])}[{places}]"


PRODUCTS = ["{M} @ {M}", "{M} @ w", "w @ {M}.T", "{V} @ {M}", "{M} @ c", "{C} @ w",
            "w[:2, :] @ {C}.dimshuffle(0, 2, 1)", "{C} @ {C}.dimshuffle(0, 2, 1)",
            "{C}.dimshuffle(1, 0, 2) @ w", "{C}.dimshuffle(1, 0, 2) @ {M}.T",
            "{C}.dimshuffle(1, 2, 0) @ {M}", "T.matmul({A}, {A})", "{C} @ {M}.T", "{C}.T @ {M}",
            "{C}.dimshuffle(1, 2, 0) @ {C}.dimshuffle(1, 0, 2)", "T.vecdot({M}, {M})",
            "T.matvec({C}, {M})", "T.matvec(w, {M})",
            "T.vecmat({M}, {C}.dimshuffle(0, 2, 1))"]  # fmt: skip
GRAPHS = ["of_graph(lambda z: z - z.max(axis=0), {P})", "of_graph(lambda z: z.sum(axis=0), {P})",
          "of_graph(lambda z: z - z.max(axis=1, keepdims=True), {P})",
          "of_graph(lambda z, r: z * r + z.mean(), {A}, {A})",
          "of_graph(lambda z, r: T.exp(z) * r, {A}, {A})",
          "of_graph(lambda z, r: z.dot(r), {M}, w)",
          "of_graph(lambda z: z.reshape((z.shape[0], -1)), {P})",
          "of_graph(lambda z: T.ones_like(z) * z.shape[0], {P})",
          "T.add(*twice(lambda z: z.sum(axis=0), {M}, {M}))",
          "T.mul(*twice(lambda z: z / z.shape[0], {M}, {M}))"]  # fmt: skip
JOINED = ["T.join_dims({P})", "T.join_dims({P}, 1)", "T.join_dims({C}.dimshuffle(1, 0, 2), 0, 2)",
          "T.split_dims({P}, (x.shape[0], 1), axis=0)", "T.split_dims({P}, (-1, 1), axis=1)",
          "T.split_dims(T.join_dims({C}, 0, 2), (x.shape[0], 2), axis=0)"]  # fmt: skip
DRAWS = ["drawn('normal', {A}, 0)", "drawn('normal', {S}, 0, size=(x.shape[0],))",
         "drawn('normal', c, 0, size=(x.shape[0], 3))", "drawn('normal', c, 0, size=(2, 3))",
         "drawn('normal', {V}, 0, size=(2, x.shape[0]))"]  # fmt: skip

MORE = [
    (12, lambda pick: pick(PRODUCTS)),
    (8, lambda pick: f"{pick(['softmax', 'log_softmax', 'T.logsumexp'])}"
                     f"({{R}}, axis={pick(_AXIS)})"),
    (4, lambda pick: pick(GRAPHS)),
    (8, lambda pick: pick(JOINED)),
    (14, _indexed),
    (6, lambda pick: f"T.{pick(['set', 'inc'])}_subtensor({_indexed(pick)}, "
                     f"{pick(['NUM', '{A}', '{S}', '{V}', '1.0'])})"),
    (10, lambda pick: pick(DRAWS)),
]  # fmt: skip
DRAWN = [
    *("AdvancedIncSubtensor", "AdvancedSubtensor", "Blockwise Dot", "CumOp", "IncSubtensor"),
    *("Join", "JoinDims", "NormalRV", "OpFromGraph", "Scan", "Softmax", "SortOp", "SplitDims"),
]
"""Operations by which some of 200 graphs have results that are exact."""

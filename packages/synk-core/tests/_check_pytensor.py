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
    "checked": checked,
    "drawn": drawn,
    "eye": np.eye(3),
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
EINSTEIN = ["T.einsum('ij,jk->ik', {M}, w)", "T.einsum('ij,ij->j', {M}, {M})",
            "T.einsum('ij,ij->i', {M}, {M})", "T.einsum('ij,kj->ik', {M}, {M})",
            "T.einsum('ijk,kl->ijl', {C}, w)", "T.einsum('ijk->ik', {C})", "T.pad({P}, 1)",
            "T.pad({M}, ((0, 0), (1, 1)))", "T.diag({V})", "T.linalg.kron({M}, w)"]  # fmt: skip
SOLUTIONS = ["T.linalg.solve(w + 3 * eye, {M}.T)", "T.linalg.solve(w + 3 * eye, {M}.T).T",
             "T.linalg.solve(w + 3 * eye, {M}, b_ndim=1)", "T.linalg.inv(w + 3 * eye)",
             "T.linalg.solve_triangular(w + 3 * eye, {M}.T, lower=True)",
             "T.linalg.solve_triangular(w + 3 * eye, {M}, b_ndim=1)",
             "T.linalg.solve({C}[:, 0][:, None] + eye, {M}, b_ndim=1)",
             "T.linalg.solve(w + 3 * eye, {V}[:3])", "T.linalg.solve(w + 3 * eye, {M}.sum(axis=0))",
             "T.linalg.inv({C}[:, 0][:, None] + eye)", "T.linalg.det({C}[:, 0][:, None] + eye)",
             "T.linalg.cholesky(x.T @ x + eye)"]  # fmt: skip
SHAPES = ["(x.shape[0], -1), axis=0", "(-1, x.shape[0]), axis=0", "(x.shape[0], 1), axis=0",
          "(1, x.shape[0]), axis=0", "(x.shape[0], 2), axis=0", "(3, 1), axis=1",
          "(x.shape[0], 1), axis=1", "(-1, 1), axis=1", "(1, -1), axis=-1", "(2, 3), axis=-1",
          "(2, x.shape[0]), axis=0", "(x.shape[0], 2, 3), axis=0", "(-1, 2), axis=0"]  # fmt: skip
JOINED = ["T.split_dims(T.join_dims({C}, 0, 2), (x.shape[0], 2), axis=0)",
          "T.split_dims(T.join_dims({C}.dimshuffle(1, 0, 2), 0, 2), (2, x.shape[0]), axis=0)",
          "T.split_dims(T.join_dims({C}.dimshuffle(1, 0, 2), 0, 2), (t.shape[1], -1), axis=0)",
          "T.split_dims(T.join_dims({C}, 1), (2, 3), axis=1)",
          "T.join_dims({C}.dimshuffle(1, 0, 2))", "T.join_dims({C}.dimshuffle(1, 0, 2), 0, 2)",
          "T.join_dims({C}.dimshuffle(1, 0, 2), 1)"]  # fmt: skip
CHOSEN = ["T.take_along_axis({M}, lab[:, None], axis=1)", "w[lab]", "w[:, lab]", "w[lab, lab]",
          "w[lab, :]", "c[lab]", "c[lab] * {V}", "{M}[T.arange(x.shape[0]), lab]",
          "{C}[:, :, lab % 2]", "{C}[T.arange(x.shape[0]), :, lab]",
          "{C}[T.arange(x.shape[0]), lab % 2]", "{C}[:, [1, 0], [2, 0]]", "{C}[[1, 0], :, [2, 0]]",
          "{C}.dimshuffle(1, 2, 0)[[1, 0], [2, 0]]", "T.take({M}, [0, 2], axis=1)",
          "{M}[:, [[0, 1], [2, 0]]]"]  # fmt: skip
DRAWS = ["drawn('normal', {A}, 0)", "drawn('normal', {M}, T.zeros(3))",
         "drawn('normal', {S}, 0, size=x.shape)", "drawn('normal', {S}, 0, size=(x.shape[0],))",
         "drawn('normal', {S}, 0, size=(2, x.shape[0]))",
         "drawn('normal', c, 0, size=(x.shape[0], 3))", "drawn('normal', c, 0, size=(2, 3))",
         "drawn('normal', {V}, 0, size=(2, x.shape[0]))",
         "drawn('normal', {V}, 0, size=(x.shape[0], x.shape[0]))",
         "drawn('uniform', a, a, size=(x.shape[0], 3))", "drawn('bernoulli', {B})",
         "drawn('integers', lab, lab + 1)",
         "drawn('multivariate_normal', {M}, T.zeros((3, 3)), method='svd')",
         "drawn('multivariate_normal', {M}.T, T.zeros_like({M} @ {M}.T), method='svd')",
         "drawn('multivariate_normal', c, T.zeros((3, 3)), size=(x.shape[0],), method='svd')",
         "drawn('categorical', T.eq({M} * 0 + T.arange(3), lab[:, None]))",
         "drawn('multinomial', lab, T.eq(T.arange(3), lab[:, None]))"]  # fmt: skip
PASSED = ["T.specify_shape({M}, (None, 3))", "T.specify_shape({M}, (x.shape[0], 3))",
          "T.specify_broadcastable({P}[:1], 0)", "checked({A}, T.gt(a, -9))",
          "checked({A}, T.all(T.gt({F}, -99)))", "checked({A}, T.any({B}))",
          "checked({F}, T.gt({S}, -5))"]  # fmt: skip
_OVER = "sequences=t.dimshuffle(1, 0, 2), outputs_info=[T.zeros"
SCANS = ["scan(lambda z: (z, z + {S}), outputs_info=[None, NUM], n_steps=3)[0][0]",
         f"scan(lambda e, z, r: z + e @ r, {_OVER}_like(x)], non_sequences=[w])[0]",
         f"scan(lambda e, z, r: z + (e @ r).sum(axis=0), {_OVER}(3)], non_sequences=[w])[0][-1]",
         "scan(lambda e, r: e * r, sequences={M}.T, non_sequences=[{V}])[0]",
         "scan(lambda e, d: e - d, sequences=[{M}.T, {M}.T])[0].T",
         (f"T.grad(scan(lambda e, z, r: z + e @ r, {_OVER}_like(x)], non_sequences=[w])[0][-1]"
         ".sum(), w)")]  # fmt: skip

MORE = [
    (12, lambda pick: pick(PRODUCTS)),
    (3, lambda pick: pick(SOLUTIONS)),
    (8, lambda pick: f"{pick(['softmax', 'log_softmax', 'T.logsumexp'])}"
                     f"({{R}}, axis={pick(_AXIS)})"),
    (2, lambda pick: f"T.{pick(['logaddexp', 'special.xlogy'])}({{A}}, {{A}})"),
    (4, lambda pick: pick(GRAPHS)),
    (4, lambda pick: pick(EINSTEIN)),
    (8, lambda pick: f"T.join_dims({{P}}, {pick(['0', '0', '1', '1', '-1'])}"
                     f"{pick(['', ', 2', ', 1', ', 0'])})"),
    (6, lambda pick: f"T.split_dims({{P}}, {pick(SHAPES)})"),
    (3, lambda pick: pick(JOINED)),
    (14, _indexed),
    (6, lambda pick: f"T.{pick(['set', 'inc'])}_subtensor({_indexed(pick)}, "
                     f"{pick(['NUM', '{A}', '{S}', '{V}', '1.0'])})"),
    (4, lambda pick: pick(CHOSEN)),
    (10, lambda pick: pick(DRAWS)),
    (4, lambda pick: pick(PASSED)),
    (2, lambda pick: f"T.{pick(['max({R}, initial=-', 'min({R}, initial='])}np.inf, "
                     f"axis={pick(_AXIS)})"),
    (3, lambda pick: pick(SCANS)),
    (6, lambda pick: f"T.grad({pick(['(({R}) ** 2).sum()', '({R} * {R}).mean()', '{S}'])}, "
                     f"{pick(['x', 'w', 'w', 'c', 't', 'v'])}, disconnected_inputs='ignore')"),
]  # fmt: skip

DRAWN = [
    *("AdvancedIncSubtensor", "AdvancedSubtensor", "Blockwise Dot", "Blockwise Solve", "CumOp"),
    *("CheckAndRaise", "IncSubtensor", "Join", "JoinDims", "NormalRV", "OpFromGraph", "Scan"),
    *("Softmax", "SortOp", "SpecifyShape", "SplitDims"),
]
"""Operations by which some of 200 graphs have results that are exact."""

"""What `check` says of PyMC's likelihoods, and the proof by numbers: no ranks are needed."""

from __future__ import annotations

import numpy as np
import pytest

pm = pytest.importorskip("pymc", reason="needs PyMC 6, on Python 3.12 or newer")

import pytensor  # noqa: E402 - it comes with PyMC
import pytensor.tensor as pt  # noqa: E402
from pytensor.graph.replace import clone_replace  # noqa: E402

from synk_core import check_outputs  # noqa: E402

N = 23
PARTS = [slice(0, 7), slice(7, 8), slice(8, N)]
rng = np.random.default_rng(0)
X, Y, GROUPS = rng.normal(size=(N, 3)), rng.normal(size=N), np.arange(N) % 5
COUNTS = np.abs(3 * Y).astype(int)


def coefficients(*shape):
    return pm.Normal("b", shape=shape or 3)


# Each takes a function that makes rows of values.
MODELS = {
    "normal": lambda rows: pm.Normal(
        "obs", rows(X) @ coefficients(), pm.HalfNormal("s"), observed=rows(Y)
    ),
    "groups": lambda rows: pm.Poisson(
        "obs", pt.exp(pm.Normal("z", pm.Normal("mu"), 1, shape=5)[rows(GROUPS)]),
        observed=rows(COUNTS),
    ),
    "categories": lambda rows: pm.Categorical(
        "obs", p=pm.math.softmax(rows(X) @ coefficients(3, 3), axis=-1), observed=rows(GROUPS % 3)
    ),
    "mixture": lambda rows: pm.NormalMixture(
        "obs", pm.Dirichlet("w", np.ones(2)), coefficients(2), sigma=1, observed=rows(Y)
    ),
    "multivariate": lambda rows: pm.MvNormal(
        "obs", coefficients(), observed=rows(X),
        chol=pm.LKJCholeskyCov("l", n=3, eta=2, sd_dist=pm.HalfNormal.dist())[0],
    ),
    "censored": lambda rows: pm.Censored(
        "obs", pm.Normal.dist(pm.Normal("m"), 1), -1, 1, observed=rows(Y.clip(-1, 1))
    ),
}  # fmt: skip


def likelihood(build):
    """The sum over the rows, its inputs of rows and their values, the other ones and theirs."""
    data = []

    def rows(values):
        data.append(pm.Data(f"d{len(data)}", values))
        return data[-1]

    with pm.Model() as model:
        build(rows)
    inputs = [pt.TensorType(d.dtype, (None, *d.type.shape[1:]))(d.name) for d in data]
    term = model.logp(vars=[model["obs"]], sum=False)[0].sum()
    term = clone_replace(term, replace=dict(zip(data, inputs)), rebuild_strict=False)
    point = model.initial_point(0)
    free = [point[v.name] + 0.1 for v in model.value_vars]
    return term, inputs, [d.get_value() for d in data], model.value_vars, free


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODELS)
def test_sums_over_rows_are_known_as_such(name):
    term, inputs, rows, free, point = likelihood(MODELS[name])
    outputs = [term, *pytensor.grad(term, free, disconnected_inputs="ignore")]
    for verdict in check_outputs(inputs, [(z, "sum") for z in outputs], bcast_inputs=free):
        assert verdict.verdict == "exact", verdict.reason
    f = pytensor.function([*inputs, *free], term, mode="FAST_COMPILE", on_unused_input="ignore")
    parts = [f(*(values[part] for values in rows), *point) for part in PARTS]
    np.testing.assert_allclose(sum(parts), f(*rows, *point), rtol=1e-12)
    assert np.isfinite(parts).all()

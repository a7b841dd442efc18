"""Log probability, gradient, draws and MAP over ranks against PyMC's own."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

pm = pytest.importorskip("pymc", reason="needs PyMC 6, on Python 3.12 or newer")

import pytensor.tensor as pt  # noqa: E402 - it comes with PyMC

import synkhronos as synk  # noqa: E402
from synk_testing import children  # noqa: E402
from synkhronos.exceptions import (  # noqa: E402
    Closed,
    InputTypeError,
    InputValueError,
    NotForked,
    PerformanceWarning,
)
from synkhronos.extensions.pymc import find_MAP, logp_dlogp, nuts  # noqa: E402

N = 501
TOLERANCE = 1e-12
rng = np.random.default_rng(0)
X_VALUES = rng.normal(size=(N, 3))
Y_VALUES = X_VALUES @ np.array([1.0, -2.0, 0.5]) + 0.3 + rng.normal(size=N)
GROUPS = np.arange(N) % 5
SHORT = {
    "draws": 30,
    "tune": 30,
    "chains": 1,
    "cores": 1,
    "random_seed": 3,
    "progressbar": False,
    "compute_convergence_checks": False,
}


nightly = pytest.mark.nightly


@pytest.fixture(scope="module", autouse=True, params=[2, pytest.param(1, marks=nightly)])
def ranks(request):
    before = children()
    synk.fork(request.param, use_gpu=False, verbose=False)
    yield request.param
    synk.close()
    assert children() <= before


def linear(n=N):
    with pm.Model() as model:
        x = pm.Data("x", X_VALUES[:n], dims=("row", "column"))
        y = pm.Data("y", Y_VALUES[:n], dims="row")
        a, b, s = pm.Normal("a", 0, 5), pm.Normal("b", 0, 1, shape=3), pm.HalfNormal("s", 1)
        pm.Normal("obs", a + x @ b, s, observed=y)
    return model, [x, y]


def grouped():
    """A hierarchy of which only the indexes are rows, and an observed variable without rows."""
    with pm.Model() as model:
        group, y = pm.Data("group", GROUPS), pm.Data("y", np.abs(Y_VALUES).astype(int))
        mu, t = pm.Normal("mu"), pm.HalfNormal("t")
        z = pm.Normal("z", mu, t, shape=5)
        pm.Poisson("obs", pt.exp(z[group]), observed=y)
        pm.Normal("other", mu, 1, observed=np.arange(7.0))
    return model, [group, y]


def same_as_pymc(model, f):
    own = model.logp_dlogp_function(ravel_inputs=True)
    size = sum(np.size(value) for value in model.initial_point(0).values())
    q = np.linspace(0.4, -0.4, size)
    (logp, dlogp), (expected, gradient) = f(q), own._pytensor_function(q)
    np.testing.assert_allclose(logp, expected, rtol=TOLERANCE)
    largest = abs(gradient).max()
    np.testing.assert_allclose(dlogp, gradient, rtol=TOLERANCE, atol=TOLERANCE * largest)
    return q, logp


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(grouped, marks=nightly),
        pytest.param(lambda: linear(1), marks=nightly, id="one row"),
    ],
)
def test_it_is_the_log_probability_of_the_model(make):
    model, rows = make()
    same_as_pymc(model, logp_dlogp(model, rows))


def test_rows_by_the_name_of_a_coordinate_are_read_once():
    model, rows = linear()
    with model:
        pm.Data("later", np.zeros(N), dims="row")  # nothing uses it
    f = logp_dlogp(model, "row")
    q, logp = same_as_pymc(model, f)
    assert [item.shape for item in f.data] == [(N, 3), (N,)]
    point = model.initial_point(0)
    raveled = pm.blocking.DictToArrayBijection.map(point)
    np.testing.assert_allclose(f(raveled)[0], model.compile_logp()(point), rtol=TOLERANCE)
    rows[1].set_value(Y_VALUES * 2)
    assert f(q)[0] == logp


@nightly
def test_parameters_out_of_range_are_infinitely_improbable():
    with pm.Model() as model:
        y = pm.Data("y", Y_VALUES)
        pm.Normal("obs", 0, pm.Normal("s", 3), observed=y)  # a scale that may be negative
    f = logp_dlogp(model, [y])
    same_as_pymc(model, f)
    assert f([-1.0])[0] == -np.inf


def test_draws_are_those_of_pymc():
    model, rows = linear()
    with model:
        own = pm.sample(step=pm.NUTS(), **SHORT)
        ours = pm.sample(step=nuts(model, rows, target_accept=0.8), **SHORT)
    for name in ("a", "b", "s"):
        drawn, expected = ours.posterior[name].values, own.posterior[name].values
        assert np.ptp(expected) > 0
        np.testing.assert_allclose(drawn, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:.find_MAP. will return:FutureWarning")
@pytest.mark.parametrize("method", ["L-BFGS-B", pytest.param("CG", marks=nightly)])
def test_the_maximum_is_pymcs(method):
    model, rows = linear()
    with model:
        pm.Deterministic("double", 2 * model["b"])
    options = {"method": method, "progressbar": False}
    expected = pm.find_MAP(model=model, jitter=False, return_inferencedata=False, **options)
    found = find_MAP(model, rows, **options)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6)


@nightly
def test_the_maximum_from_given_values_and_in_few_steps():
    model, rows = linear()
    with pytest.warns(UserWarning, match="did not converge"):
        far = find_MAP(model, rows, initvals={"a": 4.0}, maxiter=1, include_transformed=False)
    assert far.keys() == {"a", "b", "s"}
    assert abs(far["a"] - find_MAP(model, rows)["a"]) > 0.1


@nightly
def test_a_start_without_density_is_refused():
    model, rows = linear()
    with pytest.raises(pm.SamplingError, match="s_log__"):
        find_MAP(model, rows, initvals={"s": -1.0})


@nightly
@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_chains_in_processes_are_refused(start):
    model, rows = linear()
    step = nuts(model, rows)
    with model, pytest.raises(Exception, match=r"pm\.sample\(cores=1\)"):
        pm.sample(step=step, **{**SHORT, "chains": 2, "cores": 2}, mp_ctx=start)
    same_as_pymc(model, step._logp_dlogp_func)


@nightly
def test_a_large_likelihood_that_is_not_divided_is_a_warning():
    model, _ = linear()
    with model:
        other = pm.Data("other", np.zeros(4))
        pm.Normal("o", pm.Normal("c"), 1, observed=other)
    with pytest.warns(PerformanceWarning, match=r"\['obs'\], of at least as many values as the 4"):
        logp_dlogp(model, [other])


def of(build, **values):
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.exceptions.ImputationWarning)
        data = [pm.Data(name, value) for name, value in values.items()]
        build(*data)
    return model, data


def besides(build, rows=None):
    model, usual = linear()
    with model:
        added = build()
    return model, usual if rows is None else rows(usual, added)


def normal(mean, observed, **how):
    return pm.Normal("obs", mean, 1, observed=observed, **how)


WITH_GAPS = np.where(GROUPS, Y_VALUES, np.nan)
REFUSED = {
    "missing": (
        lambda: of(lambda x: normal(x @ pm.Normal("b", shape=3), WITH_GAPS), x=X_VALUES),
        r"'obs' has missing observations.*'obs_unobserved'.*keep = ~np\.isnan",
    ),
    "scaled": (
        lambda: of(lambda y: normal(pm.Normal("a"), y, total_size=2 * N), y=Y_VALUES),
        "'obs' has a total_size=.*leave total_size= out",
    ),
    "minibatch": (
        lambda: of(lambda y: normal(pm.Normal("a"), pm.Minibatch(y, batch_size=9)), y=Y_VALUES),
        r"draws a pm\.Minibatch in each call.*pm\.Data.*in its place",
    ),
    "constant": (
        lambda: of(lambda x: normal(x @ pm.Normal("b", shape=3), Y_VALUES), x=X_VALUES),
        r"constant 'obs.*' has 501 entries: make it pm\.Data",
    ),
    "not listed": (
        lambda: besides(lambda: None, lambda usual, _: usual[:1]),
        r"pm\.Data 'y' has 501 rows and is not listed",
    ),
    "latent": (
        lambda: of(lambda y: normal(pm.Normal("z", 0, 1, shape=N), y), y=Y_VALUES),
        r"free variable 'z' has 501 entries, one for each row",
    ),
    "centred": (
        lambda: of(
            lambda x, y: normal((x - x.mean(0)) @ pm.Normal("b", shape=3), y),
            x=X_VALUES,
            y=Y_VALUES,
        ),
        r"\['obs'\] is no sum over rows.*test_pymc\.py.* combines each row.*X\.mean\(0\)",
    ),
    "lengths": (
        lambda: besides(
            lambda: pm.Data("short", np.zeros(N - 1)), lambda usual, added: [usual[0], added]
        ),
        r"one length.*'x': 501, 'short': 500",
    ),
    "without use": (
        lambda: besides(lambda: pm.Data("idle", np.zeros(N)), lambda _, added: [added]),
        r"no observed variable of \['obs'\] uses the rows \['idle'\]",
    ),
    "nothing free": (lambda: of(lambda y: normal(0, y), y=Y_VALUES), "no free variables"),
    "a point": (
        lambda: of(lambda y: normal(pm.Normal("a"), y), y=3.0),
        r"\['y'\] are scalars",
    ),
    "discrete": (lambda: besides(lambda: pm.Bernoulli("coin", 0.5)), r"\['coin'\] are discrete"),
    "empty": (lambda: linear(0), r"no rows.*'x': 0"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[nightly] * (name != "centred")) for name in REFUSED]
)
def test_models_that_do_not_divide_are_refused(name):
    make, message = REFUSED[name]
    model, rows = make()
    before = set(synk.stats())
    with pytest.raises(InputValueError, match=f"(?s){message}"):
        logp_dlogp(model, rows)
    assert set(synk.stats()) - before <= {"distribute()"}, "what was tried counts nowhere"


@nightly
def test_other_arguments_are_refused():
    model, rows = linear()
    with pytest.raises(InputValueError, match=r"'place' as its first.*'x': 'row'.*dims='place'"):
        logp_dlogp(model, "place")
    with pytest.raises(InputTypeError, match=r"expected pm\.Data of the model.*\['x', 'y'\]"):
        logp_dlogp(model, [rows[0], model["b"]])
    with pytest.raises(InputTypeError, match=r"got x, expected a list of pm\.Data"):
        logp_dlogp(model, rows[0])
    with pytest.raises(InputValueError, match="got none"):
        logp_dlogp(model, [])
    with pytest.raises(InputValueError, match=r"'trust-ncg' needs the Hessian.*'BFGS'"):
        find_MAP(model, rows, method="trust-ncg")
    with pytest.raises(InputTypeError, match="'vars'"):
        nuts(model, rows, vars=[model["b"]])


@nightly
def test_potentials_are_of_rows_or_of_the_model():
    def with_potential(of_rows):
        model, rows = linear()
        with model:
            term = rows[0] @ model["b"] if of_rows else model["b"]
            pm.Potential("extra", -pt.abs(term))
        return model, rows

    for of_rows in (True, False):
        model, rows = with_potential(of_rows)
        with pytest.raises(InputValueError, match=r'\[\'extra\'\]: pass potentials="rows"'):
            logp_dlogp(model, rows)
        with pytest.raises(InputValueError, match="got potentials='both'"):
            logp_dlogp(model, rows, potentials="both")
        # Of the whole model may be whatever the master computes.
        same_as_pymc(model, logp_dlogp(model, rows, potentials="once"))
        if of_rows:
            same_as_pymc(model, logp_dlogp(model, rows, potentials="rows"))
            continue
        with pytest.raises(InputValueError, match=r"\['extra'\] is no sum over rows.*\"once\""):
            logp_dlogp(model, rows, potentials="rows")


@nightly
def test_it_needs_ranks(ranks):
    model, rows = linear()
    synk.close()
    try:
        with pytest.raises((NotForked, Closed), match=r"call fork\(\)"):
            logp_dlogp(model, rows)
    finally:
        synk.fork(ranks, use_gpu=False, verbose=False)

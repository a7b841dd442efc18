"""PyMC's likelihoods over ranks: of right models without alarm, and others are refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

pm = pytest.importorskip("pymc", reason="needs PyMC 6, on Python 3.12 or newer")

import pytensor.tensor as pt  # noqa: E402 - it comes with PyMC

from synkhronos.exceptions import InputValueError, NotExact  # noqa: E402
from synkhronos.extensions.pymc import logp_dlogp  # noqa: E402

ROWS = 40
RNG = np.random.default_rng(3)
X = RNG.normal(size=(ROWS, 2))
Y = X @ [1.0, -0.5] + RNG.normal(size=ROWS)
COUNTS, SHARES, GROUPS = RNG.poisson(3, ROWS), RNG.uniform(0.05, 0.95, ROWS), np.arange(ROWS) % 4


# Of a linear predictor, a positive parameter and the observed values.
LIKELIHOODS = {
    "Normal": (Y, lambda eta, s, y: pm.Normal("o", eta, s, observed=y)),
    "StudentT": (Y, lambda eta, s, y: pm.StudentT("o", 4, mu=eta, sigma=s, observed=y)),
    "Laplace": (Y, lambda eta, s, y: pm.Laplace("o", eta, s, observed=y)),
    "Cauchy": (Y, lambda eta, s, y: pm.Cauchy("o", eta, s, observed=y)),
    "Logistic": (Y, lambda eta, s, y: pm.Logistic("o", eta, s, observed=y)),
    "Gumbel": (Y, lambda eta, s, y: pm.Gumbel("o", eta, s, observed=y)),
    "Moyal": (Y, lambda eta, s, y: pm.Moyal("o", eta, s, observed=y)),
    "SkewNormal": (Y, lambda eta, s, y: pm.SkewNormal("o", mu=eta, sigma=s, alpha=1, observed=y)),
    "ExGaussian": (Y, lambda eta, s, y: pm.ExGaussian("o", mu=eta, sigma=1, nu=s, observed=y)),
    "AsymmetricLaplace": (
        Y,
        lambda e, s, y: pm.AsymmetricLaplace("o", kappa=1, mu=e, b=s, observed=y),
    ),
    "Mixture": (
        Y,
        lambda eta, s, y: pm.NormalMixture(
            "o", [0.3, 0.7], pt.stack([eta, -eta], axis=1), sigma=s, observed=y
        ),
    ),
    "heteroscedastic": (Y, lambda e, s, y: pm.Normal("o", e, pt.exp(0.1 * e) + s, observed=y)),
    "Censored": (
        np.minimum(Y, 1),
        lambda e, s, y: pm.Censored("o", pm.Normal.dist(e, s), None, 1, observed=y),
    ),
    "Truncated": (
        abs(Y),
        lambda e, s, y: pm.Truncated("o", pm.Normal.dist(e, s), 0, None, observed=y),
    ),
    "HalfNormal": (abs(Y), lambda eta, s, y: pm.HalfNormal("o", pt.exp(eta), observed=y)),
    "HalfCauchy": (abs(Y), lambda eta, s, y: pm.HalfCauchy("o", pt.exp(eta), observed=y)),
    "Exponential": (abs(Y), lambda eta, s, y: pm.Exponential("o", pt.exp(eta), observed=y)),
    "Gamma": (abs(Y), lambda eta, s, y: pm.Gamma("o", s, pt.exp(eta), observed=y)),
    "InverseGamma": (abs(Y), lambda e, s, y: pm.InverseGamma("o", s, pt.exp(e), observed=y)),
    "Weibull": (abs(Y), lambda eta, s, y: pm.Weibull("o", s, pt.exp(eta), observed=y)),
    "LogNormal": (abs(Y), lambda eta, s, y: pm.LogNormal("o", eta, s, observed=y)),
    "Wald": (abs(Y), lambda eta, s, y: pm.Wald("o", pt.exp(eta), s, observed=y)),
    "Beta": (SHARES, lambda e, s, y: pm.Beta("o", s + pt.exp(e), s, observed=y)),
    "Kumaraswamy": (SHARES, lambda e, s, y: pm.Kumaraswamy("o", pt.exp(e), s, observed=y)),
    "LogitNormal": (SHARES, lambda e, s, y: pm.LogitNormal("o", e, s, observed=y)),
    "Triangular": (
        SHARES,
        lambda e, s, y: pm.Triangular("o", lower=0, upper=1, c=pm.math.sigmoid(e), observed=y),
    ),
    "VonMises": (np.clip(Y, -3, 3), lambda e, s, y: pm.VonMises("o", e, s, observed=y)),
    "Poisson": (COUNTS, lambda eta, s, y: pm.Poisson("o", pt.exp(eta), observed=y)),
    "NegativeBinomial": (
        COUNTS,
        lambda eta, s, y: pm.NegativeBinomial("o", pt.exp(eta), s, observed=y),
    ),
    "ZeroInflatedPoisson": (
        COUNTS,
        lambda eta, s, y: pm.ZeroInflatedPoisson("o", 0.8, pt.exp(eta), observed=y),
    ),
    "HurdlePoisson": (COUNTS, lambda e, s, y: pm.HurdlePoisson("o", 0.8, pt.exp(e), observed=y)),
    "Geometric": (COUNTS + 1, lambda e, s, y: pm.Geometric("o", pm.math.sigmoid(e), observed=y)),
    "Bernoulli": (COUNTS > 2, lambda eta, s, y: pm.Bernoulli("o", logit_p=eta, observed=y)),
    "Binomial": (COUNTS, lambda eta, s, y: pm.Binomial("o", 20, logit_p=eta, observed=y)),
    "BetaBinomial": (COUNTS, lambda e, s, y: pm.BetaBinomial("o", pt.exp(e), s, 20, observed=y)),
    "Categorical": (
        GROUPS,
        lambda eta, s, y: pm.Categorical("o", logit_p=eta[:, None] * np.arange(4.0), observed=y),
    ),
    "OrderedLogistic": (
        GROUPS,
        lambda eta, s, y: pm.OrderedLogistic("o", eta, [-1.0, 0.0, 1.0], observed=y),
    ),
    "Dirichlet": (
        np.stack([SHARES, 1 - SHARES], axis=1),
        lambda e, s, y: pm.Dirichlet("o", pt.stack([pt.exp(e), s + 0 * e], axis=1), observed=y),
    ),
    "MvNormal": (
        X[:, ::-1],
        lambda e, s, y: pm.MvNormal("o", pt.stack([e, -e], axis=1), np.eye(2) + 0.2, observed=y),
    ),
}
# What depends on the number of rows or on groups.
REFUSED = {
    "bincount": lambda eta, s, y: pm.Normal(
        "o", eta, 1 + pt.bincount(pt.cast(y > 0, "int64"), minlength=2).sum() / 9, observed=y
    ),
    "totals of groups": lambda eta, s, y: pm.Normal(
        "o", pt.inc_subtensor(pt.zeros(2)[pt.cast(y > 0, "int64")], eta)[0], s, observed=y
    ),
    "unique": lambda eta, s, y: pm.Normal(
        "o", eta, s + pt.unique(pt.round(y)).shape[0] / 9, observed=y
    ),
    "number of rows": lambda eta, s, y: pm.Normal(
        "o", eta, pt.switch(y.shape[0] > 30, s, 2 * s), observed=y
    ),
    "order": lambda eta, s, y: pm.Normal("o", eta, s, observed=y[::-1]),
    "neighbours": lambda eta, s, y: pm.Normal("o", eta[1:] - eta[:-1], s, observed=Y[1:]),
    "standardised": lambda eta, s, y: pm.Normal("o", (eta - eta.mean()) / eta.std(), s, observed=y),
}
BY_DAY = ("Normal", "NegativeBinomial", "totals of groups")


def cases(table):
    marks = {name: [] if name in BY_DAY else [pytest.mark.nightly] for name in table}
    return [pytest.param(made, id=name, marks=marks[name]) for name, made in table.items()]


def model_of(values, build):
    with pm.Model() as model:
        x, y = pm.Data("x", X), pm.Data("y", values)
        scale = pm.HalfNormal("s")
        build(pm.Normal("a") + x @ pm.Normal("b", shape=2), scale + 0.5, y)
    return model, [x, y]


@pytest.mark.parametrize("made", cases(LIKELIHOODS))
def test_a_likelihood_and_its_gradient_are_pymcs_without_alarm(made):
    model, rows = model_of(*made)
    q = np.linspace(0.3, -0.3, 4)
    expected = model.logp_dlogp_function(ravel_inputs=True)._pytensor_function(q)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = logp_dlogp(model, rows)(q)
    for value, other in zip(found, expected):
        np.testing.assert_allclose(value, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("build", cases(REFUSED))
def test_what_is_no_sum_over_rows_gives_no_number(build):
    model, rows = model_of(Y, build)
    with pytest.raises((NotExact, InputValueError)):
        logp_dlogp(model, rows)(np.linspace(0.3, -0.3, 4))

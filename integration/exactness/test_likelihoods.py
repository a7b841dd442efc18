"""PyMC's likelihoods over ranks: of right models without alarm, and others are refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

pm = pytest.importorskip("pymc", reason="needs PyMC 6, on Python 3.12 or newer")

import pytensor.tensor as pt  # noqa: E402, F401 - in the tables

from synkhronos.exceptions import InputValueError, NotExact  # noqa: E402
from synkhronos.extensions.pymc import logp_dlogp  # noqa: E402

ROWS = 40
RNG = np.random.default_rng(3)
X = RNG.normal(size=(ROWS, 2))
Y = X @ [1.0, -0.5] + RNG.normal(size=ROWS)
COUNTS, SHARES, GROUPS = RNG.poisson(3, ROWS), RNG.uniform(0.05, 0.95, ROWS), np.arange(ROWS) % 4

# Observed values, a distribution, and its parameters by a linear predictor e and a positive s.
LIKELIHOODS = """
Y Normal e, s
Y StudentT 4, e, sigma=s
Y Laplace e, s
Y Cauchy e, s
Y Logistic e, s
Y Gumbel e, s
Y Moyal e, s
Y SkewNormal mu=e, sigma=s, alpha=1
Y ExGaussian e, sigma=1, nu=s
Y AsymmetricLaplace s, 1, e
Y NormalMixture [0.3, 0.7], pt.stack([e, -e], axis=1), sigma=s
Y Normal e, pt.exp(0.1 * e) + s
np.minimum(Y,1) Censored pm.Normal.dist(e, s), None, 1
abs(Y) Truncated pm.Normal.dist(e, s), 0, None
abs(Y) HalfNormal pt.exp(e)
abs(Y) HalfCauchy pt.exp(e)
abs(Y) Exponential pt.exp(e)
abs(Y) Gamma s, pt.exp(e)
abs(Y) InverseGamma s, pt.exp(e)
abs(Y) Weibull s, pt.exp(e)
abs(Y) LogNormal e, s
abs(Y) Wald pt.exp(e), s
SHARES Beta s + pt.exp(e), s
SHARES Kumaraswamy pt.exp(e), s
SHARES LogitNormal e, s
SHARES Triangular 0, 1, pm.math.sigmoid(e)
np.clip(Y,-3,3) VonMises e, s
COUNTS Poisson pt.exp(e)
COUNTS NegativeBinomial pt.exp(e), s
COUNTS ZeroInflatedPoisson 0.8, pt.exp(e)
COUNTS HurdlePoisson 0.8, pt.exp(e)
COUNTS+1 Geometric pm.math.sigmoid(e)
COUNTS>2 Bernoulli logit_p=e
COUNTS Binomial 20, logit_p=e
COUNTS BetaBinomial pt.exp(e), s, 20
GROUPS Categorical logit_p=e[:, None] * np.arange(4.0)
GROUPS OrderedLogistic e, [-1.0, 0.0, 1.0]
np.stack([SHARES,1-SHARES],axis=1) Dirichlet pt.stack([pt.exp(e), s + 0 * e], axis=1)
X[:,::-1] MvNormal pt.stack([e, -e], axis=1), np.eye(2) + 0.2
"""
# Parameters that depend on the number of rows or on groups, of a normal likelihood.
REFUSED = """
e, 1 + pt.bincount(pt.cast(y > 0, "int64"), minlength=2).sum() / 9
pt.inc_subtensor(pt.zeros(2)[pt.cast(y > 0, "int64")], e)[0], s
e, s + pt.unique(pt.round(y)).shape[0] / 9
e, pt.switch(y.shape[0] > 30, s, 2 * s)
e[::-1], s
e[1:] - e[:-1], s, observed=Y[1:]
(e - e.mean()) / e.std(), s
"""
BY_DAY = ("Y Normal e, s", "COUNTS NegativeBinomial pt.exp(e), s", REFUSED.split("\n")[2])


def cases(table):
    nightly = pytest.mark.nightly
    lines = table.strip().split("\n")
    return [pytest.param(line, id=line, marks=[nightly] * (line not in BY_DAY)) for line in lines]


def density(values, distribution, parameters):
    with pm.Model() as model:
        x, y = pm.Data("x", X), pm.Data("y", values)
        s = pm.HalfNormal("s") + 0.5
        names = {**globals(), "e": pm.Normal("a") + x @ pm.Normal("b", shape=2), "s": s, "y": y}
        how = "" if "observed" in parameters else ", observed=y"
        eval(f"pm.{distribution}('o', {parameters}{how})", names)
    q = np.linspace(0.3, -0.3, 4)
    own = model.logp_dlogp_function(ravel_inputs=True)._pytensor_function
    return (lambda: logp_dlogp(model, [x, y])(q)), (lambda: own(q))


@pytest.mark.parametrize("line", cases(LIKELIHOODS))
def test_a_likelihood_and_its_gradient_are_pymcs_without_alarm(line):
    values, distribution, parameters = line.split(maxsplit=2)
    ours, own = density(eval(values), distribution, parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = ours()
    for value, other in zip(found, own()):
        np.testing.assert_allclose(value, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("parameters", cases(REFUSED))
def test_a_likelihood_that_is_no_sum_over_rows_gives_no_number(parameters):
    ours, _ = density(Y, "Normal", parameters)
    with pytest.raises((NotExact, InputValueError)):
        ours()

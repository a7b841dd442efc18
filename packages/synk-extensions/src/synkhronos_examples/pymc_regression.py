"""A regression in PyMC: as PyMC does it, then with its rows divided among all processes.

    python pymc_regression.py [--processes 2] [--rows 100001] [--draws 100]

Three lines, marked (1) to (3), are new. Log probability, gradient, maximum and the first draws have
to be those of PyMC alone, otherwise the program fails. (In a long chain rounding grows until draws
are others, of the same distribution.) Then it says which of the two is faster here.

Do not expect a gain from this for a usual run of a small model. PyMC runs its chains in parallel
already: with as many chains as cores, `pm.sample()` alone is the better choice. To divide the rows
pays if you have more cores than chains, if you maximize (one sequence of evaluations), or if the
intermediate results of all rows are too large for every chain to have its own; and only if one
evaluation takes some milliseconds: many rows, or much work for each.
"""

import argparse
import time
import warnings

import numpy as np
import pymc as pm

import synkhronos as synk
from synkhronos.extensions.pymc import find_MAP, logp_dlogp, nuts

SEED = 3
parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--processes", type=int, help="default: one per core")
parser.add_argument("--rows", type=int, default=100_001)
parser.add_argument("--draws", type=int, default=100, help="after as many to tune")
options = parser.parse_args()

rng = np.random.default_rng(SEED)
coefficients = np.linspace(-1, 1, 10)
x_values = rng.normal(size=(options.rows, 10))
y_values = rng.poisson(np.exp(0.5 + 0.3 * x_values @ coefficients))

# A model as PyMC has it. Rows are pm.Data whose first dimension has a name.
with pm.Model() as model:
    x = pm.Data("x", x_values, dims=("row", "column"))
    y = pm.Data("y", y_values, dims="row")
    a = pm.Normal("a", 0, 5)
    b = pm.Normal("b", 0, 1, shape=10)
    pm.Poisson("counts", pm.math.exp(a + x @ b), observed=y)

how = {
    "draws": options.draws,
    "tune": options.draws,
    "chains": 1,
    "cores": 1,
    "random_seed": SEED,
    "progressbar": False,
    "compute_convergence_checks": False,
    "discard_tuned_samples": False,
}
# Of what PyMC will do by default, some day.
warnings.simplefilter("ignore", FutureWarning)


def timed(f, *arguments, **keywords):
    """Return a result, and the seconds that it took."""
    begin = time.perf_counter()
    result = f(*arguments, **keywords)
    return result, time.perf_counter() - begin


def evaluation(f, q):
    """Return the median seconds of an evaluation of log probability and gradient."""
    return float(np.median([timed(f, q)[1] for _ in range(15)]))


def draws(trace):
    """Return the draws of all variables, one a row: those to tune, and those of the posterior."""
    return [
        np.column_stack([group["a"].values[0], group["b"].values[0]])
        for group in (trace.warmup_posterior, trace.posterior)
    ]


# PyMC alone.
plain = model.logp_dlogp_function(ravel_inputs=True)._pytensor_function
with model:
    plain_map = pm.find_MAP(progressbar=False)
    plain_trace, plain_s = timed(pm.sample, step=pm.NUTS(), initvals=plain_map, **how)

# The same with the rows on all processes.
processes = synk.fork(options.processes, use_gpu=False)  # (1)
f = logp_dlogp(model, rows="row")
map_ = find_MAP(model, rows="row", progressbar=False)
with model:
    step = nuts(model, rows="row")  # (2)
    trace, parallel_s = timed(pm.sample, step=step, initvals=plain_map, **how)  # (3) step=, cores=1

q = np.zeros(11)
(logp, dlogp), (expected_logp, expected_dlogp) = f(q), plain(q)
np.testing.assert_allclose(logp, expected_logp, rtol=1e-12)
np.testing.assert_allclose(dlogp, expected_dlogp, rtol=1e-11, atol=1e-11 * abs(dlogp).max())
(first, posterior), (plain_first, plain_posterior) = draws(trace), draws(plain_trace)
differences = {
    "maximum": max(np.abs(map_[name] - plain_map[name]).max() for name in ("a", "b")),
    "first ten draws": np.abs(first[:10] - plain_first[:10]).max(),
}
for what, difference in differences.items():
    print(f"{what}: largest difference from PyMC alone {difference:.1e}")
    assert difference < 1e-6
deviations = np.abs(posterior.mean(0) - plain_posterior.mean(0)) / plain_posterior.std(0)
print(f"posterior means: largest difference {deviations.max():.2f} standard deviations")
assert deviations.max() < 1

plain_ms, parallel_ms = 1e3 * evaluation(plain, q), 1e3 * evaluation(f, q)
synk.close()
ranks = f"{processes} ranks"
print(f"one evaluation: {plain_ms:.2f} ms by PyMC, {parallel_ms:.2f} ms on {ranks}")
print(f"{2 * options.draws} draws: {plain_s:.1f} s by PyMC, {parallel_s:.1f} s on {ranks}")
if parallel_ms > plain_ms:
    print("It does not pay here: PyMC alone is faster. It needs more rows, or cores that are free.")
else:
    print(f"It pays for one chain: {plain_ms / parallel_ms:.2f} times as fast.")
    print("For many chains compare with pm.sample() on as many cores.")
print("All assertions passed.")

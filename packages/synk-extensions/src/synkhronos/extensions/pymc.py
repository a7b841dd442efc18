"""PyMC models whose log-likelihood all ranks compute together, each on its share of the rows.

::

    with pm.Model() as model:
        X, y = pm.Data("X", X_values), pm.Data("y", y_values)
        b = pm.Normal("b", shape=10)
        pm.Normal("obs", X @ b, 1, observed=y)

    synk.fork()
    step = nuts(model, rows=[X, y])
    trace = pm.sample(step=step, model=model, cores=1)

The log-likelihood is summed over the rows of all ranks, and the prior is added once, so log
probability, gradient and draws are those of PyMC, to rounding. The rows are copied into shared
memory once. Models whose log-likelihood is no sum over rows are refused.

It needs PyMC 6 and PyTensor: ``pip install 'synkhronos[pymc]'`` on Python 3.12 or newer.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

import synkhronos as synk
from synk_core import check_outputs
from synkhronos import _default
from synkhronos.exceptions import (
    DecompositionWarning,
    InputTypeError,
    InputValueError,
    PerformanceWarning,
)

try:
    import pymc as pm
    import pytensor
    import pytensor.tensor as pt
    from pymc.blocking import DictToArrayBijection
    from pymc.data import MinibatchOp
    from pymc.initial_point import make_initial_point_fns_per_chain
    from pymc.pytensorf import join_nonshared_inputs, rewrite_pregrad
    from pymc.variational.minibatch_rv import MinibatchRandomVariable
    from pytensor.graph.replace import clone_replace
    from pytensor.graph.traversal import ancestors
except ImportError as error:
    raise ImportError(
        "synkhronos.extensions.pymc needs PyMC 6, on Python 3.12 or newer: "
        "pip install 'synkhronos[pymc]'"
    ) from error

__all__ = ["RowLogp", "find_MAP", "logp_dlogp", "nuts"]


class RowLogp:
    """The log probability of a model and its gradient, computed from the rows of all ranks.

    Made by :func:`logp_dlogp`. ``pm.NUTS`` and ``pm.HamiltonianMC`` take it as ``logp_dlogp_func``.

    Attributes:
        likelihood: the parallel function ``(*rows, q) -> (logp, dlogp)`` of the log-likelihood.
        data: the rows in shared memory, a `Data` for each ``pm.Data``, as `likelihood` takes them.
        dtype: dtype of `q`, that of PyTensor's ``floatX``.
    """

    # The names by which PyMC's integrator uses it.
    _raveled_inputs = True
    _extra_vars_shared: Mapping[str, Any] = {}
    trust_input = True

    def __init__(self, likelihood: Any, prior: Any, data: Sequence[Any]) -> None:
        self.likelihood, self.data = likelihood, list(data)
        self.dtype = pytensor.config.floatX
        self._prior, self._pid = prior, os.getpid()

    def __call__(self, q: Any) -> tuple[np.ndarray, np.ndarray]:
        """Compute ``(logp, dlogp)`` at ``q``; blocks until all ranks have computed.

        Args:
            q: the free variables in PyMC's transformed space, raveled and joined in the order of
                ``model.continuous_value_vars``: a vector, or PyMC's ``RaveledVars``.

        Returns:
            The log probability, of shape ``()``, and its gradient, a vector like ``q``.

        Raises:
            All errors of a call; RuntimeError in a process that was forked from the master.
        """
        return self._pytensor_function(np.asarray(getattr(q, "data", q), self.dtype))

    def _pytensor_function(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if os.getpid() != self._pid:
            raise RuntimeError(f"a forked process called a parallel function: {_ONE_CORE}")
        logp, dlogp = self.likelihood(*self.data, q)
        prior, dprior = self._prior(q)
        return logp + prior, dlogp + dprior

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a parallel function cannot be sent to another process: {_ONE_CORE}")


_ONE_CORE = "use pm.sample(cores=1), with which chains run one by one, each on all ranks"


def logp_dlogp(
    model: Any,
    rows: str | Sequence[Any],
    *,
    potentials: str | None = None,
    check: bool = True,
    mode: Any = None,
) -> RowLogp:
    """Build the log probability of a model and its gradient, for ``pm.NUTS(logp_dlogp_func=...)``.

    Observed variables that use no rows belong to the prior, which the master computes. Values of
    ``rows`` are read now: later ``pm.set_data()`` does not change them.

    Args:
        model: a ``pm.Model``; all its free variables are continuous.
        rows: list of the model's ``pm.Data`` whose axis 0 are rows, all of one length; or the name
            of a coordinate: all ``pm.Data`` that have it as their first dimension.
        potentials: what the model's Potentials are: "rows" (sums over rows, like a likelihood) or
            "once" (terms of the whole model). Needed if it has any.
        check: find out by its graph whether the log-likelihood is a sum over rows, and if that
            does not show it, by comparing the ranks' sum at the initial point with that of one
            process, and again at calls 1, 2, 4, 8 ... (see ``synkhronos.fork``). False trusts you.
        mode: PyTensor's mode of both functions, such as "NUMBA".

    Raises:
        NotForked, Closed: no `fork()` before.
        InputTypeError: `rows` has something that is no ``pm.Data`` of the model.
        InputValueError: the model cannot be divided into rows; the error names the variable.
    """
    return _build(model, rows, potentials, check, mode, jacobian=True)


def nuts(
    model: Any,
    rows: str | Sequence[Any],
    *,
    potentials: str | None = None,
    check: bool = True,
    mode: Any = None,
    **kwargs: Any,
) -> Any:
    """Return a ``pm.NUTS`` for ``pm.sample(step=..., cores=1)``.

    Args:
        model, rows, potentials, check, mode: as for :func:`logp_dlogp`.
        **kwargs: arguments of ``pm.NUTS``, such as ``target_accept``; not ``vars``.

    Raises:
        All errors of :func:`logp_dlogp`; InputTypeError: `vars` or `logp_dlogp_func` is given.
    """
    for name in {"vars", "logp_dlogp_func"} & kwargs.keys():
        raise InputTypeError(f"got {name!r}; nuts() samples all free variables of the model")
    f = logp_dlogp(model, rows, potentials=potentials, check=check, mode=mode)
    return pm.NUTS(logp_dlogp_func=f, model=model, **kwargs)


def find_MAP(  # noqa: N802 - PyMC's name
    model: Any,
    rows: str | Sequence[Any],
    *,
    method: str = "L-BFGS-B",
    initvals: Mapping[Any, Any] | None = None,
    random_seed: Any = None,
    include_transformed: bool = True,
    progressbar: bool = False,
    potentials: str | None = None,
    check: bool = True,
    mode: Any = None,
    **kwargs: Any,
) -> dict[str, np.ndarray]:
    """Maximize the posterior density, as ``pm.find_MAP`` does without jitter.

    Args:
        model, rows, potentials, check, mode: as for :func:`logp_dlogp`.
        method: a method of ``scipy.optimize.minimize`` that needs no Hessian.
        initvals: where to start, instead of the model's initial point.
        random_seed: seed of initial values that are drawn.
        include_transformed: also return values in the transformed space.
        progressbar: show progress.
        **kwargs: further arguments of ``scipy.optimize.minimize``, such as ``maxiter`` and ``tol``.

    Returns:
        From the names of variables, deterministic ones included, to their values.

    Raises:
        All errors of :func:`logp_dlogp`.
        InputValueError: `method` needs the Hessian.
        pymc.exceptions.SamplingError: the density is not finite at the start.

    Warns:
        UserWarning: the optimizer did not converge.
    """
    # Dependencies of PyMC that it imports late.
    from better_optimize import minimize
    from pymc.util import get_default_varnames

    if method.lower() in {"dogleg", "trust-ncg", "trust-krylov", "trust-exact"}:
        raise InputValueError(
            f"method {method!r} needs the Hessian, which is not computed; use 'L-BFGS-B' or 'BFGS'"
        )
    f = _build(model, rows, potentials, check, mode, jacobian=False)
    [initial_point] = make_initial_point_fns_per_chain(
        model=model, overrides=initvals, jitter_rvs=set(), chains=1
    )
    start = initial_point(int(np.random.default_rng(random_seed).integers(2**30)))
    x0 = DictToArrayBijection.map({v.name: start[v.name] for v in model.value_vars})

    if not np.isfinite(f(x0)[0]):
        model.check_start_vals(start)  # it says which variable is the cause

    def loss(q: np.ndarray) -> tuple[Any, np.ndarray]:
        logp, dlogp = f(q)
        return -logp, -dlogp

    result = minimize(f=loss, x0=x0.data, method=method, progressbar=progressbar, **kwargs)
    if not result.get("success", True):
        message = f"the optimizer did not converge: {result.get('message', '')}"
        warnings.warn(message, UserWarning, stacklevel=2)
    point = DictToArrayBijection.rmap(x0._replace(data=np.asarray(result.x)), start)
    outputs = model.unobserved_value_vars
    # It runs once: to compile it well would take longer.
    how = {"inputs": model.value_vars, "on_unused_input": "ignore", "mode": "FAST_COMPILE"}
    values = model.compile_fn(outputs, point_fn=False, **how)(**point)
    found = {output.name: value for output, value in zip(outputs, values)}
    return {name: found[name] for name in get_default_varnames(found, include_transformed)}


def _build(
    model: Any, rows: Any, potentials: str | None, check: bool, mode: Any, *, jacobian: bool
) -> RowLogp:
    if not model.free_RVs:
        raise InputValueError("the model has no free variables")
    if discrete := [v.name for v in model.discrete_value_vars]:
        raise InputValueError(
            f"free variables {discrete} are discrete and have no gradient; marginalize them"
        )
    _require_all_observed(model)
    found = _find_rows(model, rows)
    of_rows, once = _divide(model, found, potentials, by_name=isinstance(rows, str))
    # Of the rows of a coordinate, some may be for predictions only.
    used = _behind(model, of_rows)
    data = [item for item in found if item in used]
    inputs = [pt.TensorType(d.dtype, (None, *d.type.shape[1:]))(d.name) for d in data]
    terms = model.logp(vars=of_rows, jacobian=jacobian, sum=False)
    terms = clone_replace(
        [term.sum() for term in terms], replace=dict(zip(data, inputs)), rebuild_strict=False
    )
    point = model.initial_point(0)
    is_known = not check or _are_sums(model, of_rows, terms, inputs, data)
    prior = model.logp(vars=[*model.free_RVs, *once], jacobian=jacobian)
    # Parameters out of range make -inf, not an error, as in PyMC.
    bounds = "check_parameter_to_ninf_switch" if model.check_bounds else "remove_check_parameter"
    mode = pytensor.compile.mode.get_mode(mode).including(f"local_{bounds}")
    outputs, q = _with_gradient(sum(terms[1:], terms[0]), model, point)
    with warnings.catch_warnings():
        # It is an error here.
        warnings.simplefilter("ignore", DecompositionWarning)
        likelihood = synk.function(
            inputs,
            bcast_inputs=[q],
            outputs=[(output, "sum") for output in outputs],
            name="log-likelihood",
            mode=mode,
            # A likelihood of constants does not use q.
            on_unused_input="ignore",
            proof=None if check else False,
        )
    outputs, q = _with_gradient(prior, model, point)
    on_master = pytensor.function([q], outputs, mode=mode, on_unused_input="ignore")
    shared = [synk.data(item.get_value(borrow=True)) for item in data]
    if not is_known:
        free = {value.name: point[value.name] for value in model.continuous_value_vars}
        _prove(model, of_rows, data, likelihood, shared, DictToArrayBijection.map(free).data)
    return RowLogp(likelihood, on_master, shared)


def _require_all_observed(model: Any) -> None:
    """Refuse missing observations and minibatches, with PyMC's words for what to write instead."""
    names = {rv.name for rv in model.observed_RVs}
    for rv in model.free_RVs:
        name = rv.name.removesuffix("_unobserved")
        if f"{name}_observed" in names:
            raise InputValueError(
                f"{name!r} has missing observations, which PyMC would impute as the free variable "
                f"{rv.name!r}; expected none. Leave their rows out, which says the same of the "
                'other variables: keep = ~np.isnan(y), pm.Data("X", X[keep]), pm.Data("y", y[keep])'
            )
    values = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    behind = ancestors([*model.observed_RVs, *values])
    if any(isinstance(getattr(v.owner, "op", None), MinibatchOp) for v in behind):
        raise InputValueError(
            "the model draws a pm.Minibatch in each call; expected all rows, which the ranks "
            'divide: pass pm.Data("X", X) and pm.Data("y", y) in its place, without total_size='
        )
    for rv in model.observed_RVs:
        if isinstance(rv.owner.op, MinibatchRandomVariable):
            raise InputValueError(
                f"{rv.name!r} has a total_size=, which scales the log-likelihood of a minibatch; "
                "expected all rows, which the ranks divide: leave total_size= out"
            )


def _find_rows(model: Any, rows: str | Sequence[Any]) -> list[Any]:
    """Return the Data that have rows, after checks."""
    if isinstance(rows, str):
        first = {item.name: _first_dimension(model, item) for item in model.data_vars}
        found = [item for item in model.data_vars if first[item.name] == rows]
        if not found:
            raise InputValueError(
                f"no pm.Data has {rows!r} as its first dimension; first dimensions are {first}. "
                f"Pass pm.Data(..., dims={rows!r}), or a list of pm.Data"
            )
    else:
        if not isinstance(rows, (list, tuple)):
            raise InputTypeError(f"rows: got {rows}, expected a list of pm.Data, or a coordinate")
        found = list(rows)
        for item in found:
            if not any(item is data for data in model.data_vars):
                raise InputTypeError(
                    f"rows: got {item}, expected pm.Data of the model, which has "
                    f"{[data.name for data in model.data_vars]}"
                )
        if not found:
            raise InputValueError("rows: got none, expected pm.Data whose axis 0 are rows")
    if frozen := [item.name for item in found if not hasattr(item, "get_value")]:
        raise InputValueError(f"pm.Data {frozen} are constants of a frozen model; do not freeze it")
    if scalars := [item.name for item in found if not item.ndim]:
        raise InputValueError(f"pm.Data {scalars} are scalars and have no rows")
    lengths = {item.name: len(item.get_value(borrow=True)) for item in found}
    if len(set(lengths.values())) > 1:
        raise InputValueError(f"rows must have one length; numbers of rows are {lengths}")
    if not all(lengths.values()):
        raise InputValueError(f"there are no rows: numbers of rows are {lengths}")
    return found


def _divide(
    model: Any, rows: Sequence[Any], potentials: str | None, *, by_name: bool
) -> tuple[list[Any], list[Any]]:
    """Return the variables whose terms are of rows, and those that count once."""
    if potentials not in (None, "rows", "once"):
        raise InputValueError(f'got potentials={potentials!r}, expected "rows" or "once"')
    names = [potential.name for potential in model.potentials]
    if names and potentials is None:
        raise InputValueError(
            f'the model has Potentials {names}: pass potentials="rows" if they are sums over rows, '
            f'or potentials="once" if they are terms of the whole model'
        )
    of_rows, once = [], list(model.potentials)
    if potentials == "rows":
        of_rows, once = once, of_rows
    behind = {observed: _behind(model, [observed]) for observed in model.observed_RVs}
    observed = [rv for rv, used in behind.items() if any(item in used for item in rows)]
    if not observed and not of_rows:
        raise InputValueError(
            f"no observed variable of {[rv.name for rv in model.observed_RVs]} uses the rows "
            f"{[item.name for item in rows]}; pass their values through pm.Data, as in "
            f'pm.Normal("obs", X @ b, s, observed=pm.Data("y", y))'
        )
    n = len(rows[0].get_value(borrow=True))
    sizes = {rv.name: model.rvs_to_values[rv].size.eval() for rv in behind if rv not in observed}
    if alone := [name for name, size in sizes.items() if size >= n]:
        warnings.warn(
            f"the master alone computes the log probability of {alone}, of at least as many values "
            f"as the {n} rows that are divided: list its pm.Data in rows, too, or instead",
            PerformanceWarning,
            stacklevel=5,
        )
    of_rows = [*observed, *of_rows]
    used = _behind(model, of_rows)
    unused = [item.name for item in rows if item not in used]
    if unused and not by_name:
        raise InputValueError(f"no observed variable uses {unused}; leave them out of rows")
    return of_rows, [*(rv for rv in model.observed_RVs if rv not in observed), *once]


def _behind(model: Any, variables: Sequence[Any]) -> set[Any]:
    return set(ancestors(model.logp(vars=list(variables), sum=False)))


def _first_dimension(model: Any, item: Any) -> str | None:
    return (model.named_vars_to_dims.get(item.name) or (None,))[0]


def _with_gradient(logp: Any, model: Any, point: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """Return ``[logp, dlogp]`` as expressions of one vector, and the vector, as PyMC does."""
    logp = rewrite_pregrad(logp)
    free = model.continuous_value_vars
    gradients = pytensor.grad(logp, free, disconnected_inputs="ignore")
    dlogp = pt.join(0, *[gradient.ravel() for gradient in gradients])
    outputs, q = join_nonshared_inputs(point=dict(point), outputs=[logp, dlogp], inputs=free)
    return list(outputs), q


def _are_sums(model: Any, variables: Any, terms: Any, inputs: Any, data: Any) -> bool:
    """Return whether the graph shows that terms, and so their gradients, are sums over rows; refuse
    those of which it shows that they are not."""
    ops = [(term, "sum") for term in terms]
    verdicts = check_outputs(inputs, ops, bcast_inputs=model.value_vars)
    wrong = [pair for pair in zip(variables, verdicts) if pair[1].verdict == "wrong"]
    if wrong:
        names, reasons = [v.name for v, _ in wrong], [verdict.reason for _, verdict in wrong]
        _refuse(model, variables, data, names, " ".join(reasons))
    return all(verdict.verdict == "exact" for verdict in verdicts)


def _prove(
    model: Any, variables: Any, data: Any, likelihood: Any, shared: Sequence[Any], q: np.ndarray
) -> None:
    """Compare the ranks' sum, or that of slices where there is one rank, with that of one process,
    of all rows at the initial point; calls are proved later, too."""
    slices = () if _default.default().size > 1 else 2
    try:
        report = likelihood.verify(*shared, q.astype(pytensor.config.floatX), num_slices=slices)
    except Exception as error:
        raise InputValueError(
            f"the log-likelihood cannot be computed from a part of the {len(shared[0])} rows"
            f"{_suspects(model, variables, data)}"
        ) from error
    if not report.ok:
        _refuse(model, variables, data, [variable.name for variable in variables], str(report))


def _refuse(
    model: Any, variables: Sequence[Any], data: Sequence[Any], names: Sequence[str], reason: str
) -> NoReturn:
    raise InputValueError(
        f"the log probability of {names} is no sum over rows, so ranks cannot divide it"
        f"{_suspects(model, variables, data)}. {reason} Quantities of all rows, such as "
        f"X.mean(0), have to be computed before the model; Gaussian processes and time series do "
        f'not divide; a Potential that uses no rows is potentials="once"'
    )


def _suspects(model: Any, variables: Sequence[Any], data: Sequence[Any]) -> str:
    """Describe what in the graph has as many entries as there are rows, and the cure."""
    n = len(data[0].get_value(borrow=True))
    of_rows = {_first_dimension(model, item) for item in data} - {None}
    behind, point, lines = _behind(model, variables), model.initial_point(0), []
    for rv in model.free_RVs:
        value = model.rvs_to_values[rv]
        named = of_rows & set(model.named_vars_to_dims.get(rv.name) or ())
        if value in behind and (named or n in np.shape(point[value.name])):
            lines.append(
                f"free variable {rv.name!r} has {n} entries, one for each row: a latent variable "
                f"of rows is not supported; marginalize it"
            )
    for item in behind:
        if isinstance(item, pytensor.graph.basic.Constant):
            if n in np.shape(item.data):
                name = item.name or f"{item.dtype} of shape {np.shape(item.data)}"
                lines.append(f"constant {name!r} has {n} entries: make it pm.Data and list it")
        elif item in model.data_vars and item not in data and n in item.get_value().shape:
            lines.append(f"pm.Data {item.name!r} has {n} rows and is not listed: list it in rows")
    return ": " + "; ".join(sorted(lines)) if lines else ""

"""The functions of the package: each hands its arguments to the default runtime.

Arguments of 1.0 that have nothing to set any more (`nccl`, `max_n_var`, `max_dim`) are accepted.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from synk_theano import Data, DelayedCollectives, Findings, Function, Stats, Verdicts

from . import _default


def fork(
    n_parallel: Optional[int] = None,
    use_gpu: Optional[bool] = None,
    master_rank: int = 0,
    profile_workers: bool = False,
    max_n_var: int = 1000,
    max_dim: int = 16,
    *,
    verbose: bool = True,
    backend: str = "shm",
    timeout_s: float = 3600.0,
    random_streams: str = "per_rank",
    devices: Optional[Sequence[str]] = None,
    nccl: Optional[bool] = None,
) -> int:
    """Start the worker processes, and take this process's GPU into use if there are GPUs.

    Call it before anything else of this package. Workers start while you build graphs, and are
    awaited when first needed. They are fresh processes, not copies of this one, so it does not
    matter what was initialized before: if this process uses a GPU already, it keeps that one.

    Args:
        n_parallel: number of ranks, this process included. By default the environment variable
            ``SYNKHRONOS_N_PARALLEL``, else one for each GPU, or if there are none for each core
            that this process may use.
        use_gpu: True demands GPUs, False CPU processes. None: what the environment variable
            ``SYNKHRONOS_USE_GPU`` says (1 or 0), else GPUs if there are any that Theano can use.
        master_rank: the rank of this process, from 0 to ``n_parallel - 1``.
        profile_workers: each worker writes ``synkhronos_profile_rank<r>.prof`` into the current
            folder when it stops.
        max_n_var, max_dim: accepted as in 1.0; there is no limit to set.
        verbose: print the lines that say what is going on.
        backend: "shm" or "zmq": what collectives go through.
        timeout_s: seconds that a rank waits for the others inside one collective.
        random_streams: "per_rank" (each rank draws numbers of its own, this process the same as
            in serial Theano), or "identical" (all ranks draw the same).
        devices: instead of `n_parallel` and `use_gpu`, Theano's name of each rank's device, as
            in ``["cuda0", "cuda2"]``.
        nccl: whether collectives of GPUs go through NCCL. None: if it is there; else they go
            through host memory, which is slower, and one line says so.

    Returns:
        The number of ranks.

    Raises:
        AlreadyForked: it was called already (a RuntimeError); `close()` first.
        InputValueError, InputTypeError: a number out of range, or a name that is none.
        StartError: GPUs or NCCL were demanded and cannot be used, or a process could not be
            started.
    """
    if n_parallel is None and devices is None:
        n_parallel = _default.processes_from_environment()
    runtime = _default.open_default(
        n_parallel=n_parallel,
        use_gpu=use_gpu,
        master_rank=master_rank,
        profile_workers=profile_workers,
        backend=backend,
        timeout_s=timeout_s,
        random_streams=random_streams,
        devices=devices,
        nccl=nccl,
        report=_default.reporter(verbose),
    )
    return runtime.size


def close() -> None:
    """Stop the workers and free what they hold. Called at exit; harmless if nothing is open.

    After it `fork()` works again; functions of before do not. `Data` stay readable.
    """
    _default.close_default()


def function(
    inputs: Any,
    outputs: Any = None,
    bcast_inputs: Any = None,
    updates: Any = None,
    givens: Any = None,
    sliceable_shareds: Any = None,
    **kwargs: Any,
) -> Function:
    """Build a function that all ranks compute together: in place of `theano.function()`.

    Args:
        inputs: list of Theano variables to be scattered: each rank gets a share of the rows
            (entries along axis 0).
        outputs: a variable, or ``(variable, op)``, or a list of these, or None. The op says how
            the ranks' results become one: "avg" (default; weighted by rows, so that it is the
            serial result for any split), "sum", "max", "min", "prod", "gather" (concatenated in
            input order), or None (the master's own).
        bcast_inputs: list of Theano variables of which each rank gets the whole.
        updates: as in Theano: pairs ``(shared variable, new value)`` or a dict; or triples with
            an op for accumulation over slices ("avg" by default, "last" for integers; also "sum",
            "max", "min", "prod"). Each rank updates its own variables.
        givens: as in Theano.
        sliceable_shareds: list of shared variables that hold data rows: subject to `batch_s` and
            to slicing.
        **kwargs: go on to `theano.function()` (name, mode, profile, on_unused_input,
            allow_input_downcast ...).

    Raises:
        NotForked, Closed: no `fork()` before (RuntimeErrors).
        SpecError: wrong form of an argument, or an average of integers (a TypeError).
        OpError, InputValueError: unknown op; a sliceable that is not used (ValueErrors).
    """
    return _default.default().function(
        inputs,
        outputs,
        bcast_inputs=bcast_inputs,
        updates=updates,
        givens=givens,
        sliceable_shareds=sliceable_shareds,
        **kwargs,
    )


def distribute() -> None:
    """Replicate functions and their shared variables in the workers; blocks until they have them.

    May be called any number of times: only what is new travels, and a shared variable stays one
    variable over all functions. A function that was not distributed is when it is first called.
    """
    _default.default().distribute()


def data(
    value: Any = None,
    var: Any = None,
    dtype: Any = None,
    ndim: Optional[int] = None,
    shape: Optional[Sequence[int]] = None,
    minibatch: bool = False,
    force_cast: bool = False,
    oversize: float = 1,
    name: Optional[str] = None,
) -> Data:
    """Make a `Data`: an array in shared memory, as input to functions and collectives.

    Args:
        value: contents, anything that `numpy.asarray` takes.
        var: a Theano variable to take dtype and ndim from.
        dtype, ndim: given directly; by default those of `value`.
        shape: allocate this shape, of zeros if there is no `value`.
        minibatch: its rows are those of a minibatch: with ``batch=``, its row 0 is the lowest row
            that the batch selects.
        force_cast: convert `value` to dtype even if values may change.
        oversize: factor of at least 1 for the allocation.
        name: any name.

    Raises:
        NotForked, Closed: no `fork()` before.
        InputTypeError: dtype and ndim are not known, or `value` does not have them.
    """
    return _default.default().data(
        value,
        var,
        dtype=dtype,
        ndim=ndim,
        shape=shape,
        minibatch=minibatch,
        force_cast=force_cast,
        oversize=oversize,
        name=name,
    )


def step(*acts: Any) -> List[Any]:
    """Perform several calls and collectives as one: one order to the ranks and one barrier.

    ::

        loss, _, _ = synk.step(
            grad.delayed(x, y, batch=rows), synk.delayed.all_reduce(g, weights=grad), update
        )

    Args:
        *acts: what is to be done, in this order: ``f.delayed(...)`` for calls,
            ``synk.delayed.all_reduce(...)`` and the like for collectives; a function without
            inputs may stand for its call.

    Returns:
        What each act returns. Inputs are read when the step begins.

    Raises:
        As calls and collectives do. What is wrong with any act's arguments is found before
        anything is sent; if one fails while it is performed, those before it have been done.
    """
    return _default.default().step(*acts)


class _Delayed:
    """The collectives for `step()`: ``delayed.all_reduce(...)`` and all others, with the arguments
    of the functions of those names. What they return is performed by the step."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(_default.default().delayed, name)

    def __dir__(self) -> List[str]:
        return [name for name in dir(DelayedCollectives) if not name.startswith("_")]


delayed = _Delayed()


def check(function: Function) -> Verdicts:
    """Is each output of a function really what its ranks' shares of the rows give together?

    Looks at the graph: a sum, mean, maximum, minimum or product over rows, or a row-wise result to
    gather, combines exactly by the op of that name. A standard deviation over the batch, or a
    softmax over axis 0, does not. `function()` warns of what is certain to be wrong.

    Returns:
        A list with a verdict for each output: "exact", "wrong" or "unknown" (cannot tell), the
        reason, and a cure. Print it.
    """
    return _default.default().check(function)


def lint() -> Findings:
    """Look for mistakes over all functions, and the calls and collectives since `fork()`.

    For example: a gradient is read with no all_reduce since it was written; parameters were set
    on one rank, but never broadcast.

    Returns:
        A list of findings, errors first; empty if all is well. Print it.
    """
    return _default.default().lint()


def stats(reset: bool = False) -> Stats:
    """Where the time went, by function and collective; always on.

    Args:
        reset: begin anew after this.

    Returns:
        A dict from names to `FunctionStats`: calls, seconds of scatter, compute, wait and reduce,
        bytes of inputs, and how often which rank was the slowest. Print it.
    """
    return _default.default().stats(reset)


def row_share() -> Any:
    """A symbolic scalar: the fraction of the call's rows that an execution computes.

    ``sum(row_share * value)`` over all ranks and slices is the exact mean of a ``value`` that
    each execution averages over its rows. It is 1 in `as_theano()` and in plain Theano functions.
    """
    return _default.default().row_share()


def broadcast(shared_vars: Any, values: Any = None, nccl: bool = True) -> None:
    """Give every rank the master's values of shared variables, or `values`.

    Args:
        shared_vars: a Theano shared variable, or a list of them.
        values: None, or an array or `Data` (one for each variable of a list).
        nccl: accepted as in 1.0.
    """
    _default.default().collectives.broadcast(shared_vars, values)


def scatter(shared_vars: Any, values: Any, batch: Any = None) -> None:
    """Split values along axis 0 over the ranks' shared variables.

    Args:
        shared_vars: a Theano shared variable, or a list of them.
        values: an array or `Data` (one for each variable of a list).
        batch: rows of the values to use, as in calls.
    """
    _default.default().collectives.scatter(shared_vars, values, batch)


def gather(shared_vars: Any, nd_up: int = 1, nccl: bool = True) -> Any:
    """All ranks' values of shared variables, in the master.

    Args:
        shared_vars: a Theano shared variable, or a list of them.
        nd_up: 1 stacks the values along a new first axis; 0 concatenates them along axis 0, where
            lengths may differ.
        nccl: accepted as in 1.0.

    Returns:
        An array; for a list of variables a tuple of arrays.
    """
    return _default.default().collectives.gather(shared_vars, nd_up)


def all_gather(shared_vars: Any, nccl: bool = True) -> None:
    """Every rank's value becomes all ranks' values, concatenated along axis 0."""
    _default.default().collectives.all_gather(shared_vars)


def reduce(shared_vars: Any, op: str = "avg", in_place: bool = True, nccl: bool = True) -> Any:
    """Reduce all ranks' values of shared variables into the master; workers' values stay.

    Args:
        shared_vars: a Theano shared variable, or a list of them.
        op: avg, sum, max, min or prod.
        in_place: overwrite the master's value; otherwise return the result.
        nccl: accepted as in 1.0.

    Returns:
        None if `in_place`; else an array, for a list of variables a tuple of arrays.
    """
    return _default.default().collectives.reduce(shared_vars, op, in_place)


def all_reduce(
    shared_vars: Any,
    op: str = "avg",
    nccl: bool = True,
    weights: Any = None,
) -> None:
    """Every rank's value of shared variables becomes the reduction of all ranks' values.

    Args:
        shared_vars: a Theano shared variable, or a list of them.
        op: avg, sum, max, min or prod.
        nccl: accepted as in 1.0.
        weights: one number per rank, or a function. ``avg`` is then ``sum(w * x) / sum(w)``: with
            ``weights=f`` the average is exact for any split of the last call of ``f``.
    """
    _default.default().collectives.all_reduce(shared_vars, op, weights)


def set_value(rank: int, shared_vars: Any, values: Any, batch: Any = None) -> None:
    """Set the values of shared variables on one rank.

    Args:
        rank: which rank.
        shared_vars: a Theano shared variable, or a list of them.
        values: an array or `Data` (one for each variable of a list).
        batch: rows of the values to use, as in calls.
    """
    _default.default().collectives.set_value(rank, shared_vars, values, batch)


def get_value(rank: int, shared_vars: Any) -> Any:
    """The values of shared variables on one rank: an array, or a tuple of arrays for a list."""
    return _default.default().collectives.get_value(rank, shared_vars)


def get_lengths(shared_vars: Any) -> Tuple[Any, ...]:
    """The lengths of shared variables along axis 0 on all ranks, in rank order.

    Returns:
        A tuple of ints; for a list of variables a tuple of such tuples.
    """
    lengths: Tuple[Any, ...] = _default.default().collectives.get_lengths(shared_vars)
    return lengths


def get_shapes(shared_vars: Any) -> Tuple[Any, ...]:
    """The shapes of shared variables on all ranks, in rank order.

    Returns:
        A tuple of shapes; for a list of variables a tuple of such tuples.
    """
    shapes: Tuple[Any, ...] = _default.default().collectives.get_shapes(shared_vars)
    return shapes

"""The functions of the package: each hands its arguments to the default runtime.

Arguments of 1.0 that have nothing to set any more (`nccl`, `max_n_var`, `max_dim`) are accepted.
"""

from __future__ import annotations

import os
from typing import Any, List, Optional, Sequence, Union

from synk_theano import (
    Data,
    Findings,
    FiniteWatch,
    Function,
    ReplicaWatch,
    Stats,
    Timeline,
    Verdicts,
    brief_traceback,
)

from . import _default
from ._progress import track


@brief_traceback
@_default.refuses_other_names
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
    stall_s: float = 60.0,
    atomic: bool = True,
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
        timeout_s: seconds that a rank waits for the others inside one collective: then
            `WorkerStalled` is raised, and the workers are ended.
        stall_s: seconds of waiting after which a `StallWarning` tells for which rank, and where
            in its program that is; then again after twice as long, and so on.
        atomic: a call, collective or `step` that fails on any rank has changed nothing on any.
            It takes memory for a second copy of what is being updated. False updates in place,
            as 1.0 did: after a failure the ranks' values may differ, and what uses them is
            refused (`ReplicasDiffer`) until `broadcast()`.
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
        stall_s=stall_s,
        atomic=atomic,
        random_streams=random_streams,
        devices=devices,
        nccl=nccl,
        timeline=_default.timeline_from_environment(),
        report=_default.reporter(verbose),
        track=track,
    )
    return runtime.size


@brief_traceback
def close() -> None:
    """Stop the workers and free what they hold. Called at exit; harmless if nothing is open.

    After it `fork()` works again; functions of before do not. `Data` stay readable.
    """
    _default.close_default()


@brief_traceback
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


@brief_traceback
def distribute() -> None:
    """Replicate functions and their shared variables in the workers; blocks until they have them.

    May be called any number of times: only what is new travels, and a shared variable stays one
    variable over all functions. A function that was not distributed is when it is first called.
    """
    _default.default().distribute()


@brief_traceback
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
        minibatch: its rows are those of a minibatch: with ``batch=`` a list, array or mask, its row
            i belongs to entry i; with an int or a slice, its row 0 is the lowest row selected.
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


@brief_traceback
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


@brief_traceback
def check(function: Function) -> Verdicts:
    """Is each output of a function really what its ranks' shares of the rows give together?

    Looks at the graph: a sum, mean, maximum, minimum or product over rows, or a row-wise result to
    gather, combines exactly by the op of that name. A standard deviation over the batch, or a
    softmax over axis 0, does not. `function()` warns of what is certain to be wrong.

    Returns:
        A list with a verdict for each output: "exact", "wrong" or "unknown" (cannot tell), the
        reason, and a cure; its attribute `updates` has one for each update: "exact" if all ranks
        have the same value after a call, or "differs". Print it.
    """
    return _default.default().check(function)


@brief_traceback
def lint() -> Findings:
    """Look for mistakes over all functions, and the calls and collectives since `fork()`.

    For example: a gradient is read with no all_reduce since it was written; parameters were set
    on one rank, but never broadcast.

    Returns:
        A list of findings, errors first; empty if all is well. Print it.
    """
    return _default.default().lint()


@brief_traceback
def stats(reset: bool = False) -> Stats:
    """Where the time went, by function and collective; always on.

    Args:
        reset: begin anew after this.

    Returns:
        A dict from names to `FunctionStats`: calls, seconds of scatter, compute, wait and reduce,
        bytes of inputs, and how often which rank was the slowest. Print it.
    """
    return _default.default().stats(reset)


@brief_traceback
def timeline(path: Union[str, os.PathLike[str]]) -> Timeline:
    """Record what every rank does and when, from now on; `stop()` or `close()` writes the file.

    ::

        with synk.timeline("trace.json"):
            train_one_epoch()

    The file is a Chrome trace, which ui.perfetto.dev opens. It has a process for each rank, all
    with one clock, and spans for: an order to the ranks as a whole ("call"); its checks, plan and
    copies ("scatter"); the execution ("compute"), its slices ("slice") and what was copied for it,
    rows by index or to the device ("copy"); the collecting of results ("reduce"), collectives
    ("collective"); and in these and at an order's end, waiting for slower ranks ("wait").

    While nothing is recorded it costs nothing; recording takes a few microseconds a call. On GPUs
    "compute" is the ordering of work: the waiting for it shows where a value is asked for.

    Blocks until the workers have started. With the environment variable ``SYNKHRONOS_TIMELINE``
    set to a file's name, `fork()` records from the start.

    Args:
        path: the file to write, in a folder that is there.

    Returns:
        The recording: a context manager, with `stop()`.

    Raises:
        NotForked, Closed: no `fork()` before (RuntimeErrors).
        InputTypeError, InputValueError: `path` is no path, or cannot be written; or another
            recording is not over.
    """
    return _default.default().timeline(path)


@brief_traceback
def watch_replicas(shared_vars: Any, every: int = 100, action: str = "warn") -> ReplicaWatch:
    """Compare the ranks' values of shared variables, bit by bit, every so many calls.

    ::

        synk.watch_replicas(lasagne.layers.get_all_params(network), every=500)

    Every rank makes a digest of its values, which takes about twice as long as to add them up, and
    the digests are compared. It names each variable that differs, which ranks agree
    with which, after how many calls, and what wrote the variable last. 0.0 and -0.0 are different
    bits, and so are two NaNs with other payloads. Several watches may be on, and a watch costs
    nothing between two comparisons.

    Calls count by the orders they are part of: a `step()` with several of them counts once. Calls
    of `verify()` do not count, nor do calls that fail.

    Args:
        shared_vars: a shared variable or a list of them, of any dtype and shape, also on GPUs.
            States of random streams ought to differ, and are refused.
        every: calls from one comparison to the next.
        action: what to do where there is a difference: "warn" (`ReplicaWarning`); "raise"
            `ReplicasDiffer`, from the call after which it was found, which itself is done; or
            "broadcast": give all ranks the master's values, and warn.

    Returns:
        The watch: a context manager, with `stop()`, and `check()` to compare now.

    Raises:
        NotForked, Closed: no `fork()` before (RuntimeErrors).
        NotSharedVariable, InputTypeError, InputValueError: bad arguments.
    """
    return _default.default().watch_replicas(shared_vars, every, action)


@brief_traceback
def watch_finite(on: bool = True) -> FiniteWatch:
    """Find the first NaN or infinity from now on, with its rank, slice and row.

    ::

        with synk.watch_finite():
            train(x, y)

    While it is on, every rank looks after each execution of a function, that is of each slice, at
    the outputs that the call returns and at the new values of updated variables, as far as they
    consist of floats. If something is not finite the rank looks for the cause: in the inputs, then
    in the shared variables that the function reads; if all these are finite it runs the function
    again on fewer and fewer of its rows. Then the call fails with `NotFinite`, which has all this;
    where the rank is not the master it is the cause (``__cause__``) of `WorkerFailed`. Like any
    call that fails it has changed nothing on any rank, and the runtime goes on.

    To look takes about as long as to read the values once, on GPUs to copy them to host memory;
    off, it takes nothing. `verify()` is not watched. Blocks until the workers have started.

    Args:
        on: False to look no more.

    Returns:
        A context manager, at whose end it is as before; with `stop()`.

    Raises:
        NotForked, Closed: no `fork()` before (RuntimeErrors).
        InputTypeError: `on` is neither True nor False.
    """
    return _default.default().watch_finite(on)


@brief_traceback
def row_share() -> Any:
    """A symbolic scalar: the fraction of the call's rows that an execution computes.

    ``sum(row_share * value)`` over all ranks and slices is the exact mean of a ``value`` that
    each execution averages over its rows. It is 1 in `as_theano()` and in plain Theano functions.
    """
    return _default.default().row_share()

"""The functions of the package: each passes its arguments to the default runtime.

Arguments of 1.0 without an effect (`nccl`, `max_n_var`, `max_dim`) are accepted.
"""

from __future__ import annotations

import os
from typing import Any, List, Mapping, Optional, Sequence, Union

from synk_core import Data, FiniteWatch, Function, Stats, Timeline, Verdicts, brief_traceback

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
    backend: Optional[str] = None,
    timeout_s: float = 3600.0,
    stall_s: float = 60.0,
    atomic: bool = True,
    random_streams: str = "per_rank",
    devices: Optional[Sequence[Union[str, Sequence[str]]]] = None,
    nccl: Optional[bool] = None,
    graphs: Union[str, bool] = "auto",
    precision: str = "default",
    proof: Union[str, bool, None] = None,
    proof_every: Optional[int] = None,
) -> int:
    """Start the worker processes, and initialise this process's GPU if there are GPUs.

    Call it before anything else of this package: functions below raise `NotForked` before it, and
    `Closed` after `close()` (RuntimeErrors). Workers start while you build graphs, and are joined
    on first use. They are fresh processes, not copies of this one, so it does not matter what was
    initialised before: if this process already uses a GPU, it keeps that one.

    Args:
        n_parallel: number of ranks, including this process. By default the environment variable
            ``SYNKHRONOS_N_PARALLEL``, else one per GPU, or without GPUs one per core that this
            process may use.
        use_gpu: True requests GPUs, False CPU processes. None uses the environment variable
            ``SYNKHRONOS_USE_GPU`` (1 or 0), else GPUs if there are any that Theano can use.
        master_rank: the rank of this process, from 0 to ``n_parallel - 1``.
        profile_workers: each worker writes ``synkhronos_profile_rank<r>.prof`` into the current
            folder when it stops.
        max_n_var, max_dim: accepted as in 1.0; there is no limit.
        verbose: print progress lines.
        backend: transport of collectives: "shm" or "zmq" between processes that this one starts,
            "mpi" between those of mpiexec or srun, on any number of hosts. None uses the variable
            ``SYNKHRONOS_BACKEND``, else "mpi" if a launcher has started several, else "shm".
        timeout_s: seconds that a rank waits for the others inside one collective; then
            `WorkerStalled` is raised, and the workers are ended.
        stall_s: seconds of waiting until a `StallWarning` names the slow rank and its position in
            the program; repeated after twice as long, and so on.
        atomic: a call, collective or `step` that fails on any rank changes nothing on any rank,
            by a second copy of the updated values. False updates in place, as 1.0 did: after a
            failure, calls that use the values are refused (`ReplicasDiffer`) until `broadcast()`.
        random_streams: "per_rank" (each rank draws its own numbers, this process the same as in
            serial Theano), or "identical" (all ranks draw the same).
        devices: instead of `n_parallel` and `use_gpu`, Theano's name of each rank's device, such
            as ``["cuda0", "cuda2"]``; or several for each rank, such as ``[("cuda0", "cuda1"),
            ("cuda2", "cuda3")]``, under the context names "dev0" and "dev1".
        nccl: whether collectives of GPUs use NCCL. None uses it if it is installed; otherwise they
            use host memory, which is slower, and `fork()` prints this.
        graphs: which functions on NVIDIA GPUs are recorded as CUDA graphs and replayed: "auto"
            (or what the variable ``SYNKHRONOS_CUDA_GRAPHS`` says: ``auto``, ``always`` or ``0``)
            those that are quicker so, "always" all that can be, False none.
        precision: of float32 on NVIDIA GPUs: "default" (or what the environment variable
            ``SYNKHRONOS_PRECISION`` says) lets cuDNN round factors of convolutions to TF32, and
            computes matrix products in full; "float32" computes all in full; "tf32" lets factors
            of matrix products be rounded, too. Before Ampere all is in full.
        proof: what becomes of a call that does not give what one process would. Calls 1, 2, 4, 8
            ... of each function are proved: on their own rows, what the graph does not show to be
            exact is compared with the result of one process, and the ranks compare the variables
            that they should agree on and the code of your own operations. "raise" (or what the
            environment variable ``SYNKHRONOS_PROOF`` says: ``raise``, ``warn`` or ``0``) raises
            `NotExact` before anything has changed on any rank; "warn" warns (`ProofWarning`); False
            proves nothing.
        proof_every: prove at least one of so many calls, besides those; for long trainings.

    Returns:
        The number of ranks.

    Raises:
        AlreadyForked: `fork()` was already called (a RuntimeError); call `close()` first.
        InputValueError, InputTypeError: a number out of range, or an invalid name.
        StartError: requested GPUs or NCCL cannot be used, or a process could not be started.
    """
    settings = dict(locals())
    for name in ("max_n_var", "max_dim", "verbose"):
        del settings[name]
    settings.update(_default.from_environment(settings))
    report = _default.reporter(verbose)
    return _default.open_default(**settings, report=report, track=track).size


@brief_traceback
def close() -> None:
    """Stop the workers and free their memory. Called at exit; does nothing if nothing is open.

    Afterwards you can call `fork()` again; earlier functions no longer work. `Data` stay readable.
    """
    _default.close_default()


@brief_traceback
@_default.refuses_other_names
def function(
    inputs: Any,
    outputs: Any = None,
    bcast_inputs: Any = None,
    updates: Any = None,
    givens: Any = None,
    sliceable_shareds: Any = None,
    *,
    row_axis: Optional[Mapping[Any, int]] = None,
    name: Optional[str] = None,
    mode: Any = None,
    on_unused_input: Optional[str] = None,
    allow_input_downcast: Optional[bool] = None,
    no_default_updates: Union[bool, Sequence[Any], None] = None,
    profile: Any = None,
    accept_inplace: Optional[bool] = None,
    rebuild_strict: Optional[bool] = None,
    trust_input: Optional[bool] = None,
    proof: Union[str, bool, None] = None,
) -> Function:
    """Build a function that all ranks compute together: replaces `theano.function()`.

    Args:
        inputs: list of Theano variables to scatter: each rank gets a share of the rows (entries
            along axis 0).
        outputs: a variable, or ``(variable, op)``, or a list of these, or None. The op combines
            the ranks' results: "avg" (default; weighted by rows, so it is the serial result for
            any split), "sum", "max", "min", "prod", "gather" (concatenated in input order), or
            None (the master's own result).
        bcast_inputs: list of Theano variables whose whole value each rank gets.
        updates: as in Theano: pairs ``(shared variable, new value)`` or a dict; or triples with
            an op for accumulation over slices ("avg" by default, "last" for integers; also "sum",
            "max", "min", "prod"). Each rank updates its own variables.
        givens: as in Theano.
        sliceable_shareds: list of shared variables that hold data rows, for `batch_s` and slices.
        row_axis: dict from inputs to the axis along which their rows lie, as in ``{x: 1}`` for x of
            shape (time, rows, features); 0 for the others. The function gets x with its axes as
            they are, and no copy has to be made.
        name: for messages, `stats()` and timelines.
        mode, on_unused_input, allow_input_downcast, no_default_updates, profile: as in
            `theano.function()` or `pytensor.function()`. None leaves the choice to it.
        accept_inplace, rebuild_strict, trust_input: likewise; PyTensor alone has `trust_input`.
        proof: "raise", "warn" or False, for this function in place of that of `fork`; False for one
            that takes steps of each rank's own on purpose (local SGD).

    Raises:
        SpecError: wrong form of an argument, or an average of integers (a TypeError).
        OpError, InputValueError: unknown op; unused sliceable variable (ValueErrors).
    """
    given = {name: value for name, value in locals().items() if value is not None}
    return _default.default().function(**{"inputs": None, **given})


@brief_traceback
def distribute() -> None:
    """Replicate functions and their shared variables in the workers; blocks until they have them.

    You can call it any number of times: it only sends new functions and values, and a shared
    variable stays one variable over all functions. A function that was not distributed is
    distributed at its first call.
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
        value: contents, anything that `numpy.asarray` accepts.
        var: a Theano variable to take dtype and ndim from.
        dtype, ndim: dtype and number of dimensions; by default those of `value`.
        shape: shape to allocate, filled with zeros if there is no `value`.
        minibatch: the rows are those of a minibatch: with ``batch=`` a list, array or mask, its row
            i belongs to entry i; with an int or a slice, its row 0 is the lowest row selected.
        force_cast: convert `value` to dtype even if values may change.
        oversize: factor of the allocated size, at least 1.
        name: name for messages.

    Raises:
        InputTypeError: dtype and ndim are unknown, the dtype is none of numbers or booleans, or
            `value` does not match.
    """
    return _default.default().data(**locals())


@brief_traceback
def step(*acts: Any) -> List[Any]:
    """Perform several calls and collectives as one order to the ranks.

    ::

        loss, _, _ = synk.step(
            grad.delayed(x, y, batch=rows), synk.delayed.all_reduce(g, weights=grad), update
        )

    Wrong arguments are found before anything is sent. If a part fails, the whole step is undone,
    unless ``fork(atomic=False)``: then the parts before it have been performed.

    Args:
        *acts: the calls and collectives, in order: ``f.delayed(...)`` for calls,
            ``synk.delayed.all_reduce(...)`` and so on for collectives; a function without inputs
            may stand for its call.

    Returns:
        A list of their results. Inputs are read when the step begins.

    Raises:
        All errors of calls and collectives.
    """
    return _default.default().step(*acts)


@brief_traceback
def check(function: Function) -> Verdicts:
    """Check whether the ranks' results of each output combine to the serial result.

    It examines the graph: a sum, mean, maximum, minimum or product over rows, or a gathered
    row-wise result, combines exactly by the op of that name. A standard deviation over the batch,
    or a softmax over axis 0, does not. `function()` warns if an output is certain to be wrong.

    Returns:
        A list with a verdict for each output: "exact", "wrong" or "unknown" (it is proved when the
        function is called, see `fork`), with the reason and a cure. Its attribute `updates` has one
        for each update. Print it.
    """
    return _default.default().check(function)


@brief_traceback
def stats(reset: bool = False) -> Stats:
    """Return the time spent by each function and collective; always on.

    Args:
        reset: start again from zero after this.

    Returns:
        A dict from names to `FunctionStats`: calls, seconds of scatter, compute, wait and reduce,
        bytes of inputs, and how often each rank was the slowest. Print it. Its `speed_up` says how
        many times as fast as one rank alone all of it was, at best.
    """
    return _default.default().stats(reset)


@brief_traceback
def timeline(path: Union[str, os.PathLike[str]]) -> Timeline:
    """Record the activity of every rank from now on; `stop()` or `close()` writes the file.

    ::

        with synk.timeline("trace.json"):
            train_one_epoch()

    The file is a Chrome trace, which ui.perfetto.dev opens. It has a process for each rank, all
    with the same clock, and spans for an order as a whole ("call"), its plan and copies ("scatter",
    "copy"), the execution ("compute", "slice"), results ("reduce"), collectives ("collective"), and
    waiting for slower ranks ("wait"). On GPUs "compute" is the time to launch work.

    Blocks until the workers have started. If the environment variable ``SYNKHRONOS_TIMELINE`` is
    set to a file name, `fork()` records from the start. Recording takes microseconds per call.

    Args:
        path: the file to write, in an existing folder.

    Returns:
        The recording: a context manager, with `stop()`.

    Raises:
        InputTypeError, InputValueError: `path` is not a path, or cannot be written; or another
            recording is running.
    """
    return _default.default().timeline(path)


@brief_traceback
def seed(n: int) -> None:
    """Seed what draws random numbers, on every rank.

    ::

        synk.seed(7)

    - The random streams of all functions built so far. A stream's own ``seed(n)``, and a state that
      you set in this process, also reach all ranks, with the next call that uses it: this process
      draws the same numbers as in serial Theano, each other rank draws from a stream made from that
      state and its rank (with ``fork(random_streams="identical")``, from that state).
    - NumPy's and Python's global generators, for operations that use them: here as with
      ``np.random.seed(n)`` and ``random.seed(n)``, elsewhere from `n` and the rank. Those functions
      themselves seed this process alone, because nobody notices them; but `fork()` seeds the
      workers from the state of NumPy's global generator at that moment.

    Blocks until the workers have started. If it fails, streams keep their states on all ranks.

    Args:
        n: from 0 to 2**32 - 1.

    Raises:
        InputValueError: `n` is something else.
    """
    _default.default().seed(n)


@brief_traceback
def watch_finite(on: bool = True) -> FiniteWatch:
    """Find the first NaN or infinity from now on, with its rank, slice and row.

    ::

        with synk.watch_finite():
            train(x, y)

    Every rank checks the floats among outputs and updated variables after each execution of a
    function or slice. If a value is not finite, the rank searches for the cause: in the inputs, in
    the shared variables that the function reads, then by running the function on fewer and fewer
    rows. The call fails with `NotFinite`, which contains the result; from a worker it is the cause
    (``__cause__``) of `WorkerFailed`. Like any failed call, it changes nothing on any rank.

    A check takes about as long as to read the values once, on GPUs to copy them to host memory.
    `verify()` is not watched. Blocks until the workers have started.

    Args:
        on: False to switch it off.

    Returns:
        A context manager that restores the previous state at its end; with `stop()`.

    Raises:
        InputTypeError: `on` is neither True nor False.
    """
    return _default.default().watch_finite(on)


@brief_traceback
def row_share() -> Any:
    """Return a symbolic scalar: the fraction of the call's rows that an execution computes.

    ``sum(row_share * value)`` over all ranks and slices is the exact mean of a ``value`` that
    each execution averages over its rows. It is 1 in `as_theano()` and in plain Theano functions.
    """
    return _default.default().row_share()

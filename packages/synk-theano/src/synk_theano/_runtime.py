"""`Runtime`: the master and its workers.

::

    user ── Function, Collectives ──> Runtime.run(command) ──┬──> Worker 1: Rank.perform ─┐
            (checks, plan)             send, perform itself  ├──> Worker 2: Rank.perform ─┤ communicator
                                                             └──> master:   Rank.perform ─┘

1. `Function.__call__` checks its arguments and plans (`_plan`): which rank takes which rows.
2. `Runtime.run` numbers the command, sends it to every worker, and performs it in the master.
3. `Rank.perform` does a rank's part, the same code everywhere (`_share`, `_collectives`); arrays
   are read from shared memory, results go through the communicator.
4. A barrier ends the command. A rank that failed has declined; its peers have left the command;
   its `Failure` comes over the channel and is raised here.

While the master waits it watches the processes: one that is gone ends the call and the runtime.
"""

from __future__ import annotations

import atexit
import itertools
import os
import pickle
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np
import synk_comm
import synk_shm
import theano
import threadpoolctl

from . import _environ
from ._channel import ChannelClosed
from ._compile import compile_form
from ._data import Data
from ._function import Function
from ._messages import (
    PLAIN,
    ArrayRef,
    Call,
    Collective,
    Command,
    Distribute,
    Envelope,
    Form,
    Hello,
    Join,
    Recipe,
    Stop,
)
from ._pickling import dumps
from ._pool import WorkerPool
from ._rank import Rank, pack
from ._share import LoadedFunction
from ._shared_api import Collectives
from ._spec import FunctionSpec, make_spec
from .exceptions import Closed, InputTypeError, InputValueError, StartError, WorkerDied, WorkerFailed

DEFAULT_TIMEOUT_S = 3600.0
"""How long a rank may wait for the others inside one collective."""


class Runtime:
    """Starts workers, replicates functions and variables, runs commands; a context manager.

    Args:
        n_parallel: number of ranks, the master included; by default one per available core.
        use_gpu: None or False for CPU processes. GPUs are not supported by this version.
        master_rank: the rank of the calling process.
        profile_workers: every worker writes ``synkhronos_profile_rank<r>.prof`` when it stops,
            in the current folder, for `pstats`.
        backend: "shm" or "zmq", what collectives go through.
        timeout_s: seconds that a rank waits for the others in a collective before all give up.
        report: takes lines of progress.

    Returns at once: workers start in the background, and are awaited when first needed.

    Raises:
        InputValueError: a number out of range.
        StartError: GPUs were demanded, or a process could not be started.
    """

    def __init__(
        self,
        n_parallel: Optional[int] = None,
        use_gpu: Optional[bool] = None,
        master_rank: int = 0,
        profile_workers: bool = False,
        *,
        backend: str = "shm",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        if use_gpu:
            raise StartError(
                "use_gpu=True: this version works on CPU processes only; use use_gpu=None or False"
            )
        cores = _environ.available_cores()
        self.size = cores if n_parallel is None else _whole(n_parallel, 1, None, "n_parallel")
        self.master = _whole(master_rank, 0, self.size - 1, "master_rank")
        self.collectives = Collectives(self)
        self._report = report
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._serials = itertools.count(1)
        self._keys = itertools.count(1)
        self._released: Deque[int] = deque()
        self._staged: Dict[Tuple[Any, ...], Data] = {}
        self._specs: Dict[int, FunctionSpec] = {}
        self._names: Dict[int, str] = {}
        self._sent_variables = 0
        self._sent_forms: Set[Tuple[int, Form]] = set()
        self._row_share: Any = None
        self._joined = False
        self._closed: Optional[str] = None
        self._doing = "start"
        self._owner = os.getpid()
        self._rank = Rank(self.master, self.size, self.master)
        self._group = synk_comm.create_group(self.size, backend) if self.size > 1 else None
        what = f"{self.size} of {cores} detected" if self.size <= cores else f"{self.size} processes on {cores}"
        report(f"Synkhronos attempting to use {what} CPU cores...")
        self._pool = self._start_workers(profile_workers)
        self._thread_limits: Any = None
        atexit.register(self.close)

    def _start_workers(self, profile: bool) -> WorkerPool:
        environment = _environ.worker_environment(self.size)
        options = _environ.theano_options()
        starts = []
        for rank in range(self.size):
            if rank == self.master or self._group is None:
                continue
            path = os.path.join(os.getcwd(), f"synkhronos_profile_rank{rank}.prof")
            hello = Hello(
                rank=rank,
                size=self.size,
                master=self.master,
                ticket=self._group.ticket(rank),
                timeout_s=self._timeout_s,
                sys_path=_environ.import_path(),
                directory=os.getcwd(),
                theano_config=options,
                profile_path=path if profile else None,
            )
            starts.append((hello, environment))
        return WorkerPool(starts, self._group.fds if self._group is not None else ())

    @property
    def closed(self) -> bool:
        """Whether the runtime is of no more use."""
        return self._closed is not None

    @property
    def worker_pids(self) -> Tuple[int, ...]:
        """Process ids of the workers, in rank order without the master."""
        return self._pool.pids

    def __repr__(self) -> str:
        state = f"closed: {self._closed}" if self.closed else "ready" if self._joined else "starting"
        return f"<Runtime rank {self.master} of {self.size}, {state}>"

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # What users build.

    def function(self, inputs: Any, outputs: Any = None, **kwargs: Any) -> Function:
        """Build a function; see `synkhronos.function`."""
        self._require_open()
        spec = make_spec(inputs, outputs, **kwargs)
        plain = compile_form(spec, PLAIN)
        function_id = len(self._specs)
        for variable in plain.get_shared():
            self._rank.registry.number_of(variable)
        self._check_sliceable(spec, plain)
        recipe = self._recipe(spec, function_id, plain)
        loaded = self._rank.functions[function_id] = LoadedFunction(recipe)
        loaded.forms[PLAIN] = plain
        self._specs[function_id] = spec
        self._names[function_id] = recipe.name
        return Function(spec, function_id, plain, self)

    def _check_sliceable(self, spec: FunctionSpec, plain: Any) -> None:
        used = {id(variable.container.storage) for variable in plain.get_shared()}
        for variable in spec.sliceable:
            if id(variable.container.storage) not in used:
                raise InputValueError(
                    f"{variable} is listed in sliceable_shareds, but the function does not use it"
                )

    def _recipe(self, spec: FunctionSpec, function_id: int, plain: Any) -> Recipe:
        number_of = self._rank.registry.number_of
        row_share = None
        if self._row_share is not None and self._row_share in plain.get_shared():
            row_share = number_of(self._row_share)
        return Recipe(
            function_id=function_id,
            name=spec.name or f"function {function_id}",
            output_ops=spec.output_ops,
            update_ops=tuple(op for _, _, op in spec.updates),
            updated=tuple(number_of(target) for target, _, _ in spec.updates),
            sliceable=tuple(number_of(variable) for variable in spec.sliceable),
            row_share=row_share,
            n_scattered=spec.n_scattered,
            n_broadcast=len(spec.inputs) - spec.n_scattered,
        )

    def row_share(self) -> Any:
        """A symbolic scalar; see `synkhronos.row_share`."""
        self._require_open()
        if self._row_share is None:
            one = np.asarray(1.0, dtype=theano.config.floatX)
            self._row_share = theano.shared(one, name="row_share")
        return self._row_share

    def data(
        self,
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
        """Make a `Data`; see `synkhronos.data`."""
        self._require_open()
        if var is not None:
            dtype = var.dtype if dtype is None else dtype
            ndim = var.ndim if ndim is None else ndim
        if value is not None:
            array = np.asarray(value)
            dtype = array.dtype if dtype is None else dtype
            ndim = array.ndim if ndim is None else ndim
        if shape is not None and ndim is None:
            ndim = len(shape)
        if dtype is None or ndim is None:
            raise InputTypeError(
                f"data(): got dtype={dtype}, ndim={ndim}, expected both to be known; give a value, "
                f"a Theano variable (var=), or dtype= and ndim= (or shape=)"
            )
        data = Data(next(self._keys), dtype, ndim, minibatch, name, self._released.append)
        if value is not None:
            data.set_value(value, force_cast=force_cast, oversize=oversize)
        if shape is not None:
            data.set_shape(shape, oversize=oversize)
        return data

    new_data = data

    # What functions and collectives need of the runtime.

    def stage(self, slot: Tuple[Any, ...], array: np.ndarray) -> ArrayRef:
        """Copy `array` into shared memory that is reused for `slot`."""
        data = self._staged.get(slot)
        if data is None or data.dtype != array.dtype or data.ndim != array.ndim:
            data = self._staged[slot] = self.data(dtype=array.dtype, ndim=array.ndim)
        data.set_value(array)
        return data.ref()

    def require_form(self, function_id: int, form: Form) -> None:
        """Have `form` of the function on every rank."""
        self._require_open()
        loaded = self._rank.functions[function_id]
        if form not in loaded.forms:
            compiled = compile_form(self._specs[function_id], form)
            for variable in compiled.get_shared():
                self._rank.registry.number_of(variable)
            loaded.forms[form] = compiled
        if (function_id, form) not in self._sent_forms:
            self._send_new()

    def numbers(self, variables: Sequence[Any]) -> Tuple[int, ...]:
        """The variables' numbers; those that the workers do not have yet are sent first."""
        self._require_open()
        numbers = tuple(self._rank.registry.number_of(variable) for variable in variables)
        if len(self._rank.registry) > self._sent_variables:
            self._send_new()
        return numbers

    def distribute(self) -> None:
        """Replicate what is new; see `synkhronos.distribute`."""
        self._require_open()
        self._await_workers()
        self._report("Synkhronos distributing functions...")
        start = time.monotonic()
        self._send_new()
        self._report(f"...distribution complete ({time.monotonic() - start:.0f} s).")

    def _send_new(self) -> None:
        """Send the variables, functions and forms that the workers do not have yet."""
        functions = self._rank.functions
        forms = [
            (function_id, form, compiled)
            for function_id, loaded in functions.items()
            for form, compiled in loaded.forms.items()
            if (function_id, form) not in self._sent_forms
        ]
        known = {function_id for function_id, _ in self._sent_forms}
        recipes = [loaded.recipe for i, loaded in functions.items() if i not in known]
        if self.size > 1:
            # Functions first: pickling them can bring variables to light.
            pickled_functions = dumps((recipes, forms), self._rank.registry)
            records = self._rank.registry.records(self._sent_variables)
            pickled_variables = dumps(records, self._rank.registry)
            parts, extents, length = pack(pickled_variables, pickled_functions)
            payload = synk_shm.empty((length,), np.uint8)
            for start, stop, part in parts:
                payload[start:stop] = np.frombuffer(part, np.uint8)
            key = next(self._keys)
            ref = ArrayRef(key, synk_shm.handle(payload))
            try:
                self.run(Distribute(ref, extents[0], extents[1]))
            finally:
                self._released.append(key)
            self._limit_threads()
        self._sent_variables = len(self._rank.registry)
        self._sent_forms.update((function_id, form) for function_id, form, _ in forms)

    def _limit_threads(self) -> None:
        """Keep the master to its share of the cores too; repeated, as libraries get loaded."""
        if any(name in os.environ for name in _environ.THREAD_VARIABLES):
            return
        limit = _environ.threads_per_rank(self.size)
        limits = threadpoolctl.threadpool_limits(limit)
        if self._thread_limits is None:
            self._thread_limits = limits

    # Running commands.

    def run(self, command: Command) -> Any:
        """Have all ranks perform `command`; blocks until they have.

        Raises:
            WorkerFailed: user code raised on a worker; the runtime stays usable.
            WorkerDied: a worker process is gone; the runtime is closed.
            Exception: what user code raised in the master.
        """
        with self._lock:
            self._require_open()
            self._await_workers()
            forget = tuple(self._released.popleft() for _ in range(len(self._released)))
            envelope = Envelope(next(self._serials), command, forget)
            self._doing = self._describe(command)
            try:
                self._pool.send(pickle.dumps(envelope, protocol=5), self._doing)
                return self._rank.perform(envelope)
            except synk_comm.PeerDeclined as declined:
                raise self._worker_failure(declined, envelope.serial) from None
            except WorkerDied as died:
                self._end(str(died))
                raise
            except synk_comm.PeerLost as lost:
                self._break(lost)
                raise
            except BaseException as error:
                if not self._rank.in_step:
                    self._break(error)
                raise

    def _break(self, error: BaseException) -> None:
        """The ranks are out of step: close, and name a dead worker if that was the cause."""
        try:
            self._pool.check(self._doing)
        except WorkerDied as died:
            self._end(str(died))
            raise died from error
        self._end(f"{type(error).__name__} in {self._doing}: {error}")

    def _worker_failure(self, declined: Any, serial: int) -> BaseException:
        rank = min(declined.reasons)
        failure = self._pool.failure(rank, serial)
        if failure is None:
            return WorkerFailed(rank, self._doing, declined.reasons[rank])
        error = WorkerFailed(rank, self._doing, failure.traceback)
        if failure.error is not None:
            try:
                error.__cause__ = pickle.loads(failure.error)
            except Exception as broken:
                error.__cause__ = broken
        return error

    def _describe(self, command: Command) -> str:
        if isinstance(command, Call):
            return f"function {self._names[command.function_id]!r}"
        if isinstance(command, Collective):
            return f"{command.kind}()"
        return "distribute()"

    def _await_workers(self) -> None:
        """Wait for the workers' start, and join them; returns at once the second time."""
        if self._joined:
            return
        try:
            self._pool.wait_ready()
            self._pool.send(pickle.dumps(Envelope(next(self._serials), Join())), "start")
            ticket = None if self._group is None else self._group.ticket(self.master)
            self._rank.join(ticket, self._timeout_s, self._watch)
        except BaseException as error:
            self._end(f"its workers could not be started ({type(error).__name__})")
            raise
        if self._group is not None:
            self._group.close()
        self._joined = True
        noun = "process" if self.size == 1 else "processes"
        self._report(f"Synkhronos: {self.size} CPU {noun} initialized, master rank: {self.master}")

    def _watch(self) -> None:
        self._pool.check(self._doing)

    def _require_open(self) -> None:
        if self._closed is not None:
            raise Closed(f"this runtime is closed ({self._closed}); call fork() to start a new one")

    def close(self) -> None:
        """Stop the workers and free what they hold. Idempotent; returns within seconds."""
        if self._closed is not None or os.getpid() != self._owner:
            return
        self._closed = "by close()"
        self._pool.stop(pickle.dumps(Envelope(next(self._serials), Stop())))
        self._release()

    def _end(self, reason: str) -> None:
        """Close after a failure: do not ask the workers."""
        self._closed = reason
        self._pool.kill()
        self._release()

    def _release(self) -> None:
        atexit.unregister(self.close)
        self._rank.close()
        if self._group is not None:
            self._group.close()
        self._staged.clear()
        if self._thread_limits is not None:
            self._thread_limits.restore_original_limits()
            self._thread_limits = None


def _whole(value: Any, lowest: int, highest: Optional[int], what: str) -> int:
    """
    Raises:
        InputValueError: `value` is no int in the range.
    """
    is_int = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_int or value < lowest or (highest is not None and value > highest):
        span = f"at least {lowest}" if highest is None else f"from {lowest} to {highest}"
        raise InputValueError(f"{what}: got {value!r}, expected an int {span}")
    return int(value)

"""`Runtime`: the master and its workers, put together.

::

    user ─ Function, Collectives ─> Orders.perform ─┬─> worker 1: Rank.perform ─┐
           (checks, plans: acts)    (one order)     ├─> worker 2: Rank.perform ─┤ they
                                                    └─> master:   Rank.perform ─┘ collect

1. `Function.__call__` plans (`_master.planner`): checks, and which rank takes which rows.
   What the workers lack is sent first (`Distributor`); arrays lie in shared memory (`DataStore`).
2. A call becomes a numbered *act* in the `ActTable`; a call like an earlier one finds its act
   again. `Orders.perform` makes an order of such acts, and a `Record` of it for its observers.
3. `Rank.perform` does one rank's part, the same code everywhere: it reads the order
   (`_rank.rank`) and performs its acts (`_rank.call`, `_rank.collectives`): arrays are read from
   shared memory, results go through the communicator.
4. The order ends when all ranks are known to have come to its end: by a barrier, the collecting of
   outputs, or an all_reduce. A rank that failed has declined; its peers have left the order; its
   traceback comes over its channel and is raised by `Orders.perform` (`_master.failures`).
"""

from __future__ import annotations

import atexit
from contextlib import nullcontext
from time import perf_counter
from typing import Any, Callable, ContextManager, Dict, List, Optional, Tuple, TypeVar, Union

from synk_comm import MisuseError, processes
from synk_core._graph.devices.assignment import Devices, choose, choose_in_world, choose_nccl
from synk_core._graph.environment import compiler_note
from synk_core._graph.random_streams import global_seed, is_random_state
from synk_core._graph.rowwise.check import Verdicts, check_spec, warn_of_wrong
from synk_core._graph.spec import FunctionSpec, make_spec
from synk_core._master.builder import Builder
from synk_core._master.lifecycle import Lifecycle
from synk_core._master.orders import Orders
from synk_core._master.store import DataStore, Standing
from synk_core._plan.rows import is_int
from synk_core._shield import require_frames
from synk_core._text import shown
from synk_core._wire.data import Data
from synk_core._wire.messages import Collective
from synk_core._wire.settings import Settings
from synk_core._workers.interrupts import whole
from synk_core._workers.mpi_worker import serve_world
from synk_core.engine import TITLE
from synk_core.exceptions import InputTypeError, InputValueError, StartError
from synk_core.mpi import world_for

from .collectives import Collectives, DelayedCollectives, listed_variables
from .features import RuntimeFeatures
from .function import Function, as_delayed

T = TypeVar("T")


class Runtime(RuntimeFeatures):
    """Starts workers, replicates functions and variables, runs orders; a context manager.

    Args:
        report: takes lines of progress; None keeps quiet.
        track: shows work that takes long: given a description, a context manager.
        options: those of features: `proof`, `proof_every`, `timeline`.

    The others are those of `synkhronos.fork`, but for the environment variables that `fork` reads.
    Returns when this process has its device; workers start in the background, and are awaited when
    first needed. From then on, new shared variables of floats lie on the device, and functions are
    computed there.

    Raises:
        InputValueError, InputTypeError: a number out of range, or an unknown backend or device.
        StartError: this is a worker, or below one; GPUs or NCCL were demanded and are not there, a
            device cannot be used, or a process could not be started.
    """

    def __init__(
        self,
        n_parallel: Optional[int] = None,
        use_gpu: Optional[bool] = None,
        master_rank: int = 0,
        profile_workers: bool = False,
        *,
        backend: Optional[str] = None,
        timeout_s: float = Settings.timeout_s,
        stall_s: float = Settings.stall_s,
        atomic: bool = True,
        random_streams: str = "per_rank",
        devices: Optional[Devices] = None,
        nccl: Optional[bool] = None,
        graphs: Union[str, bool] = "auto",
        precision: str = "default",
        report: Optional[Callable[[str], None]] = None,
        track: Callable[[str], ContextManager[Any]] = nullcontext,
        **options: Any,
    ) -> None:
        try:
            processes.require_leave("fork()")
        except MisuseError as error:
            raise StartError(f"{error}, or start it with `synkhronos run`") from None
        require_frames()
        world = world_for(backend)
        if world is not None and world.rank:
            serve_world(world)
            # What the program does next is the master's affair.
            raise SystemExit(0)
        at_start = self._take_options(options)
        Function.take_options(self, options)
        for name in options:
            raise TypeError(f"Runtime() got an unexpected keyword argument {name!r}")
        if world is None:
            ranks = choose(n_parallel, use_gpu, master_rank, devices)
        else:
            ranks = choose_in_world(world, n_parallel, use_gpu, master_rank, devices)
        self.size, self.master = ranks.size, int(master_rank)
        through_nccl, note = choose_nccl(ranks, nccl)
        settings = Settings(
            backend=backend or ("shm" if world is None else "mpi"),
            timeout_s=timeout_s,
            stall_s=stall_s,
            atomic=atomic,
            random_streams=random_streams,
            nccl=through_nccl,
            graphs=graphs,
            precision=precision,
            profile=profile_workers,
            at_start=at_start,
            seed=global_seed(),
        )
        self._report, self._track = report or (lambda _line: None), track
        self.specs: Dict[int, FunctionSpec] = {}
        for line in (*ranks.lines, *note, *compiler_note()):
            self._report(line)

        def start() -> None:
            self._store = DataStore(named=world is not None)
            self._lifecycle = Lifecycle(
                ranks,
                self.master,
                settings,
                report=self._report,
                store=self._store,
                world=world,
            )
            self._rank = self._lifecycle.rank
            self.registry = self._rank.registry
            self._builder = Builder(self._rank, self.specs, track)
            self.orders = Orders(self._lifecycle, self._builder)
            self._lifecycle.before_close = self.orders.stop_workers
            self._lifecycle.on_end = self._forget_all
            for act in at_start:
                act.perform(self._rank, act.argument)
            self._begin()
            Function.begin(self)
            # The builder last: others read the specs that it forgets.
            self.orders.observers.add(self._builder)
            atexit.register(self.close)
            self.collectives = Collectives(self.orders)
            self.delayed = DelayedCollectives(self.orders)

        def undo() -> None:
            if hasattr(self, "_lifecycle"):  # if not, it has undone its own start
                self._lifecycle.close()

        whole(start, undo, ends=False)

    @property
    def closed(self) -> bool:
        """Whether the runtime is of no more use."""
        return self._lifecycle.closed

    @property
    def worker_pids(self) -> Tuple[int, ...]:
        """Process ids of the workers, in rank order without the master."""
        return self._lifecycle.pool.pids

    def __repr__(self) -> str:
        return f"<Runtime rank {self.master} of {self.size}, {self._lifecycle.state}>"

    def __enter__(self) -> Runtime:  # noqa: PYI034 - typing.Self is not there on Python 3.9
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the workers and free what they hold. Idempotent; returns within seconds."""
        if self._lifecycle.is_foreign:
            return
        require_frames()
        atexit.unregister(self.close)
        try:
            self._finish()
        finally:
            self._lifecycle.close()

    def _forget_all(self) -> None:
        self.orders.close()
        self.specs.clear()
        atexit.unregister(self.close)

    def function(
        self,
        inputs: Any,
        outputs: Any = None,
        **kwargs: Any,
    ) -> Function:
        """Build a function; see `synkhronos.function`."""
        self._lifecycle.require_open()
        settings = Function.of_function(self, kwargs)
        spec, plain = self._builder.compile(make_spec(inputs, outputs, **kwargs))
        with self.orders.lock:
            function = self._entered(spec, plain, settings)
        if self.size > 1:
            warn_of_wrong(spec)
        return function

    def twin(self, spec: FunctionSpec) -> Function:
        """Build another form of a function for a feature; the caller holds the lock."""
        return self._entered(*self._builder.compile(spec), Function.of_function(self, {}))

    def _entered(self, spec: FunctionSpec, plain: Any, settings: Dict[str, Any]) -> Function:
        function_id = self._builder.enter(spec, plain)
        function = Function(spec, function_id, plain, self.orders, self, settings)
        self.orders.garbage.watch(function, function_id)
        return function

    def row_share(self) -> Any:
        """Return a symbolic scalar; see `synkhronos.row_share`."""
        self._lifecycle.require_open()
        return self._builder.row_share()

    def data(self, value: Any = None, var: Any = None, **settings: Any) -> Data:
        """Make a `Data`; see `synkhronos.data`."""
        return self.orders.make_data(value, var, **settings)

    def distribute(self) -> None:
        """Replicate new functions and variables; see `synkhronos.distribute`."""
        with self.orders.lock:
            self._lifecycle.require_open()
            with self._track("waiting for the workers' start"):
                self._lifecycle.await_workers()
            self._report("Synkhronos distributing functions...")
            start = perf_counter()
            with self._track("distributing functions and variables"):
                self.orders.distributor.send(self._rank.functions)
        self._report(f"...distribution complete ({perf_counter() - start:.0f} s).")

    def step(self, *acts: Any) -> List[Any]:
        """Perform several calls and collectives as one; see `synkhronos.step`."""
        orders = self.orders
        with orders.lock:
            delayed = [as_delayed(act, place, orders) for place, act in enumerate(acts)]
            for act in delayed:
                act.rehearse()
            called = [act.function for act in delayed]
            prepared = [
                act.prepare(Standing(i, frozenset(n for n in called[:i] if n is not None)))
                for i, act in enumerate(delayed)
            ]
            if not prepared:
                return []
            ready, origins = zip(*prepared)
            results = orders.perform(ready, origins)
            return [act.finish(result) for act, result in zip(delayed, results)]

    def seed(self, n: int) -> None:
        """Seed on every rank what draws random numbers; see `synkhronos.seed`."""
        if not is_int(n) or not 0 <= n < 2**32:
            raise InputValueError(f"seed(): got {shown(n)}, expected an int from 0 to 2**32 - 1")
        with self.orders.lock, self._rank.registry.held() as variables:
            states = [variable for variable in variables.values() if is_random_state(variable)]
            numbers = self.orders.numbers(states)
            self.orders.perform_own(Collective("reseed", numbers, {"seed": int(n)}), "seed()")

    def check(self, function: Function) -> Verdicts:
        """Check whether each output is decomposable over rows; see `synkhronos.check`."""
        if not isinstance(function, Function) or not function.belongs_to(self.orders):
            raise InputTypeError(
                f"check(): got {shown(function)}, expected what function() of this runtime has "
                f"returned, not a {TITLE} function"
                + ("; check its grad_function" if hasattr(function, "grad_function") else "")
            )
        return check_spec(function.spec)

    def let_drift(self, shared_vars: Any) -> None:
        """Declare that the ranks' values of these variables drift apart on purpose.

        A rule that combines them now and then does so (`synkhronos.extensions.sync`): proofs accept
        that the ranks differ in them, and in what only they are computed from.

        Args:
            shared_vars: one variable or a list of them.
        """
        with self.orders.lock:
            self.registry.drifting.update(self.orders.numbers(listed_variables(shared_vars)))

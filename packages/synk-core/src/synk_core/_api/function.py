"""`Function`: what `synk.function()` returns, in place of a `theano.Function`."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple

from synk_core._graph.spec import FunctionSpec, unnamed
from synk_core._graph.values import on_host
from synk_core._master.acts import Prepared
from synk_core._master.orders import Orders
from synk_core._master.planner import PlannedCall, Planner, Signature
from synk_core._master.store import Standing
from synk_core._plan.arguments import DEFAULT, Options
from synk_core._plan.rows import kept
from synk_core._text import shown
from synk_core._tracebacks import brief_traceback, shortened
from synk_core._wire.data import Data
from synk_core._wire.messages import Prefetch
from synk_core.exceptions import InputTypeError

from .features import FunctionFeatures

_options: Any = tuple.__new__  # the class's own constructor is written in Python


class Delayed:
    """A call or a collective for `step()`; made by ``f.delayed(...)`` and ``delayed.all_reduce``.

    Given its position in the step, `prepare` checks and stages it, and returns the act, and the
    lowest row that it takes; `function` is the number of the one that it calls, if any.
    """

    def __init__(
        self,
        orders: Orders,
        prepare: Callable[[Standing], Tuple[Prepared, int]],
        finish: Callable[[Any], Any],
        function: Optional[int] = None,
    ) -> None:
        self.orders = orders
        self.prepare = prepare
        self.finish = finish
        self.function = function

    def rehearse(self) -> None:
        """Do the part that is impossible within a step."""


class DelayedCall(Delayed):
    """A call for `step()`, whose rows can be prefetched; made by ``f.delayed(...)``."""

    def __init__(self, function: Function, values: Sequence[Any], options: Options) -> None:
        super().__init__(function.orders, self._prepare, self._finish, function.number)
        self._function = function
        self._values = values
        self._options = options
        self._place: Optional[int] = None
        self._staged: Optional[Tuple[PlannedCall, int]] = None
        self._ready = False

    def rehearse(self) -> None:
        """Rehearse the call before the step, if it is special."""
        if self._function.is_due():
            self._function.rehearse(self._values, self._options)

    def prefetch(self) -> Delayed:
        """Return an act that takes the rows of this call, and starts to copy them to the GPUs.

        ::

            call, following = f.delayed(x, batch=first), f.delayed(x, batch=second)
            synk.step(call, following.prefetch())
            synk.step(following)

        As the last act of a step it costs no time while the GPUs compute. The inputs are read then
        or later: they must not change until the call was performed. The result is the same
        without it, and on processors there is nothing to gain. Bad arguments are reported by the
        call itself.
        """
        return Delayed(self.orders, self._prepare_prefetch, self._prefetched)

    def _prepare_prefetch(
        self,
        standing: Standing,  # noqa: ARG002 - as of any act
    ) -> Tuple[Prepared, int]:
        orders, self._ready = self.orders, False
        if self._place is None:
            self._place = orders.store.take_place(self)
        act, origin, self._staged = Prefetch(0), 0, None
        try:
            call, origin = self._function.planner.prepare(
                self._values, {}, self._options, self._place
            )
        except Exception:  # noqa: BLE001 - the call raises it, when it is made
            orders.require_ready()
        else:
            act, self._staged = Prefetch(call.number), (call, origin)
        prepared = orders.acts.find(act.key)
        if prepared is None:
            prepared = Prepared(act, self._function.label)
            orders.enter(prepared, act.key)
        return prepared, origin

    def _prefetched(self, _result: Any) -> None:
        self._ready = True

    def _prepare(self, standing: Standing) -> Tuple[Prepared, int]:
        # What failed may have been done on some ranks; arrays that moved have no plan any more.
        ready, self._ready = self._ready, False
        staged = self._staged if ready and self._staged and self._staged[0].number else None
        if staged is None:
            values, options = self._values, self._options
            staged = self._function.planner.prepare(values, {}, options, standing.place)
        call, origin = staged
        if self._function.is_due():
            return self._function.variant(call, self._options), origin
        return call, origin

    def _finish(self, result: Any) -> Any:
        if self._place is not None:
            self.orders.store.release_place(self._place)
            self._place = self._staged = None
        return self._function.finish(result, self._options)


OF_THE_RUNTIME = {"asks_from", "attach", "begin", "before_slices", "belongs_to", "calls", "finish"}
OF_THE_RUNTIME |= {"is_due", "label", "number", "of_function", "orders", "planner", "rehearse"}
OF_THE_RUNTIME |= {"reported", "spec", "take_options", "variant"}
"""Attributes that completion leaves out."""


class Function(FunctionFeatures):
    """A Theano function that is computed by all ranks at once.

    Attributes:
        rows: how many rows each rank computed in the last call, or None before the first: the
            weights with which ``all_reduce(..., weights=f)`` averages exactly.
        number: of the function in its runtime.
        spec: the arguments of ``function()``.
        orders: of the runtime.
        label: its name in figures.
        calls: that were performed.
        planner: checks its calls, and copies their arrays.
    """

    def __init__(
        self,
        spec: FunctionSpec,
        function_id: int,
        plain: Any,
        orders: Orders,
        runtime: Any,
        settings: Dict[str, Any],
    ) -> None:
        self.spec = spec
        self.number = function_id
        self._plain = plain
        self.orders = orders
        self._signature = Signature(spec)
        self.label = spec.name or unnamed(function_id)
        self.calls = 0
        self.planner = Planner(self, self._signature)
        self.rows: Optional[Tuple[int, ...]] = None
        returns: Dict[str, Any] = {"single": itemgetter(0), "none": lambda _values: None}
        self._returned: Callable[[Any], Any] = returns.get(spec.returns, list)
        self.attach(runtime, **settings)

    @property
    def name(self) -> Optional[str]:
        """As in Theano functions."""
        return self.spec.name

    @property
    def output_modes(self) -> Tuple[Optional[str], ...]:
        """The reduce operation of each output."""
        return self.spec.output_ops

    @property
    def update_modes(self) -> Tuple[str, ...]:
        """The operation with which each update accumulates over slices."""
        return tuple(op for _, _, op in self.spec.updates)

    def get_shared(self) -> List[Any]:
        """Return the shared variables that the function reads or updates."""
        shared: List[Any] = self._plain.get_shared()
        return shared

    def belongs_to(self, orders: Orders) -> bool:
        """Return whether the runtime of these orders has built it."""
        return self.orders is orders

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be copied or pickled: its compiled forms are in the memory of all "
            f"ranks; build it again with function(...), from the same graph"
        )

    def __dir__(self) -> List[str]:
        return sorted({*super().__dir__()} - OF_THE_RUNTIME)

    def __repr__(self) -> str:
        return (
            f"<synkhronos function {self.name or ''}({self._signature}) on "
            f"{self.orders.size} ranks>"
        )

    def __call__(
        self,
        *args: Any,
        output_subset: Optional[Sequence[int]] = None,
        batch: Any = None,
        batch_s: Any = None,
        num_slices: int = 1,
        **kwargs: Any,
    ) -> Any:
        """Compute on all ranks; blocks until all are done.

        Scattered inputs are split along axis 0 into contiguous shares in rank order whose sizes
        differ by at most one, larger shares first. Each rank runs the Theano function on its share,
        and the outputs are collected in the master: ``avg`` (weighted by rows: exact for any
        split), ``sum``, ``max``, ``min``, ``prod``, ``gather`` (concatenated in input order) or
        None (the master's own result). Ranks without rows only make the updates that no row goes
        into, such as those of a counter. In a call without any rows all ranks do so, and the master
        computes the outputs.

        Args:
            *args: a `Data`, or anything that `numpy.asarray` takes, for each input in order; or
                one dict from the inputs' variables (or names) to these. Of a file's array, such as
                a memory map, an HDF5 dataset or a Zarr array, only the selected rows are read.
            output_subset: positions of the outputs to return, as in Theano.
            batch: rows of the scattered inputs to use, before they are split: an int (the first
                so many), slice, list or array of ints, or boolean mask.
            batch_s: rows of the sliceable shared variables to use, on each rank of its own: one
                of these kinds for all ranks, or a list of them, one per rank.
            num_slices: compute each rank's share in so many pieces and accumulate, to save
                memory. Updates are computed from the original values in every piece, accumulated,
                and applied once.
            **kwargs: inputs by the names of their variables.

        Raises:
            InputTypeError, InputValueError, BatchError, OpError: bad arguments; nothing was sent.
            NestedCall: the runtime is at work already, in this thread.
            NotExact: one process would compute something else; see ``fork(proof=...)``. Nothing has
                changed on any rank.
            WorkerFailed: the computation raised on a worker.
            WorkerDied: a worker process is gone, and the runtime is closed.
        """
        __tracebackhide__ = True  # of pytest and IPython
        options = DEFAULT
        if not (
            output_subset is batch is batch_s is None
            and type(num_slices) is int
            and num_slices == 1
        ):
            options = _options(Options, (output_subset, batch, batch_s, num_slices))
        try:
            with self.orders.lock:
                is_due = self.calls >= self.asks_from and self.is_due()
                if is_due:
                    self.rehearse(self._signature.ordered(args, kwargs), options)
                call, origin = self.planner.prepare(args, kwargs, options, 0)
                act = self.variant(call, options) if is_due else call
                (result,) = self.orders.perform((act,), (origin,))
                return self.finish(result, options)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            raise shortened(error)  # noqa: B904 - the same error

    @brief_traceback
    def delayed(
        self,
        *args: Any,
        output_subset: Optional[Sequence[int]] = None,
        batch: Any = None,
        batch_s: Any = None,
        num_slices: int = 1,
        **kwargs: Any,
    ) -> DelayedCall:
        """Return a call for `step()`, which performs it: arguments and result as in `__call__`.

        Inputs are read when the step begins, or by `DelayedCall.prefetch` before; rows now.
        """
        values = self._signature.ordered(args, kwargs)
        options = Options(kept(output_subset), kept(batch), kept(batch_s), num_slices)
        return DelayedCall(self, values, options)

    @brief_traceback
    def as_theano(
        self, *args: Any, output_subset: Optional[Sequence[int]] = None, **kwargs: Any
    ) -> Any:
        """Compute in the master only, as a plain Theano function would.

        Args:
            *args, **kwargs: arrays or `Data`, as in `__call__`, without the other options of it.
            output_subset: positions of the outputs to return, as in Theano.
        """
        values = self._signature.ordered(args, kwargs)
        wanted = self.planner.wanted(output_subset)
        self.orders.enter_device()
        arrays = (v.array if isinstance(v, Data) else v for v in values)
        plain = self._plain(*arrays)
        if wanted is not None:  # not every linker of Theano's can leave the others out
            plain = [plain[position] for position in wanted]
        values = [on_host(value) for value in plain]
        return values if wanted is not None else self._returned(values)

    @brief_traceback
    def build_inputs(
        self,
        *args: Any,
        force_cast: bool = False,
        oversize: float = 1.0,
        minibatch: Any = False,
        **kwargs: Any,
    ) -> Any:
        """Make a `Data` for each input, as `synk.data()` does, with the input's dtype and ndim.

        Args:
            *args, **kwargs: values, given as in a call.
            minibatch: True, False, or a list with one of these per input.

        Returns:
            A `Data` for a function of one input, else a tuple of them.
        """
        values = self._signature.ordered(args, kwargs)
        flags = list(minibatch) if isinstance(minibatch, (list, tuple)) else None
        if flags is not None and len(flags) != len(values):
            raise InputTypeError(
                f"minibatch: got {len(flags)} entries, expected one for each of "
                f"{len(values)} inputs"
            )
        for place, value in enumerate(values):
            if value is None:
                raise InputTypeError(
                    f"{self._signature.what(place)}: got None, expected a value; without one yet, "
                    f"make a Data with data(var=...)"
                )
        datas = tuple(
            self.orders.make_data(
                value,
                variable,
                force_cast=force_cast,
                oversize=oversize,
                minibatch=minibatch if flags is None else flags[i],
                name=variable.name,
            )
            for i, (value, variable) in enumerate(zip(values, self._signature.variables))
        )
        return datas[0] if len(datas) == 1 else datas

    def finish(self, result: Any, options: Options) -> Any:
        """Return what the caller gets; the master's result is that of a call that is done.

        Last in a call: a warning of a report may be an error, where the user's filters make it one.
        """
        self.rows = result.counts
        self.calls += 1
        if result.report is not None:
            self.reported(result.report)
        values = result.values
        return self._returned(values) if options.output_subset is None else values


def as_delayed(act: Any, place: int, orders: Orders) -> Delayed:
    """Return an act of a step as `Delayed`; a function without inputs stands for its call."""
    if isinstance(act, Function):
        act = act.delayed()
    if not isinstance(act, Delayed):
        raise InputTypeError(
            f"step(): got {shown(act)} of type {type(act).__name__} as act {place}, expected "
            f"f.delayed(...), delayed.all_reduce(...) and the like, or a function without "
            f"inputs"
        )
    if act.orders is not orders:
        raise InputTypeError(f"step(): act {place} belongs to another runtime")
    return act

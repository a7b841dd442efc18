"""The engine's names (`synk_core.engine`) with PyTensor 3.3.

`synk_theano._engine` documents them: only differences have a text here.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import warnings
from contextlib import nullcontext
from functools import partial
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple

import numba
import numpy as np
import pytensor as library
import pytensor.tensor as T
from numba.core.registry import cpu_target
from pytensor.compile import maker as _maker
from pytensor.compile.executor import Function
from pytensor.compile.inner_function import HasInnerFunction
from pytensor.compile.io import In, Out
from pytensor.compile.maker import FunctionMaker
from pytensor.compile.mode import get_mode
from pytensor.compile.ops import FromFunctionOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import DisconnectedInputError, DisconnectedType
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.destroyhandler import DestroyHandler
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import HasMultipleInnerGraph, Op
from pytensor.graph.replace import clone_replace as clone
from pytensor.graph.traversal import ancestors
from pytensor.graph.traversal import graph_inputs as leaves_of
from pytensor.graph.type import Type
from pytensor.graph.utils import MissingInputError
from pytensor.link.basic import Container, JITLinker
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.numba.linker import NumbaLinker
from pytensor.link.utils import raise_with_op as _raise_with_op
from pytensor.raise_op import Assert
from pytensor.scalar.basic import Mul, ScalarInnerGraphOp, Second, upcast
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.random.type import RandomType as RandomStateType
from pytensor.tensor.random.type import random_generator_type as random_state_type
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import Subtensor, get_idx_list
from pytensor.tensor.type import TensorType
from pytensor.tensor.type_other import NoneTypeT

from synk_core.engine import replaced

from ._jax import backend as DEVICES

ADAPTER = __name__
NAME, TITLE, FLAGS = "pytensor", "PyTensor", "PYTENSOR_FLAGS"

FLATTENS = False

# As in functions that users build with PyTensor alone.
warnings.filterwarnings("ignore", "Numba will use object mode to run AllReduce")

# ---- options --------------------------------------------------------------------------------


def options() -> Dict[str, Any]:
    names = [
        name
        for name, option in library.config._config_var_dict.items()
        if option.mutable
        and hasattr(option, "val")
        and (name == "cxx" or not callable(option.default))
        and (not option.is_default or str(option.val) != str(option.default))
    ]
    # The first read makes PyTensor search for a BLAS with g++, and warn without one. Numba's code
    # needs none: so the option is not read unless its value is known.
    if not _is_numba_default() or hasattr(type(library.config).blas__ldflags, "val"):
        names.append("blas__ldflags")
    return {name: getattr(library.config, name) for name in names}


def _is_numba_default() -> bool:
    return isinstance(get_mode(None).linker, NumbaLinker)


def worker_variables(on_device: bool) -> Dict[str, str]:
    """The user's flags are in the environment. A rank without a device must not take a part of
    GPUs' memory, as JAX does when it first computes, be it on the processor."""
    return {} if on_device else {"JAX_PLATFORMS": "cpu"}


def slow_without_compiler() -> bool:
    """Return False: Numba brings a compiler."""
    return False


def worker_cache() -> None:
    """Import the loader of Numba's functions while the program builds its graphs: that is slow."""
    if _is_numba_default():
        importlib.import_module("pytensor.link.numba.dispatch")
        cpu_target.typing_context.refresh()


def refresh_cache() -> None:
    """Do nothing: PyTensor looks for what others have compiled before it compiles."""


# ---- graphs ----------------------------------------------------------------------------------


def inner_outputs(op: Any) -> Sequence[Any]:
    graphs = op.inner_graphs.values() if isinstance(op, HasMultipleInnerGraph) else ()
    return [variable for graph in graphs for variable in graph.outputs]


def inner_graph(op: Any) -> Tuple[Sequence[Any], Sequence[Any]]:
    return op.fgraph.inputs, op.fgraph.outputs


def with_pattern(variable: Any, like: Any) -> Any:
    """Only an index makes PyTensor forget a known length of 1."""
    pairs = list(enumerate(zip(variable.broadcastable, like.broadcastable)))
    for axis, (mine, wanted) in pairs:
        if mine and not wanted:
            variable = T.take(variable, T.arange(like.shape[axis]), axis=axis)
    axes = [axis for axis, (mine, wanted) in pairs if wanted and not mine]
    return T.specify_broadcastable(variable, *axes) if axes else variable


def shared_like(variable: Any, value: Any, name: str) -> Any:
    shape = tuple(1 if is_one else None for is_one in variable.broadcastable)
    return library.shared(value, name=name, shape=shape)


def is_random(variable: Any) -> bool:
    return isinstance(variable.type, RandomStateType)


# ---- building functions ----------------------------------------------------------------------


def build(inputs: Any, outputs: Any, *, no_default_updates: Any = False, **arguments: Any) -> Any:
    """PyTensor deprecates the argument alone. A function that is compiled as a whole is not linked
    yet: see `machine_of`. JAX is optional, and its import takes long."""
    if arguments.get("mode") is None:
        arguments["mode"] = DEVICES.mode()
    with _constructing(no_default_updates=no_default_updates), _unlinked_as_a_whole():
        function = library.function(inputs, outputs, **arguments)
    if isinstance(function.maker.linker, JAXLinker):
        from synk_pytensor._jax.rows import use_rows
        from synk_pytensor._jax.translation import Translation

        use_rows(function.maker.fgraph)
        Translation(function.maker.fgraph)  # so that errors are raised here
    return function


def without_test_values() -> Any:
    return nullcontext()


linked_by_kind = without_test_values
"""C code is linked quickly; of Numba's, see `link`."""


def out_of_place() -> Any:
    return _constructing(in_place=False)


def _unlinked_as_a_whole() -> Any:
    """For the duration of the block, link no function that is compiled as a whole: Numba never
    releases its arguments, such as the user's shared variables; and see `_JitMachine`."""
    plain = FunctionMaker.create

    def create(self: Any, *arguments: Any, **settings: Any) -> Any:
        if not isinstance(self.linker, JITLinker) or self.profile:
            return plain(self, *arguments, **settings)
        ends = [
            [Container(end, [None]) for end in ends]
            for ends in (self.fgraph.inputs, self.fgraph.outputs)
        ]
        returns = self.outputs, self.unpack_single, self.return_none
        return Function(_unlinked, *ends, *returns, self, self.trust_input, self.name)

    return replaced(FunctionMaker, "create", create)


def _unlinked() -> NoReturn:
    raise NotImplementedError("the function is to be built again")


def _constructing(in_place: bool = True, **changed: Any) -> Any:
    """For the duration of the block, clone the graphs of new functions with changed arguments."""
    plain = _maker.construct_function_ins_and_outs

    def construct(*arguments: Any, **settings: Any) -> Any:
        inputs, outputs = plain(*arguments, **{**settings, **changed})
        for item in inputs:
            if item.shared and not in_place:
                item.mutable = False
        return inputs, outputs

    return replaced(_maker, "construct_function_ins_and_outs", construct)


# ---- compiled functions ----------------------------------------------------------------------


class _TranslatingLinker(JAXLinker):
    """PyTensor's, with translations of our own; random states stay what they are."""

    def fgraph_convert(self, fgraph: Any, **_settings: Any) -> Any:
        from synk_pytensor._jax.translation import Translation

        return Translation(fgraph)

    def jit_compile(self, fn: Any) -> Any:
        return fn

    def create_thunk_inputs(self, storage_map: Any) -> Any:
        return [storage_map[variable] for variable in self.fgraph.inputs]


class _JitMachine:
    """A machine for a function that is compiled as a whole, in place of PyTensor's.

    Arguments have one memory layout, because Numba compiles anew for each; results are NumPy's,
    also those of JAX. It makes the updates, too, so that a call needs no wrapper.
    """

    need_update_inputs = False

    def __init__(self, function: Any) -> None:
        thunk = function.vm
        self._is_jax = isinstance(function.maker.linker, JAXLinker)
        self.translation = thunk.jit_fn if self._is_jax else None
        self.jit_fn = thunk.jit_fn.run if self._is_jax else thunk.jit_fn
        self.allow_gc = thunk.allow_gc
        self.storage_map = thunk.storage_map
        self._graph = function.maker.fgraph
        self._is_numba = isinstance(function.maker.linker, NumbaLinker)
        self._inputs = thunk.inputs
        self._outputs = thunk.outputs
        self._updates = [
            (thunk.inputs[target], place)
            for place, target in (self._graph.update_mapping or {}).items()
        ]

    def __call__(self) -> Any:
        results = self.bare(len(self._outputs))()
        for place, value in zip(self._outputs, results):
            place[0] = value
        return results

    def bare(self, count: int) -> Callable[..., Any]:
        """Return a callable of the first inputs that returns the first `count` outputs.

        It puts neither into the function's containers.
        """
        jit_fn, inputs, updates = self.jit_fn, self._inputs, self._updates
        is_numba = self._is_numba

        def call(*arguments: Any) -> Any:
            values = [*arguments, *[place[0] for place in inputs[len(arguments) :]]]
            for position, value in enumerate(values):
                if type(value) is np.ndarray and not value.flags.carray:
                    values[position] = np.array(value, order="C")
            try:
                results = jit_fn(*values)
            except Exception:
                node = next((v.owner for v in self._graph.outputs if v.owner is not None), None)
                if node is not None and not self._is_jax:  # whose errors name the node
                    _raise_with_op(self._graph, node, self)
                raise
            if not is_numba and not self._is_jax:
                # A copy, because a result that others keep may be read-only.
                results = [r if type(r) is np.ndarray else np.array(r) for r in results or ()]
            for place, number in updates:
                place[0] = results[number]
            return list(results[:count]) if count else []

        return call

    def compile(self) -> None:
        """Compile, as only Numba can before it knows shapes, or load another process's code."""
        if not self._is_numba:
            return
        values = tuple(
            np.empty((0,) * variable.ndim, variable.dtype)
            if isinstance(variable.type, TensorType)
            else place[0]
            for variable, place in zip(self._graph.inputs, self._inputs)
        )
        takes_all = inspect.getfullargspec(self.jit_fn.py_func).varargs is not None
        self.jit_fn.compile(tuple(map(numba.typeof, (values,) if takes_all else values)))


def compile_ahead(function: Any) -> None:
    if hasattr(function.vm, "compile"):
        function.vm.compile()


def machine_of(function: Any) -> Any:
    return None if function.vm is _unlinked else function.vm


def foreign_linker(function: Any) -> str:
    linker = function.maker.linker
    is_foreign = isinstance(linker, JITLinker) and not isinstance(linker, (NumbaLinker, JAXLinker))
    return type(linker).__name__ if is_foreign else ""


raise_with_op = partial(_raise_with_op, None)  # of no graph


def extras_of(function: Any) -> Optional[Tuple[str, ...]]:
    """For JAX, the lines that made the nodes, for its errors."""
    if not isinstance(function.maker.linker, JAXLinker):
        return None
    from synk_pytensor._jax.operations import origin

    lines: Dict[str, str] = {}
    return tuple(lines.setdefault(*2 * [origin(n)]) for n in function.maker.fgraph.toposort())


def _put_origins(flat: Any, graph: Any) -> None:
    """Give the nodes of a graph the lines that made them."""
    nodes = {number: i for i, (*_, made) in enumerate(flat.numbered_nodes()) for number in made}
    pending, seen = list(zip(graph.outputs, flat.outputs)), set()
    while pending:
        variable, number = pending.pop()
        position = nodes.get(number)
        if position is not None and position not in seen:
            seen.add(position)
            variable.owner.outputs[0].tag.synk_origin = flat.extras[position]
            pending += zip(variable.owner.inputs, flat.nodes[position][1])


def link(flat: Any, graph: Any, inputs: Sequence[Any]) -> Any:
    """PyTensor has to know that a graph is prepared, and needs an `Out` for each update."""
    n_outputs = len(flat.borrowed_outputs)
    borrows = [*flat.borrowed_outputs, *[False] * (len(graph.outputs) - n_outputs)]
    maker = FunctionMaker(
        inputs,
        [Out(variable, borrow=borrow) for variable, borrow in zip(graph.outputs, borrows)],
        mode=flat.mode,
        accept_inplace=True,
        on_unused_input="ignore",
        fgraph=graph,
        name=flat.name,
        no_fgraph_prep=True,
    )
    maker.outputs = maker.outputs[:n_outputs]
    maker.unpack_single, maker.return_none = flat.returns
    if not isinstance(maker.linker, JITLinker):
        return DEVICES.fitted(maker.create([item.value for item in inputs]))
    is_jax = isinstance(maker.linker, JAXLinker)
    if is_jax:
        maker.linker = _TranslatingLinker().accept(graph)
        _put_origins(flat, graph)
    with _translated_by_kind():
        function = maker.create([item.value for item in inputs])
    function.vm = (DEVICES.machine(function) if is_jax else None) or _JitMachine(function)
    return DEVICES.fitted(function)


_ALIKE_BY_TYPE = (DimShuffle, Dot, Elemwise)
"""Operations whose translation depends on nothing but themselves and their variables' types."""


def _translated_by_kind() -> Any:
    """For the duration of the block, translate operations for Numba once for each kind.

    Each takes a millisecond, also if all code is loaded from the cache: most of the time in which a
    rank gets a large function; and there are few kinds.
    """
    from pytensor.link.numba.dispatch import basic

    while _to_register:
        _register(basic, *_to_register.pop())
    plain = basic.numba_funcify_ensure_cache
    known: Dict[Any, Any] = {}

    def translated(op: Any, *arguments: Any, node: Any = None, **settings: Any) -> Any:
        if type(op) not in _ALIKE_BY_TYPE:
            return plain(op, *arguments, node=node, **settings)
        kind = op, *(tuple(v.type for v in ends) for ends in (node.inputs, node.outputs))
        if kind not in known:
            known[kind] = plain(op, *arguments, node=node, **settings)
        return known[kind]

    return replaced(basic, "numba_funcify_ensure_cache", translated)


_to_register: List[Tuple[type, Callable[..., Any]]] = []


def run_in_python(op_type: Any, run: Any) -> None:
    """Numba would run the operation's `perform`, which belongs to a node, so that no other process
    could load the code that calls it."""
    _to_register.append((op_type, run))


def _register(basic: Any, op_type: type, run: Callable[..., Any]) -> None:
    """Give Numba an operation of `run_in_python`; `basic` takes long to import."""

    def translated(op: Any, node: Any = None, **_settings: Any) -> Tuple[Any, str]:
        variable = node.inputs[0]
        result = basic.get_numba_type(variable.type, layout="C")
        dtype, properties = variable.dtype, tuple(getattr(op, name) for name in op.__props__)

        def called(*inputs: Any) -> Any:
            x = inputs[0]
            with numba.objmode(out=result):
                out = run(x, dtype, *properties)
            return out, np.zeros((), np.int8)

        name = f"{run.__module__}.{run.__qualname__}"
        key = name, dtype, variable.ndim, properties
        return basic.numba_njit(called), hashlib.sha256(repr(key).encode()).hexdigest()

    basic.register_funcify_and_cache_key(op_type)(translated)


def state_of(value: Any) -> Any:
    if isinstance(value, ScalarInnerGraphOp):
        return value  # compared by its graph
    if isinstance(value, HasMultipleInnerGraph):
        return None
    return vars(value) if isinstance(value, (Op, Type)) else None


# ---- pickling --------------------------------------------------------------------------------


def reduced(obj: Any) -> Any:
    """The compiled form of an inner graph stays here: the receiver links it again."""
    if not isinstance(obj, HasInnerFunction):
        return None
    make, arguments, state, *more = obj.__reduce_ex__(2)
    return make, arguments, {**state, "_fn": None}, *more

"""The engine's names (`synk_core.engine`) with Theano 1.0.5."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, Sequence, Tuple

import theano as library
import theano.tensor as T
from theano import clone
from theano.compile import FunctionMaker, In, SharedVariable
from theano.compile.function_module import Function
from theano.compile.io import Out
from theano.compile.mode import get_mode
from theano.compile.ops import FromFunctionOp
from theano.configparser import _config_var_list, change_flags
from theano.gof import (
    Apply,
    Constant,
    Container,
    DestroyHandler,
    FunctionGraph,
    MissingInputError,
    Op,
    PureOp,
    Type,
    Variable,
    vm,
)
from theano.gof.graph import ancestors
from theano.gof.graph import inputs as leaves_of
from theano.gof.link import raise_with_op
from theano.gradient import DisconnectedInputError, DisconnectedType
from theano.scalar import Mul, Second, upcast
from theano.scalar.basic import Composite, specific_out, transfer_type
from theano.tensor import TensorType
from theano.tensor.basic import Reshape
from theano.tensor.elemwise import DimShuffle, Elemwise
from theano.tensor.opt import Assert
from theano.tensor.raw_random import RandomStateType, random_state_type
from theano.tensor.subtensor import Subtensor, get_idx_list
from theano.tensor.type_other import NoneTypeT

from synk_core.engine import replaced
from synk_theano_compat.locks import refresh_cache, worker_cache

from ._gpu import backend as DEVICES
from ._linking import linked_by_kind, processor_flags, quick_outputs, take_processor_flags

ADAPTER = __name__
"""The module that workers import."""

NAME, TITLE, FLAGS = "theano", "Theano", "THEANO_FLAGS"
"""Its module, its name in messages, and the environment variable of its options."""

FLATTENS = True
"""Whether `flat_updates` is of use: linkers run operations in Python as they are."""

# ---- options --------------------------------------------------------------------------------

_NO_DEVICE = "device=cpu,force_device=True,init_gpu_device=,contexts="
"""Flags with which Theano initializes no device when it is imported."""


def options() -> Dict[str, Any]:
    """Return the options that programs set after the import of the engine: workers need them."""
    return {
        option.fullname: option.val
        for option in _config_var_list
        # Not those that Theano finds by itself, except a BLAS, which takes long to find.
        if option.allow_override
        and hasattr(option, "val")
        and (option.fullname == "blas.ldflags" or not callable(option.default))
        and (not option.is_default or str(option.val) != str(option.default))
    }


def worker_variables(on_device: bool) -> Dict[str, str]:
    """Return the environment variables for the engine's import in a worker.

    With `on_device` the worker initializes a device of its own later, not that of the user's flags.
    """
    flags = [os.environ.get(FLAGS, "")]
    # Whether flags name a GPU that Theano has already reported as unusable.
    named = str(library.config.device).startswith(("cuda", "opencl"))
    lacks_it = named and getattr(getattr(library, "gpuarray", None), "pygpu", None) is None
    if on_device or lacks_it:
        flags.append(_NO_DEVICE)
    if not hasattr(vm, "CVM"):  # Theano was imported here without a compiler
        flags.append("cxx=")
    # Theano's mark for forks of a process that uses a GPU: workers are no forks.
    return {FLAGS: ",".join(filter(None, flags)), "THEANO_GPU_IS_ALREADY_ACTIVE": ""}


def slow_without_compiler() -> bool:
    """Return whether functions are computed in Python, because there is no C++ compiler."""
    return not hasattr(vm, "CVM") and "cxx=" not in os.environ.get(FLAGS, "")


# ---- graphs ----------------------------------------------------------------------------------


def inner_outputs(op: Any) -> Sequence[Any]:
    """Return the outputs of an operation's inner graphs (Scan, OpFromGraph), if it has some."""
    for held in (getattr(op, name, None) for name in ("outputs", "local_outputs")):
        if isinstance(held, (list, tuple)) and all(isinstance(v, Variable) for v in held):
            return held
    return ()


def inner_graph(op: Any) -> Tuple[Sequence[Any], Sequence[Any]]:
    """Return inputs and outputs of the graph in an OpFromGraph."""
    return op.local_inputs, op.local_outputs


def with_pattern(variable: Any, like: Any) -> Any:
    """Return a tensor with the broadcast pattern of another one."""
    if variable.broadcastable == like.broadcastable:
        return variable
    return T.patternbroadcast(variable, like.broadcastable)


def shared_like(variable: Any, value: Any, name: str) -> Any:
    """Return a new shared variable with the broadcast pattern of another one."""
    return library.shared(value, name=name, broadcastable=variable.broadcastable)


def is_random(variable: Any) -> bool:
    """Return whether a shared variable is the state of a random stream: it is tagged."""
    return bool(getattr(variable.tag, "is_rng", False))


# ---- building functions ----------------------------------------------------------------------


def build(inputs: Any, outputs: Any, *, no_default_updates: Any = False, **arguments: Any) -> Any:
    """Compile a function, as the engine's `function` does.

    `no_default_updates` is True, or a list of variables whose default updates are left out.
    """
    return library.function(inputs, outputs, no_default_updates=no_default_updates, **arguments)


def without_test_values() -> Any:
    """For the duration of the block, compute no test values."""
    return change_flags(compute_test_value="off")


def out_of_place() -> Any:
    """For the duration of the block, build functions that overwrite no shared variable's value.

    The engine works in place on updated variables: a failing function would leave half a value. No
    other thread of this package may build functions meanwhile.
    """
    # The name in `theano.compile` is the function, not the module.
    pfunc: Any = sys.modules["theano.compile.pfunc"]
    plain = pfunc.orig_function

    def orig_function(inputs: Any, *arguments: Any, **settings: Any) -> Any:
        for item in inputs:
            if item.shared:
                item.mutable = False
        return plain(inputs, *arguments, **settings)

    return replaced(pfunc, "orig_function", orig_function)


# ---- compiled functions ----------------------------------------------------------------------


def machine_of(function: Any) -> Any:
    """Return the callable that runs a compiled function's nodes; None if the function cannot run,
    but has to be flattened and rebuilt."""
    return function.fn


def compile_ahead(_function: Any) -> None:
    """Compile the code of the first call now, or load it if another process has compiled it."""


def foreign_linker(_function: Any) -> str:
    """Return the name of a linker of a library that neither runs operations in Python nor takes
    NumPy's random states; "" for any other linker."""
    return ""


def extras_of(function: Any) -> Any:
    """Return the data, to be sent, that `link` needs besides a compiled function's graph."""
    return function.maker.output_keys, processor_flags()


def link(flat: Any, graph: Any, inputs: Sequence[Any]) -> Any:
    """Make a function of an optimised graph, with the settings of a `FlatFunction`.

    The graph's outputs are the function's, then the new values of its updates. `inputs` has an `In`
    for each of its inputs.
    """
    output_keys, flags = flat.extras
    ends = zip(graph.outputs, flat.borrowed_outputs)
    maker = FunctionMaker(
        inputs,
        [Out(variable, borrow=borrow) for variable, borrow in ends],
        mode=flat.mode,
        accept_inplace=True,
        on_unused_input="ignore",
        fgraph=graph,
        output_keys=output_keys,
        name=flat.name,
    )
    maker.unpack_single, maker.return_none = flat.returns
    take_processor_flags(flags)
    with quick_outputs(graph):
        return maker.create([item.value for item in inputs], trustme=True)


def run_in_python(_op_type: Any, _run: Any) -> None:
    """Make functions that are compiled as a whole call `run` for operations of a type.

    `run` takes the first input, its dtype, and the operation's properties; it returns the first
    output, of the input's type. Further outputs are zeros of int8.
    """


_MADE_OF_ATTRIBUTES = (PureOp, Type, specific_out, transfer_type)


def state_of(value: Any) -> Any:
    """Return the identity of one of the engine's own objects: equal ones may compute differently.

    It is a mapping of attributes, or has a hash; None if the object equals only itself.
    """
    if hasattr(value, "fn"):
        return None  # Scan and similar ops hold a compiled function
    if isinstance(value, Composite):
        # Its C code: the graph that it was made from is a different object each time.
        value.init_c_code()
        return (value._c_code, tuple(value.inputs_type), tuple(value.outputs_type))
    return vars(value) if isinstance(value, _MADE_OF_ATTRIBUTES) else None


# ---- pickling --------------------------------------------------------------------------------


def reduced(obj: Any) -> Any:
    """Return the reduced form of an engine's object that must not be pickled as it is, or None."""
    # It is compared by identity, so a second one must not be made.
    return (_random_state_type, ()) if type(obj) is RandomStateType else None


def _random_state_type() -> Any:
    return random_state_type

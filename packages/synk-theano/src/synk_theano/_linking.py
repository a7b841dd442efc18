"""Link the nodes of a graph kind by kind, because linking takes most of the time of a build.

Theano takes a millisecond for each node to find its module by a key of all that its C code depends
on. A network of 2600 nodes has 90 kinds, and all nodes of a kind get the same module with other
storage: Theano links the first node of each kind, and the others take its module.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional, Sequence, Tuple, Type

from theano.gof.cc import _CThunk
from theano.gof.cmodule import GCC_compiler
from theano.gof.graph import Constant
from theano.gof.op import Op
from theano.gof.utils import MethodNotDefined

from synk_core.engine import replaced

_linking = threading.RLock()


@contextmanager
def linked_by_kind() -> Iterator[None]:
    """For the duration of the block, link each kind of nodes once.

    Other threads wait at theirs; none may build functions by Theano itself meanwhile.
    """
    kinds: Dict[Any, Callable[..., Any]] = {}

    def make_c_thunk(
        self: Any, node: Any, storage_map: Any, compute_map: Any, no_recycling: Any
    ) -> Any:
        key = None if no_recycling else _key(self, node)
        kind = None if key is None else kinds.get(key)
        if kind is not None:
            return kind(node, storage_map, compute_map)
        try:
            thunk = link_alone(self, node, storage_map, compute_map, no_recycling)
        except (NotImplementedError, MethodNotDefined) as error:
            if key is not None:
                kinds[key] = partial(_without_code, type(error), error.args)
            raise
        if key is not None:
            kinds[key] = _linker_of(node, thunk.thunk)
        return thunk

    with _linking:
        link_alone = Op.make_c_thunk
        with replaced(Op, "make_c_thunk", make_c_thunk):
            yield


def quick_outputs(graph: Any) -> Any:
    """For the duration of the block, answer `variable in graph.outputs` without a search.

    The linker tests each input of each node, and a training function has hundreds of outputs.
    """
    return replaced(graph, "outputs", _Outputs(graph.outputs))


class _Outputs(List[Any]):
    def __init__(self, variables: List[Any]) -> None:
        super().__init__(variables)
        self._members = frozenset(variables)

    def __contains__(self, variable: object) -> bool:
        return variable in self._members


def processor_flags() -> Optional[Tuple[str, ...]]:
    """Return the compiler's flags for this processor, if they are known.

    They are part of every module's key, and Theano runs the compiler four times to find them.
    """
    flags = GCC_compiler.march_flags
    return None if flags is None else tuple(flags)


def take_processor_flags(flags: Optional[Tuple[str, ...]]) -> None:
    """Use the flags of another process on this machine, if this one has none yet."""
    if flags is not None and GCC_compiler.march_flags is None:
        GCC_compiler.march_flags = list(flags)


def _key(op: Any, node: Any) -> Any:
    """Return all that the key of a node's C module depends on; None if that has no hash.

    The op, types, constants, which inputs are the same, and the module's further parameters.
    """
    first: Dict[Any, int] = {}
    inputs: List[Any] = []
    for place, variable in enumerate(node.inputs):
        before = first.setdefault(variable, place)
        if before != place:
            inputs.append(before)
        elif isinstance(variable, Constant):
            inputs.append((variable.type, variable.signature()))
        else:
            inputs.append(variable.type)
    # The op in the key has its own parameters; some ops have other parameters for each node.
    params = None if type(op).get_params is Op.get_params else node.run_params()
    key = (type(op), op, tuple(inputs), tuple(v.type for v in node.outputs), params)
    try:
        hash(key)
    except Exception:  # noqa: BLE001 - constants of any type may have no hash
        return None
    return key


def _without_code(error: Type[Exception], arguments: Sequence[Any], *_: Any) -> NoReturn:
    """Raise the error of `Op.make_c_thunk` for a kind of nodes that are computed in Python."""
    raise error(*arguments)


def _linker_of(node: Any, example: Any) -> Callable[..., Any]:
    """Return a linker of other nodes of this node's kind; `example` is its C thunk."""
    (copy,) = example.nodes
    # The module takes inputs that come twice only once, and some parameters after the outputs.
    passed = [
        place
        for place, variable in enumerate(node.inputs)
        if all(variable is not before for before in node.inputs[:place])
    ]
    known = {*copy.inputs, *copy.outputs}
    constants = [
        variable.data
        for variable, task, _ in example.init_tasks
        if isinstance(variable, Constant) and task == "init" and variable not in known
    ]

    def link(node: Any, storage_map: Any, compute_map: Any) -> Any:
        inputs = [storage_map[variable] for variable in node.inputs]
        outputs = [storage_map[variable] for variable in node.outputs]
        error_storage = [None, None, None]
        cthunk = example.module.instantiate(
            error_storage,
            *[inputs[place] for place in passed],
            *outputs,
            *[[data] for data in constants],
        )
        thunk = _CThunk(cthunk, example.init_tasks, example.tasks, error_storage, example.module)
        thunk.nodes = example.nodes
        computed = [compute_map[variable] for variable in node.outputs]

        def run() -> None:
            thunk()
            for flag in computed:
                flag[0] = True

        vars(run).update(thunk=thunk, cthunk=cthunk, inputs=inputs, outputs=outputs, lazy=False)
        return run

    return link

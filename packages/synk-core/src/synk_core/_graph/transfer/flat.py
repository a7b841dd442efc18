"""Compiled functions in flat form, to send and to build again.

The flat form of a function is its optimised graph as a list of nodes in topological order. So depth
does not matter (pickle would recurse too deep at a few hundred layers), and the original graph, the
optimiser's bookkeeping and tags are left out. Equal ops and types are written once: a network of
2600 nodes has 70 different ops. Building the function again does not optimise its graph.

The engines' `Function.copy()` is no alternative: it can lose the destroy handler, and with it the
order of in-place operations, and then computes wrong numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from synk_core.engine import (
    Apply,
    Container,
    DestroyHandler,
    Function,
    FunctionGraph,
    FunctionMaker,
    In,
    SharedVariable,
    extras_of,
    link,
    state_of,
)

_SETTINGS = ("name", "mutable", "borrow", "strict", "allow_downcast", "implicit", "shared")


@dataclass(frozen=True)
class FlatInput:
    """An input of the function, as in `In`.

    Attributes:
        value: the shared variable or container of its value, or an argument's own value; else None.
        settings: arguments of `In` by name.
    """

    type: Any
    name: Optional[str]
    value: Any
    has_update: bool
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class FlatFunction:
    """A compiled function; see the module's docstring.

    Variables are numbered: inputs first, then constants, then each node's outputs.

    Attributes:
        nodes: (operation, input numbers, type and name of each output).
        returns: the engine's `unpack_single` and `return_none`.
    """

    inputs: Tuple[FlatInput, ...]
    constants: Tuple[Tuple[type, Any, Any, Optional[str]], ...]
    nodes: Tuple[Tuple[Any, Tuple[int, ...], Tuple[Tuple[Any, Optional[str]], ...]], ...]
    outputs: Tuple[int, ...]
    borrowed_outputs: Tuple[bool, ...]
    update_mapping: Dict[int, int]
    mode: Any
    returns: Tuple[bool, bool]
    name: Optional[str]
    trust_input: bool
    extras: Any

    @property
    def first_made(self) -> int:
        """Number of the first variable that a node makes."""
        return len(self.inputs) + len(self.constants)

    def variable_types(self) -> List[Any]:
        """Return the type of each variable, by its number."""
        types = [item.type for item in self.inputs]
        types += [type_ for _, type_, _, _ in self.constants]
        types += [type_ for _, _, made in self.nodes for type_, _ in made]
        return types

    def numbered_nodes(self) -> List[Tuple[Any, Tuple[int, ...], range]]:
        """Return for each node its operation, and the numbers of its inputs and outputs."""
        found, number = [], self.first_made
        for op, sources, made in self.nodes:
            found.append((op, sources, range(number, number + len(made))))
            number += len(made)
        return found


_PLAIN = (str, bytes, int, float, complex, np.generic, np.dtype, type)


def _first(item: Any, firsts: Dict[Any, Any]) -> Any:
    """Return the first item that is the same, so that a pickle has it once."""
    if id(item) not in firsts:
        firsts[id(item)] = firsts.setdefault((item, _state(item)), item)
    return firsts[id(item)]


def _state(value: Any) -> Any:
    """Return a hashable form of an object's content; of other classes, its identity.

    Some ops are equal although they compute differently: SparseFromDense for any format,
    RandomFunction in place or not.
    """
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, (tuple, list)):
        return (type(value), *map(_state, value))
    if isinstance(value, Mapping):
        return frozenset((_state(key), _state(item)) for key, item in value.items())
    if isinstance(value, slice):
        return (slice, _state(value.start), _state(value.stop), _state(value.step))
    state = state_of(value)
    if state is None:
        return ("object", id(value))
    return (type(value), _state(state) if isinstance(state, Mapping) else state)


def is_flat_able(function: Any) -> bool:
    """Return whether a function has a flat form; DebugMode's have not."""
    return type(function) is Function and type(function.maker) is FunctionMaker


def flatten(function: Any) -> FlatFunction:
    """Return the flat form of a compiled function."""
    maker = function.maker
    graph = maker.fgraph
    numbers: Dict[Any, int] = {variable: i for i, variable in enumerate(graph.inputs)}
    order = graph.toposort()
    constants: List[Tuple[type, Any, Any, Optional[str]]] = []
    for variable in [v for node in order for v in node.inputs] + list(graph.outputs):
        if variable.owner is None and variable not in numbers:
            # Leaves that are not inputs are constants.
            numbers[variable] = len(graph.inputs) + len(constants)
            constants.append((type(variable), variable.type, variable.data, variable.name))
    firsts: Dict[Any, Any] = {}
    nodes = []
    for node in order:
        made = tuple((_first(v.type, firsts), v.name) for v in node.outputs)
        nodes.append((_first(node.op, firsts), tuple(numbers[v] for v in node.inputs), made))
        for v in node.outputs:
            numbers[v] = len(numbers)
    return FlatFunction(
        inputs=tuple(
            _flatten_input(spec, variable, container)
            for spec, variable, container in zip(maker.inputs, graph.inputs, function.input_storage)
        ),
        constants=tuple(constants),
        nodes=tuple(nodes),
        outputs=tuple(numbers[v] for v in graph.outputs),
        borrowed_outputs=tuple(bool(out.borrow) for out in maker.outputs),
        update_mapping=dict(graph.update_mapping or {}),
        mode=maker.mode,
        returns=(maker.unpack_single, maker.return_none),
        name=maker.name,
        trust_input=function.trust_input,
        extras=extras_of(function),
    )


def _flatten_input(spec: Any, variable: Any, container: Any) -> FlatInput:
    value = spec.variable if isinstance(spec.variable, SharedVariable) else spec.value
    if spec.update is not None and not isinstance(value, (SharedVariable, Container, type(None))):
        # An input with a state: its current value, not the first one.
        value = container.storage[0]
    return FlatInput(
        type=variable.type,
        name=variable.name,
        value=value,
        has_update=spec.update is not None,
        settings={name: getattr(spec, name) for name in _SETTINGS},
    )


def rebuild(flat: FlatFunction) -> Any:
    """Build the function that `flat` describes, with its shared variables' storage."""
    # Not the shared variables: a linker may keep nodes for longer than their values are needed.
    variables: List[Any] = [item.type.make_variable(item.name) for item in flat.inputs]
    variables += [cls(type_, data, name) for cls, type_, data, name in flat.constants]
    for op, inputs, outputs in flat.nodes:
        made = [type_.make_variable(name) for type_, name in outputs]
        Apply(op, [variables[i] for i in inputs], made)
        variables += made
    graph = FunctionGraph(
        variables[: len(flat.inputs)],
        [variables[i] for i in flat.outputs],
        clone=False,
        update_mapping=flat.update_mapping,
    )
    # It orders nodes: all read a value before an in-place operation overwrites it.
    graph.attach_feature(DestroyHandler())

    updates = iter(graph.outputs[len(flat.borrowed_outputs) :])
    specs = []
    for item, variable in zip(flat.inputs, graph.inputs):
        value, update = item.value, next(updates) if item.has_update else None
        if isinstance(value, SharedVariable):
            variable, value = value, value.container
        specs.append(In(variable, value=value, update=update, autoname=False, **item.settings))
    function = link(flat, graph, specs)
    function.trust_input = flat.trust_input
    return function

"""FunctionSpec -> compiled functions. Only this file calls the engine's `function`.

A spec has up to seven forms (see `Form`): the plain one is built with the function, the others when
a call first needs them.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, List

from synk_core._text import clipped
from synk_core._wire.messages import Form
from synk_core.device import Device
from synk_core.engine import (
    Constant,
    MissingInputError,
    RandomStateType,
    SharedVariable,
    T,
    build,
    compile_ahead,
    foreign_linker,
    is_random,
    leaves_of,
    linked_by_kind,
    machine_of,
    out_of_place,
    with_pattern,
    without_test_values,
)
from synk_core.exceptions import InputValueError, SpecError

from .flat_updates import is_flat, protected
from .leaves import rowless_updates
from .reduce_op import in_one_order
from .spec import FunctionSpec, default_update_op, expression_of
from .transfer.flat import flatten, rebuild
from .transfer.pickling import deep_recursion
from .values import is_device_type

# Threads may build functions at the same time, but the engine's settings are those of the process.
_building = threading.RLock()


def compile_form(spec: FunctionSpec, form: Form, device: Device, atomic: bool) -> Any:
    """Build one form for a device; see `without_rows` for the spec of the rowless one.

    Its function returns a list: outputs, then (accumulate) update values. An atomic form computes
    new values of variables into new arrays, and keeps the old ones.

    Sliceable shared variables are replaced by their selected rows in the whole graph: the
    replacements come first in the givens, so that they also reach the values of the user's givens,
    updates and default updates of random states.
    """
    # Inputs that are added here have no test values; the user's graph has been tested.
    with _building, deep_recursion(), without_test_values():
        try:
            return _compiled(spec, form, device, atomic)
        except MissingInputError as error:
            raise SpecError(_without_value(spec) or clipped(error)) from error


def _without_value(spec: FunctionSpec) -> str:
    """Return an error about variables that the function needs as inputs; "" if there are none."""
    known = {*spec.variables, *(key for key, _ in spec.givens)}
    missing = [
        leaf
        for leaf in leaves_of(spec.expressions, blockers=known)
        if leaf not in known and not isinstance(leaf, (SharedVariable, Constant))
    ]
    if not missing:
        return ""
    what = f"function {spec.name!r}" if spec.name else "function()"
    return (
        f"{what} needs values of {', '.join(map(str, missing))}, expected among its inputs; list "
        f"them in inputs= (each rank gets a share of the rows) or in bcast_inputs= (each gets all)"
    )


def _require_states_of_its_own(compiled: Any) -> None:
    """Refuse random states of which a linker would keep a copy: neither could a failed call
    restore it, nor anything copy it between ranks."""
    foreign = foreign_linker(compiled)
    for variable in compiled.maker.fgraph.inputs if foreign else ():
        if isinstance(variable.type, RandomStateType):
            raise SpecError(
                f"{compiled.name or 'function()'} draws random numbers from {variable}, of which "
                f'{foreign} keeps a copy that is neither shared nor restored; use mode="NUMBA" or '
                f'mode="CVM"'
            )


def _compiled(spec: FunctionSpec, form: Form, device: Device, atomic: bool) -> Any:
    inputs: List[Any] = list(spec.inputs)
    givens: List[Any] = []
    if form.select:
        ranges = form.select == "range"
        by = [T.lscalar("start"), T.lscalar("stop")] if ranges else [T.lvector("index")]
        rows = slice(*by) if ranges else by[0]
        inputs += by
        givens += [(s, with_pattern(s[rows], s)) for s in spec.sliceable]
    givens += spec.givens

    outputs = [
        # Otherwise a device variable would be returned as a device array.
        variable.transfer("cpu") if through_host and is_device_type(variable.type) else variable
        for variable, through_host in zip(spec.outputs, spec.host_outputs)
    ]
    updates = [(target, value) for target, value, _ in spec.updates]
    kwargs = dict(spec.kwargs)
    if form.accumulate:
        targets = [target for target, _, _ in spec.accumulated]
        outputs += [
            target.type.filter_variable(value, allow_convert=True)
            for target, value, _ in spec.accumulated
        ]
        # Random states stay updates: every slice has to draw numbers of its own.
        updates = [(target, value) for target, value in updates if is_random(target)]
        if kwargs.get("no_default_updates") is not True:
            kwargs["no_default_updates"] = [*(kwargs.get("no_default_updates") or ()), *targets]
    if is_flat(updates):
        kwargs["mode"] = protected(kwargs.get("mode"))
    # A function for a GPU is linked twice: as compiled, and adapted.
    with (
        linked_by_kind() if device.is_gpu else nullcontext(),
        out_of_place() if atomic else nullcontext(),
    ):
        compiled = build(inputs, outputs, updates=updates, givens=givens, name=spec.name, **kwargs)
        _require_states_of_its_own(compiled)
        compiled = in_one_order(compiled)
        if machine_of(compiled) is None:
            # As in the workers, so that they find the compiled code by the nodes' order.
            compiled = rebuild(flatten(compiled))
        compile_ahead(compiled)
        return device.adapted(compiled, spec.host_outputs)


def without_rows(spec: FunctionSpec) -> FunctionSpec:
    """Return the spec of the rowless form: `spec` without its scattered inputs, its outputs, and
    all updates that depend on rows."""
    updates = tuple((target, value, "last") for target, value in rowless_updates(spec))
    return replace(
        spec,
        inputs=spec.inputs[spec.n_scattered :],
        row_axes=(),
        outputs=(),
        output_ops=(),
        host_outputs=(),
        updates=updates,
        kwargs={**spec.kwargs, "no_default_updates": True, "on_unused_input": "ignore"},
    )


def with_default_updates(spec: FunctionSpec, plain: Any) -> FunctionSpec:
    """Return `spec` with the default updates of its variables, which the engine has found for the
    plain form, among those that accumulate."""
    explicit = [target for target, _, _ in spec.updates]
    found = [
        (variable, expression_of(variable, variable.default_update), default_update_op(variable))
        for variable in (item.variable for item in plain.maker.inputs if item.update is not None)
        if hasattr(variable, "default_update")
        and not any(variable is target for target in explicit)
        and not is_random(variable)
    ]
    return replace(spec, accumulated=(*spec.accumulated, *found))


def check_sliceable(spec: FunctionSpec, plain: Any) -> None:
    """Raise InputValueError if the function does not use one of its sliceable variables."""
    used = {id(variable.container.storage) for variable in plain.get_shared()}
    for variable in spec.sliceable:
        if id(variable.container.storage) not in used:
            raise InputValueError(
                f"{variable} is listed in sliceable_shareds, but the function does not use it"
            )

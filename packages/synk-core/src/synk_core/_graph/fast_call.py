"""Calls of compiled functions without `Function.__call__`, for arguments known to fit.

That wrapper checks each argument, measures times and restores defaults, which takes some two
microseconds, more than a small computation. The results are the same without it.
"""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

import numpy as np

from synk_core.engine import Function, machine_of, raise_with_op


def trusting(function: Any, arrays: Sequence[np.ndarray]) -> Callable[..., List[Any]]:
    """Return a callable that computes `function` of positional arguments like `arrays`.

    That is the function itself, if its variables do not take such arrays unchanged. If the wrapper
    has something else to do, it is called, without its check of the arguments.
    """
    takes_as_they_are = all(
        array.dtype.name == getattr(spec.variable.type, "dtype", None)
        and array.dtype.isnative
        and array.flags.aligned
        for array, spec in zip(arrays, function.maker.inputs)
    )
    if not takes_as_they_are:
        call: Callable[..., List[Any]] = function
        return call
    if needs_no_wrapper(function):
        return bare(function)

    def unchecked(*arguments: Any) -> List[Any]:
        function.trust_input = True
        try:
            results: List[Any] = function(*arguments)
        finally:
            function.trust_input = False
        return results

    return unchecked


def needs_no_wrapper(function: Any) -> bool:
    """Return whether the linker makes updates, no default is restored, and results are a list."""
    # Some engines' functions have defaults, and make a dict of their results.
    return (
        type(function) is Function
        and not function.profile
        and not function.return_none
        and not function.unpack_single
        and not any(refeed for _, refeed, _ in getattr(function, "defaults", ()))
        and getattr(function, "output_keys", None) is None
        and not getattr(machine_of(function), "need_update_inputs", True)
    )


def bare(function: Any) -> Callable[..., List[Any]]:
    """Return a callable that computes `function` of arguments that fit; see `needs_no_wrapper`."""
    # Without its updates.
    machine, count = machine_of(function), len(function.maker.outputs)
    if hasattr(machine, "bare"):
        made: Callable[..., List[Any]] = machine.bare(count)
        return made
    places = [container.storage for container in function.input_storage]
    found = [container.storage for container in function.output_storage]
    cleared = [c.storage for c in function.input_storage if c.required]
    if getattr(machine, "allow_gc", False):  # it frees its own intermediate results
        outputs = function.maker.fgraph.outputs
        cleared += [place for place, out in zip(found, outputs) if out.owner is not None]

    def call(*arguments: Any) -> List[Any]:
        for place, argument in zip(places, arguments):
            place[0] = argument
        try:
            results = machine()
        except Exception:
            if hasattr(machine, "position_of_error"):
                position = machine.position_of_error
                thunk = machine.thunks[position] if hasattr(machine, "thunks") else None
                storage_map = getattr(machine, "storage_map", None)
                # It adds the engine's description of the operation.
                raise_with_op(node=machine.nodes[position], thunk=thunk, storage_map=storage_map)
            raise
        if results is None:
            results = [place[0] for place in found]
        for place in cleared:
            place[0] = None
        return results[:count]

    return call

"""Compile functions in the master, and further forms of them on demand."""

from __future__ import annotations

import itertools
from time import perf_counter
from typing import Any, Callable, ContextManager, Dict, Tuple

from synk_core._graph.compile import (
    check_sliceable,
    compile_form,
    with_default_updates,
    without_rows,
)
from synk_core._graph.leaves import new_row_share, ops_of_parts, replicated_updates
from synk_core._graph.random_streams import require_reseedable
from synk_core._graph.reduce_op import reductions_of
from synk_core._graph.spec import FunctionSpec, unnamed
from synk_core._rank.functions import LoadedFunction
from synk_core._rank.workplace import Workplace
from synk_core._wire.messages import PLAIN, Form, Recipe


class Builder:
    """Compiles functions in the master, numbers them and their variables, and keeps their specs by
    number."""

    def __init__(
        self,
        here: Workplace,
        specs: Dict[int, FunctionSpec],
        track: Callable[[str], ContextManager[Any]],
    ) -> None:
        self._here = here
        self._specs = specs
        self._numbers = itertools.count()
        self._track = track
        self._row_share: Any = None

    def compile(self, spec: FunctionSpec) -> Tuple[FunctionSpec, Any]:
        """Compile the plain form; return the spec with Theano's default updates, and that form."""
        plain = self._compile(spec, PLAIN)
        check_sliceable(spec, plain)
        if self._here.reseeds and self._here.size > 1:
            replacing = [value for _, value in spec.givens]
            updated = [value for _, value, _ in spec.updates]
            require_reseedable(plain, [*spec.outputs, *updated, *replacing])
        return with_default_updates(spec, plain), plain

    def enter(self, spec: FunctionSpec, plain: Any) -> int:
        """Number a function; the caller holds the lock."""
        function_id = next(self._numbers)
        self._register_variables(plain)
        number_of = self._here.registry.number_of
        output_ops, update_ops = ops_of_parts(spec)
        recipe = Recipe(
            function_id=function_id,
            name=spec.name or unnamed(function_id),
            output_ops=output_ops,
            update_ops=update_ops,
            updated=tuple(number_of(target) for target, _, _ in spec.accumulated),
            sliceable=tuple(number_of(variable) for variable in spec.sliceable),
            row_shares=tuple(
                number_of(variable)
                for variable in plain.get_shared()
                if getattr(variable.tag, "synk_row_share", False)
            ),
            # Without reductions there is no need to walk the graph.
            replicated=tuple((number_of(target), op) for target, op in replicated_updates(spec))
            if reductions_of(plain)
            else (),
        )
        loaded = self._here.functions[function_id] = LoadedFunction(recipe)
        loaded.forms[PLAIN] = plain
        self._specs[function_id] = spec
        return function_id

    def forget_function(self, function_id: int) -> None:
        """Forget a function that the program has dropped."""
        self._specs.pop(function_id, None)

    def require_form(self, function_id: int, form: Form) -> None:
        """Compile `form` of a function unless it exists, or is rowless without updates; the caller
        holds the lock."""
        loaded, spec = self._here.functions[function_id], self._specs[function_id]
        if form in loaded.forms:
            return
        if form.rowless:
            spec = without_rows(spec)
            if not spec.updates:
                return
        compiled = self._compile(spec, form)
        self._register_variables(compiled)
        loaded.forms[form] = compiled

    def row_share(self) -> Any:
        """Return a symbolic scalar; see `synkhronos.row_share`."""
        if self._row_share is None:
            self._row_share = new_row_share()
        return self._row_share

    def _compile(self, spec: FunctionSpec, form: Form) -> Any:
        self._here.device.enter()
        name, began = spec.name or "function", perf_counter()
        with self._track(f"compiling {name!r}"):
            compiled = compile_form(spec, form, self._here.device, self._here.journal.on)
        if self._here.flight.recorder is not None:
            self._here.flight.recorder.add("compile", name, began, perf_counter())
        return compiled

    def _register_variables(self, compiled: Any) -> None:
        for variable in compiled.get_shared():
            self._here.registry.number_of(variable)

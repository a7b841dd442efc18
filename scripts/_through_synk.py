"""A plugin of pytest that makes functions of PyTensor's own tests as the master makes its own."""

from __future__ import annotations

import inspect
from typing import Any

import pytensor

from synk_core import engine
from synk_core._graph.transfer.flat import flatten, is_flat_able, rebuild
from synk_core._graph.transfer.pickling import deep_recursion

_plain = pytensor.function
_signature = inspect.signature(_plain)
_making: list[bool] = []


def _function(*arguments: Any, **settings: Any) -> Any:
    if _making:  # called by build()
        return _plain(*arguments, **settings)
    given = _signature.bind(*arguments, **settings).arguments
    inputs, outputs = given.pop("inputs"), given.pop("outputs", None)
    given["no_default_updates"] = given.get("no_default_updates") or False
    _making.append(True)
    try:
        with deep_recursion(), engine.out_of_place():
            made = engine.build(inputs, outputs, **given)
        if not is_flat_able(made):
            return _plain(*arguments, **settings)
        made = rebuild(flatten(made))
        engine.compile_ahead(made)
        return made
    finally:
        _making.clear()


_function.__signature__ = _signature  # type: ignore[attr-defined]
for _module in (pytensor, pytensor.compile, pytensor.compile.maker):
    _module.function = _function

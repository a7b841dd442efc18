"""Change the source of one of Theano's functions, or a template of C code, in one place."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from typing import Any

_FUTURE_FLAGS = 0
for _name in __future__.all_feature_names:
    _FUTURE_FLAGS |= getattr(__future__, _name).compiler_flag


def rewrite(function: Any, old: str, new: str, count: int) -> None:
    """Replace ``old`` by ``new``, which occurs ``count`` times, in the source of ``function``.

    The function object stays and gets the new code, so references to it change with it.

    Raises:
        LookupError: If ``old`` does not occur ``count`` times.
    """
    lines, first = inspect.getsourcelines(function)
    source = replaced(textwrap.dedent("".join(lines)), old, new, count, function.__qualname__)
    code = compile(
        "\n" * (first - 1) + source,
        inspect.getsourcefile(function) or "<theano>",
        "exec",
        dont_inherit=True,
        flags=function.__code__.co_flags & _FUTURE_FLAGS,
    )
    namespace: dict[str, Any] = {}
    exec(code, function.__globals__, namespace)  # noqa: S102 - the library's own source
    function.__code__ = namespace[function.__name__].__code__


def replaced(text: str, old: str, new: str, count: int = 1, name: str = "the C code") -> str:
    """Return ``text`` with ``old``, which occurs ``count`` times, replaced by ``new``.

    Raises:
        LookupError: If ``old`` does not occur ``count`` times.
    """
    if text.count(old) != count:
        raise LookupError(
            f"{name}: got {text.count(old)} times {old!r}, expected {count}: this is not "
            "Theano 1.0.5"
        )
    return text.replace(old, new)


def in_c_code(op: Any, section: str, old: str, new: str) -> None:
    """Replace ``old`` by ``new``, which occurs once, in the C code of an op of Theano's.

    Theano takes the module's version from ``func_codes``, and compiles ``code_sections``.

    Raises:
        LookupError: If ``old`` does not occur once in the section.
    """
    sections = op.code_sections
    sections[section] = replaced(sections[section], old, new, name=f"C code of {type(op).__name__}")
    op.func_codes = [code.replace(old, new) for code in op.func_codes]

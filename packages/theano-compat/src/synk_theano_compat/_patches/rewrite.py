"""Change one of Theano's functions, its source in one place, or a template of C code."""

from __future__ import annotations
import __future__

import functools
import inspect
import textwrap
from typing import Any, Callable

_FUTURE_FLAGS = sum({getattr(__future__, n).compiler_flag for n in __future__.all_feature_names})


def wrap(holder: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Decorate a function that takes the place of an attribute, and gets it as first argument."""
    plain = getattr(holder, name)

    def install(function: Callable[..., Any]) -> None:
        @functools.wraps(plain)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            return function(plain, *arguments, **options)

        setattr(holder, name, wrapped)

    return install


def rewrite(function: Any, old: str, new: str, count: int = 1) -> None:
    """Replace ``old`` in the source of ``function``; LookupError unless it occurs ``count`` times.

    The function object stays and gets the new code, so references to it change with it.
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
    """Return ``text`` with ``old`` replaced; LookupError unless it occurs ``count`` times."""
    if text.count(old) != count:
        raise LookupError(
            f"{name}: got {text.count(old)} times {old!r}, expected {count}: this is not "
            "Theano 1.0.5"
        )
    return text.replace(old, new)


def in_c_code(op: Any, section: str, old: str, new: str) -> None:
    """Replace ``old`` in a section of an op's C code; LookupError unless it occurs once.

    Theano takes the module's version from ``func_codes``, and compiles ``code_sections``.
    """
    sections = op.code_sections
    sections[section] = replaced(sections[section], old, new, name=f"C code of {type(op).__name__}")
    op.func_codes = [code.replace(old, new) for code in op.func_codes]


def in_c_code_of(kind: type, edits: list[tuple[str, str, str]]) -> None:
    """Make new ops of a class with these changes of C code: section, old and new text.

    An op of other C code than that of Theano 1.0.5 raises LookupError when it is made.
    """

    @wrap(kind, "__init__")
    def changed(plain: Any, self: Any, *arguments: Any, **options: Any) -> None:
        plain(self, *arguments, **options)
        for edit in edits:
            in_c_code(self, *edit)

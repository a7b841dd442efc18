"""The code of users' modules that a compiled function runs, to compare it between ranks.

A worker finds the operations of a user's module by import, so it may have other code than the
master, or other values of what the code reads. Listed is what runs: `perform`, the C code, and
what these name, as far as it is of users' modules: not of the engine, its adapters or Python, and
not installed. What the code changes itself, counters and caches, is each rank's own.
"""

from __future__ import annotations

import argparse
import dis
import hashlib
import sys
import sysconfig
import types
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Mapping, Sequence, Set, Tuple
from weakref import WeakKeyDictionary

import numpy as np

from synk_core._rank.digest import digest
from synk_core.engine import FromFunctionOp, Op, ancestors, held_by, inner_outputs, library

MOST = 1_000
"""Rows of an operation; items in a value, of which only the type is compared if it has more."""

MOST_ELEMENTS = 1_000_000
"""Elements of an array that are compared, the first."""

MOST_QUICK = 100
"""Items of a list, dict or array in which `is_as_before` sees a change."""

_OURS = ("synkhronos", "theano_compat")
_RUN = frozenset(("perform", "impl", "make_thunk", "make_py_thunk", "prepare_node", "get_params"))
_PLAIN = (bool, int, float, complex, str, bytes, range, slice, type(None), type(...))
_PARTS = (
    *("__func__", "__self__", "func", "args", "keywords", "fget", "fset", "fdel"),
    *("__wrapped__", "pyfunc", "py_func"),
)
_CHANGING = ("add", "append", "clear", "extend", "insert", "pop", "remove", "setdefault", "update")
# What changes an item of the value that lies under so many others on the stack.
_STORES = {"STORE_SUBSCR": 1, "DELETE_SUBSCR": 1, "STORE_SLICE": 2}

_CURES = {
    False: "make a value that changes an input of the operation, or a shared variable",
    True: "close() and fork() again after an edit, so that workers import the file as it is now; "
    "or define the operation in the program itself, which is sent by value",
}

_Watch = Tuple[Callable[[str], Any], str, Any]
_By = Tuple[FrozenSet[str], str]
_Code = Tuple[str, FrozenSet[str], FrozenSet[str], FrozenSet[str]]


@lru_cache(10_000)
def _read(code: types.CodeType) -> _Code:
    """Return a digest of code and of the code within, and what they name, read and change."""
    steps = list(dis.get_instructions(code))
    within = [_read(const)[1:] for const in code.co_consts if isinstance(const, types.CodeType)]
    shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    variables = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    jumps = getattr(code, "co_exceptiontable", b"")
    whole = (code.co_code, _constant(code.co_consts), shape, variables, jumps)
    reads = [step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "IMPORT_NAME")]
    sets = (code.co_names, reads, _changed(steps)), *within
    names, read, changed = (frozenset().union(*parts) for parts in zip(*sets))
    return _hashed(repr(whole)), names, read, changed


def _changed(steps: Sequence[dis.Instruction]) -> Iterable[str]:
    """Yield the names that code assigns to, and those of the containers that it changes."""
    for place, step in enumerate(steps, 1):
        if step.opname in ("STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR"):
            yield step.argval
        above, before = 0 if step.opname in ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR") else -1, ""
        for after in steps[place:]:
            is_call = after.opname in ("LOAD_ATTR", "LOAD_METHOD") and after.argval in _CHANGING
            at = _STORES.get(after.opname, 0 if is_call else -1)
            if at >= 0 and above == at + (before in ("SWAP", "ROT_THREE")):  # as in x[i] += 1
                yield step.argval
                break
            if above < 0:
                break
            above += dis.stack_effect(after.opcode, after.arg)
            before = after.opname


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _read(value)[0]
    if isinstance(value, (tuple, frozenset)):
        items = [_constant(item) for item in value]
        return f"{type(value).__name__} {items if type(value) is tuple else sorted(items)}"
    return f"{type(value).__name__} {value!r}"


def _hashed(text: str) -> str:
    return "#" + hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


@lru_cache(None)
def _is_users(name: str) -> bool:
    """Return whether a module is the user's own: also one that is not there, sent by value."""
    root = str(name).partition(".")[0]
    files = [getattr(sys.modules.get(n), "__file__", None) for n in (name, root)]
    file = str(files[0] or files[1])
    if name == "__main__" or root.startswith("synk_") or root in (library.__name__, *_OURS):
        return name == "__main__"
    is_installed = "site-packages" in file or "dist-packages" in file
    is_pythons = root in sys.builtin_module_names or file.startswith(sysconfig.get_path("stdlib"))
    return not (is_installed or is_pythons)


def _name(thing: Any) -> str:
    name = getattr(thing, "__qualname__", thing.__name__)
    return str(name) if thing.__module__ == "builtins" else f"{thing.__module__}.{name}"


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _parts(value: Any) -> Iterable[Any]:
    """Return the items of a sequence, and the functions in a method, property or decorator."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, (types.MethodType, partial, staticmethod, classmethod, property)):
        return [getattr(value, name) for name in _PARTS if hasattr(value, name)]
    held = {} if isinstance(value, type) else getattr(value, "__dict__", {})
    return [held[name] for name in _PARTS if name in held]


def _functions(value: Any) -> List[types.FunctionType]:
    found = (value, *_parts(value))
    return [f for f in found if type(f) is types.FunctionType and _is_users(f.__module__)]


class _Table:
    """The rows of an operation, in the order found, and what to look at again.

    A thing is found by what reads it, `by`: the names in the reader's code, and its own name.
    """

    def __init__(self, op: Any) -> None:
        self._rows: List[Tuple[str, str, str]] = []
        self._first: Dict[int, str] = {}
        self._seen: Set[Any] = set()
        self._changed: Set[str] = set()
        self._later: List[Callable[[], Any]] = []
        self._watched: List[_Watch] = []
        self._items = self._depth = 0
        self._instance(f"{_name(type(op))}()", (frozenset(), ""), op)
        for act in self._later:  # which each of them may make longer
            if len(self._rows) < MOST:
                act()
        kept = ((what, text) for name, what, text in self._rows if name not in self._changed)
        self.rows = list(dict.fromkeys(kept))
        self.watched = [watch for watch in self._watched if watch[1] not in self._changed]

    def _add(self, what: str, reader: str, text: str) -> None:
        text = _hashed(text) if len(text) > 60 else text
        row = f"{what}, which {reader} reads," if reader else what
        self._rows.append((what.rpartition(".")[2], row, text))

    def _value(self, what: str, by: _By, value: Any) -> None:
        text = self._whole(what, by, value)
        self._add(what, by[1], text)
        size = value.size if isinstance(value, np.ndarray) else self._items
        if isinstance(value, (list, tuple, dict, set, np.ndarray)) and size <= MOST_QUICK:
            name, again = what.rpartition(".")[2], partial(self._again, what, by, value, text)
            self._watched.append((again, name, text))

    def _whole(self, what: str, by: _By, value: Any) -> str:
        self._items = self._depth = 0
        try:
            text = self._text(what, by, value)
        except Exception:  # noqa: BLE001 - a user's class may do anything
            return _name(type(value))
        # Which of a set's items would be left out depends on their order.
        return text if self._items <= MOST else _name(type(value))

    def _again(self, what: str, by: _By, value: Any, before: str, _name: str) -> Any:
        text = self._whole(what, by, value)
        self._later.clear()
        return before if text == before else None

    def _values(self, what: str, by: _By, held: Mapping[str, Any], names: Iterable[str]) -> None:
        for name in sorted(names):
            if name in held and not _is_special(name):
                self._watched.append((held.get, name, held[name]))
                self._value(f"{what}.{name}", by, held[name])

    def _take_in(self, key: Any, act: Callable[..., Any], *arguments: Any) -> None:
        if key not in self._seen:
            self._seen.add(key)
            self._later.append(partial(act, *arguments))

    def _function(self, function: types.FunctionType) -> None:
        text, names, reads, changed = _read(function.__code__)
        by, held = (names, _name(function)), function.__globals__
        if "@pytest_ar" not in names:  # which a worker's code lacks
            self._add(f"the code of {by[1]}", "", text)
        if function.__name__ not in ("__init__", "__new__"):
            self._changed |= changed
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self._watched.append((partial(getattr, function), name, getattr(function, name)))
        defaults = [function.__defaults__, function.__kwdefaults__]
        if any(defaults):
            self._value(f"the defaults of {by[1]}", (names, ""), defaults)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            with suppress(ValueError):  # it is empty
                self._value(name, by, cell.cell_contents)
                content = partial(getattr, cell, "cell_contents")
                self._watched.append((content, name, cell.cell_contents))
        self._values(function.__module__, by, held, reads)
        for name in sorted(reads.difference(held)):
            for path in (name, f"{held.get('__package__')}.{name}".strip(".")):
                self._module(by, sys.modules.get(path))  # which it imports

    def _module(self, by: _By, module: Any) -> None:
        if isinstance(module, types.ModuleType) and _is_users(module.__name__):
            held = vars(module)
            self._take_in((id(module), by[1]), self._values, module.__name__, by, held, by[0])

    def _class(self, by: _By, cls: Any) -> _By:
        """Take in what runs of a class: what `by` names, what that names, and operators."""
        names, is_op, size = by[0], issubclass(cls, Op), -1
        if is_op:
            names |= _RUN.union(name for name in dir(cls) if name.startswith("c_"))
        bases = [base for base in cls.__mro__ if _is_users(base.__module__)]
        items = [(base, *item) for base in bases for item in sorted(vars(base).items())]
        while size < len(names):
            size = len(names)
            run = [i for i in items if i[1] in names or (_is_special(i[1]) and not is_op)]
            functions = [function for *_, held in run for function in _functions(held)]
            names = names.union(*(_read(function.__code__)[1] for function in functions))
        self._changed.update(name for _, name, held in run if isinstance(held, cached_property))
        self._add(f"the methods of {_name(cls)}", by[1], " ".join(map(_name, functions)))
        for function in functions:
            self._take_in(id(function), self._function, function)
        for base, name, held in run:
            self._watched.append((vars(base).get, name, held))
            if not _functions(held):
                self._values(_name(base), (names, by[1]), vars(base), [name])
        return names, by[1]

    def _instance(self, what: str, by: _By, value: Any) -> None:
        by = self._class(by, type(value))
        self._watched.append((partial(getattr, value), "__class__", type(value)))
        held = getattr(value, "__dict__", {})
        self._values(what, by, held, held)
        for name, slot in [item for base in type(value).__mro__ for item in vars(base).items()]:
            if isinstance(slot, types.MemberDescriptorType) and hasattr(value, name):
                self._watched.append((partial(getattr, value), name, getattr(value, name)))
                self._values(what, by, {name: getattr(value, name)}, [name])

    def _text(self, what: str, by: _By, value: Any) -> str:
        """Return a value in short, and take in later the user's things that are in it."""
        self._items += 1
        kind = type(value)
        if kind in _PLAIN:
            return _constant(value)
        if self._items > MOST or self._depth > 20:
            return _name(kind)
        self._depth += 1
        text = f"{_name(kind)} {_content(value, partial(self._text, what, by))}"
        self._depth -= 1
        if isinstance(value, types.ModuleType):
            self._module(by, value)
        elif isinstance(value, types.FunctionType) and _is_users(value.__module__):
            self._take_in(id(value), self._function, value)
        elif isinstance(value, type) and _is_users(value.__module__):
            self._take_in((id(value), by[1]), self._class, by, value)
        elif kind in (types.SimpleNamespace, argparse.Namespace) or _is_users(kind.__module__):
            text += f" {self._first.setdefault(id(value), what)}"
            self._take_in(id(value), self._instance, what, by, value)
        return text


def _content(value: Any, item: Callable[[Any], str]) -> Any:
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.dtype, value.shape, digest(np.asarray(value).flat[:MOST_ELEMENTS])
    if isinstance(value, np.ndarray):
        return item([value.shape, *value.flat])
    if isinstance(value, (np.generic, np.dtype)):
        return repr(value)
    if isinstance(value, dict):
        return sorted((item(key), item(held)) for key, held in value.items())
    if isinstance(value, (set, frozenset)):
        return sorted(map(item, value))
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, (types.FunctionType, type, types.BuiltinFunctionType, np.ufunc)):
        return _name(value)
    return [item(part) for part in _parts(value)]


_found: WeakKeyDictionary[Any, List[Any]] = WeakKeyDictionary()
_watched: WeakKeyDictionary[Any, List[_Watch]] = WeakKeyDictionary()


def _operations(compiled: Any) -> List[Any]:
    """Return the operations of users' modules in a function's graph, and in their inner graphs."""
    known = _found.get(held_by(compiled))
    if known is None:
        known, todo, seen = [], [node.op for node in compiled.maker.fgraph.apply_nodes], set()
        while todo:
            op = todo.pop()
            if id(op) not in seen:
                seen.add(id(op))
                if isinstance(op, FromFunctionOp) or _is_users(type(op).__module__):
                    known.append(op)
                todo += [v.owner.op for v in ancestors(list(inner_outputs(op))) if v.owner]
                todo += [op.scalar_op] if hasattr(op, "scalar_op") else []
        _found[held_by(compiled)] = known
    return known


def has_users_code(compiled: Any) -> bool:
    """Return whether a compiled function has operations of users' modules."""
    return bool(_operations(compiled))


def code_of(compiled: Any) -> List[Tuple[str, str]]:
    """Return the user's code that a compiled function runs, and the values that it reads.

    Returns:
        Pairs of what it is, in words, and a text that is the same in all processes where it is:
        a short value itself, else a digest, which begins with "#".
    """
    tables = [_Table(op) for op in _operations(compiled)]
    _watched[held_by(compiled)] = [watch for table in tables for watch in table.watched]
    return list(dict.fromkeys(chain.from_iterable(sorted(table.rows for table in tables))))


def is_as_before(compiled: Any) -> bool:
    """Return quickly whether `code_of` would return the same again, but for large values."""
    with suppress(AttributeError, ValueError):  # deleted; an empty cell
        return all(get(name) is held for get, name, held in _watched.get(held_by(compiled), ()))
    return False


def differing(tables: Sequence[Sequence[Tuple[str, str]]]) -> List[str]:
    """Compare what `code_of` returned on each rank; what a rank has not found is left out.

    Returns:
        In words, what differs on which ranks, and at last the cures; nothing if all is equal.
    """
    held: Dict[str, Dict[int, List[str]]] = {}
    for rank, table in enumerate(tables):
        for what, text in table:
            held.setdefault(what, {}).setdefault(rank, []).append(text)
    words: List[str] = []
    cures: Dict[str, None] = {}
    for what, texts in held.items():
        ranks: Dict[str, List[str]] = {}
        for rank, parts in texts.items():
            ranks.setdefault(" and ".join(parts), []).append(str(rank))
        if len(ranks) > 1:
            shown = (f"{text} on rank {', '.join(who)}" for text, who in ranks.items())
            words.append(f"{what} differs: {'; '.join(shown)}")
            cures[_CURES[what.startswith(("the code of", "the methods of"))]] = None
    return [*words, *cures]

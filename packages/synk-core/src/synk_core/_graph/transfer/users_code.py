"""The code of users' modules that a compiled function runs, to compare it between ranks.

A worker imports the operations of a user's module, so it may have other code than the master, or
other values that the code reads. Compared are `perform`, the C code, and all that these name in
users' modules: not of the engine, its adapters or Python, and not installed. Names that the code
itself assigns to, or containers that it changes, are each rank's own.
"""

from __future__ import annotations

import dis
import hashlib
import sys
import sysconfig
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from types import CodeType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence, Set, Tuple
from weakref import WeakKeyDictionary

import numpy as np

from synk_core._graph.digest import digest
from synk_core.engine import FromFunctionOp, Op, ancestors, inner_outputs, library

MOST, MOST_ELEMENTS = 1_000, 1_000_000
"""Items in a value, of which only the type is compared if it has more; elements of an array."""

_CODE = "argcount posonlyargcount kwonlyargcount flags names varnames freevars cellvars code"
_RUN = "perform impl make_thunk make_py_thunk prepare_node get_params _name_ _value_ pyfunc"
_PARTS = ("__name__", "__func__", "__self__", "func", "args", "keywords", "fget", "__wrapped__")
_PLAIN = (int, float, complex, str, bytes, range, slice, type(None), np.generic, np.dtype)
_CHANGING = ("add", "append", "clear", "extend", "insert", "pop", "remove", "setdefault", "update")
# How many values lie on that whose item is changed; x[i] += 1 has copied it.
_ITEMS = {"STORE_SUBSCR": 1, "DELETE_SUBSCR": 1, "STORE_SLICE": 2, "BINARY_SUBSCR": 3}
_CURE = "import anew what was edited and fork() again; or make a value that changes an input"

_Rows = List[Tuple[str, str]]
_Watched = List[Tuple[Callable[[Any], Any], Any, Any]]


@lru_cache(10_000)
def _read(code: CodeType) -> Tuple[Any, ...]:
    """Return code and the code within as text, and the names that they use, read and change."""
    steps = list(dis.get_instructions(code))
    within = [_read(const) for const in code.co_consts if isinstance(const, CodeType)]
    others = [const for const in code.co_consts if not isinstance(const, CodeType)]
    constants = [sorted(map(repr, c)) if isinstance(c, frozenset) else repr(c) for c in others]
    fields = [getattr(code, f"co_{name}", "") for name in (*_CODE.split(), "exceptiontable")]
    text = str((fields, constants, [text for text, *_ in within]))
    reads = [step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "IMPORT_NAME")]
    sets = zip((code.co_names, reads, list(_changed(steps))), *(parts for _, *parts in within))
    return (text, *(frozenset().union(*parts) for parts in sets))


def _changed(steps: Sequence[dis.Instruction]) -> Iterator[Any]:
    """Yield the names of the variables and containers that code changes."""
    for place, step in enumerate(steps):
        if step.opname in ("STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR"):
            yield step.argval
        is_call = step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval in _CHANGING
        above = 0 if is_call else _ITEMS.get(step.opname, -1)
        if above < 0 or (above == 3 and steps[place - 1].opname not in ("COPY", "DUP_TOP_TWO")):
            continue
        while above > 0 and place > 1:
            place -= 1
            above -= dis.stack_effect(steps[place].opcode, steps[place].arg)
        name = steps[place - (above == 0)].argval  # or one step loads both
        yield from name if isinstance(name, tuple) else (name,)


@lru_cache(None)
def _is_users(name: str) -> bool:
    """Return whether a module is the user's own, also if it is not found, but sent by value."""
    root = str(name).partition(".")[0]
    ours = (library.__name__, "synkhronos", *sys.builtin_module_names)
    if name == "__main__" or root.startswith("synk_") or root in ours:
        return name == "__main__"
    files = [getattr(sys.modules.get(n), "__file__", None) for n in (name, root)]
    places = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"))
    return not any(place in str(files[0] or files[1]) for place in places)


def _name(thing: Any) -> str:
    name = getattr(thing, "__qualname__", thing.__name__)
    return f"{getattr(thing, '__module__', '')}.{name}".strip(".")


class _Table:
    """The code and values that operations run and read, with one of `names`, and not of `changed`.

    Both sets grow by the names in the code; then another table may have other rows.
    """

    def __init__(self, ops: Iterable[Any], names: Set[str], changed: Set[str]) -> None:
        self.names, self.changed = names, changed
        self.rows: _Rows = []
        self.watched: _Watched = []
        self._within: List[int]
        self._todo: Dict[int, Any] = {id(type(op)): type(op) for op in ops}
        for op in ops:
            self._take(_name(type(op)), vars(op).__getitem__, vars(op))
        done: Dict[int, Any] = {}
        while self._todo:
            key, thing = self._todo.popitem()
            if key not in done:
                done[key] = thing
                (self._function if type(thing) is FunctionType else self._members)(thing)

    def _take(self, what: str, get: Callable[[Any], Any], names: Iterable[str]) -> None:
        for name in sorted(set(names) - self.changed):
            with suppress(KeyError, AttributeError, ValueError):  # no such; an empty cell
                held = get(name)
                self.watched.append((get, name, held))
                self._left, self._within = MOST, []
                try:
                    text = self._text(held)
                except Exception:  # noqa: BLE001 - it is too large; or of a user's class
                    text = _name(type(held))
                self.rows.append((f"{what}.{name}".strip("."), text))

    def _text(self, value: Any) -> str:
        """Return a value in words, and remember the user's things in it for later."""
        kind = type(value)
        self._left -= 1
        if self._left < 0:
            raise OverflowError
        if isinstance(value, _PLAIN):
            return f"{kind.__name__} {value!r}"
        if isinstance(value, CodeType):  # as pytest changes it, and a worker does not
            return "" if "@pytest_ar" in value.co_names else str(_read(value)[0])
        if isinstance(value, (FunctionType, type, ModuleType)):
            if _is_users(getattr(value, "__module__", value.__name__)):
                self._todo[id(value)] = value
            return _name(value)
        if id(value) in self._within:
            return "..."
        self._within.append(id(value))
        items = self._items(value)
        for name in sorted(self.names - self.changed):
            is_slot = type(getattr(kind, name, None)) is MemberDescriptorType
            if is_slot or name in getattr(value, "__dict__", ()):
                self.watched.append((partial(getattr, value), name, getattr(value, name)))
                items.append(f"{name}={self._text(getattr(value, name))}")
        if _is_users(kind.__module__):
            self._todo[id(kind)] = kind
        self._within.pop()
        return f"{_name(kind)}({', '.join(items)})"

    def _items(self, value: Any) -> List[str]:
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            if value.size <= MOST:
                self.watched.append((lambda was: value.tobytes() == was, value.tobytes(), True))
            first = digest(np.asarray(value).flat[:MOST_ELEMENTS])
            return [str(value.dtype), str(value.shape), first]
        if isinstance(value, (list, dict, set)) and len(value) <= MOST:
            self.watched.append((value.__eq__, value.copy(), True))
        if isinstance(value, (dict, set, frozenset)):
            return sorted(map(self._text, value.items() if isinstance(value, dict) else value))
        if not isinstance(value, (list, tuple, np.ndarray)):
            names = () if _is_users(type(value).__module__) else _PARTS
            value = [getattr(value, name) for name in names if hasattr(value, name)]
        return list(map(self._text, getattr(value, "flat", value)))

    def _function(self, function: FunctionType) -> None:
        code, held, name = function.__code__, function.__globals__, _name(function)
        _, names, reads, changed = _read(code)
        self.names |= names
        if function.__name__ not in ("__init__", "__new__", "__post_init__", "__setstate__"):
            self.changed |= changed
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        parts = () if self.changed.intersection(arguments) else ("__defaults__", "__kwdefaults__")
        self._take(name, partial(getattr, function), ("__code__", *parts))
        cells = dict(zip(code.co_freevars, function.__closure__ or ()))
        self._take(name, lambda cell: cells[cell].cell_contents, cells)
        self._take(function.__module__, held.__getitem__, reads)
        within = [f"{held.get('__package__')}.{read}".strip(".") for read in reads]
        self._take("", sys.modules.__getitem__, [*within, *reads.difference(held)])

    def _members(self, thing: Any) -> None:
        """Add the named members of a module, or of a class and its bases, and operators."""
        members: List[str] = []
        for base in getattr(thing, "__mro__", (thing,)):
            if _is_users(getattr(base, "__module__", base.__name__)):
                held = vars(base)
                names = self.names.intersection(held)
                acts = {name for name in held if type(held[name]) is FunctionType}
                if isinstance(thing, type) and not issubclass(thing, Op):
                    names |= {name for name in acts if name.startswith("__")}
                self._take(_name(base), held.__getitem__, names)
                self.changed |= {n for n in names if type(held[n]) is cached_property}
                members += [f"{_name(base)}.{name}" for name in sorted(acts & names)]
        self.rows.append((_name(thing), str(members)))


_found: WeakKeyDictionary[Any, List[Any]] = WeakKeyDictionary()
_watched: WeakKeyDictionary[Any, _Watched] = WeakKeyDictionary()


def has_users_code(compiled: Any) -> bool:
    """Return whether a compiled function has operations of users' modules."""
    if compiled.maker not in _found:
        ops, todo = {}, [node.op for node in compiled.maker.fgraph.apply_nodes]
        while todo:
            op = todo.pop()
            if id(op) not in ops:
                ops[id(op)] = op, isinstance(op, FromFunctionOp) or _is_users(type(op).__module__)
                todo += [v.owner.op for v in ancestors(list(inner_outputs(op))) if v.owner]
                todo += [op.scalar_op] if hasattr(op, "scalar_op") else []
        _found[compiled.maker] = [op for op, is_users in ops.values() if is_users]
    return bool(_found[compiled.maker])


def code_of(compiled: Any) -> _Rows:
    """Return the user's code that a compiled function runs, and the values that it reads: names,
    and texts that are equal in all processes with equal code."""
    ops = _found[compiled.maker] if has_users_code(compiled) else []
    names = {name for op in ops for name in dir(type(op)) if name.startswith("c_")}
    names, changed, size = names.union(_RUN.split()), {"__file__", "__path__"}, -1
    while size < len(names) + len(changed):
        size = len(names) + len(changed)
        table = _Table(ops, names, changed)
    _watched[compiled.maker] = table.watched
    digests = {t: hashlib.blake2b(repr(t).encode(), digest_size=8) for _, t in table.rows}
    return sorted({(w, t if len(t) < 60 else f"#{digests[t].hexdigest()}") for w, t in table.rows})


def is_as_before(compiled: Any) -> bool:
    """Return quickly whether `code_of` would return the same again, except for large values."""
    with suppress(KeyError, AttributeError, ValueError):  # deleted; an empty cell; arrays
        return all(get(name) is held for get, name, held in _watched.get(compiled.maker, ()))
    return False


def differing(tables: Sequence[_Rows]) -> List[str]:
    """Return a line with the cure for each thing that differs between the ranks that have it."""
    ranks: Dict[str, Dict[str, List[str]]] = {}
    for rank, table in enumerate(tables):
        texts: Dict[str, str] = {}
        for what, text in table:
            texts[what] = f"{texts[what]} and {text}" if what in texts else text
        for what, text in texts.items():
            ranks.setdefault(what, {}).setdefault(text, []).append(str(rank))
    shown = ((w, [f"{t} on rank {', '.join(r)}" for t, r in of.items()]) for w, of in ranks.items())
    return [f"{what} differs: {'; '.join(t)}: {_CURE}" for what, t in shown if len(t) > 1]

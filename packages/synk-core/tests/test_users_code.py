"""Other code or values on a rank are found, and nothing else is."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from synk_core._graph.shared import VariableRegistry
from synk_core._graph.transfer.pickling import dumps
from synk_core._graph.users_code import code_of, differing, has_users_code, is_as_before
from synk_testing.engine import T, engine

SOURCE = """
import collections, dataclasses, enum, functools, threading, types
import numpy as np
from synk_testing.engine import T, as_op, engine
from synk_core.engine import Apply, Op

K, FACTOR, COUNT, CACHE, LOCK = 3.0, 1, 0, {}, threading.Lock()
CONFIG = types.SimpleNamespace(rate=1)
TABLE = {"a": 1, "b": [1, {3, 4}], "words": {"x", "y", "zz", "long"}}
ARRAY = np.arange(10.0)

class Mode(enum.Enum):
    FAST = 1
    SLOW = "two"

@dataclasses.dataclass(frozen=True)
class Settings:
    rate: float = 0.5
    def scaled(self): return self.rate * 2

class Slotted:
    __slots__ = ("u",)
    def __init__(self): self.u = 1
    def go(self): return self.u

def helper(n, by=2): return n * by + (n in {"p", "q", "rr"})

@functools.lru_cache(maxsize=None)
def memo(n): return helper(n)

def make(factor):
    def scaled(v): return v * factor + K
    return scaled

SETTINGS, SLOTTED, MODE = Settings(), Slotted(), Mode.SLOW
PAIR = collections.namedtuple("Pair", "a")(1)
scaled, square, part = make(4), lambda v: v**2, functools.partial(helper, by=5)
vectorized = np.vectorize(square)

class Base(Op):
    __props__ = ("k",)
    HIDDEN = 9
    def __init__(self, k): self.k, self.calls = k, 0
    def make_node(self, x): return Apply(self, [T.as_tensor_variable(x)], [x.type()])
    def extra(self, v): return v + self.HIDDEN

class Scale(Base):
    def perform(self, node, inputs, outputs):
        global COUNT
        from userslib import FACTOR
        COUNT += 1
        self.calls += 1
        with LOCK:
            CACHE[COUNT] = CACHE.get(COUNT, 0) + 1
        values = TABLE["a"], ARRAY.sum(), memo(2), scaled(3), square(2), SETTINGS.scaled()
        more = FACTOR, CONFIG.rate, SLOTTED.go(), MODE.name, PAIR.a, part(3), *vectorized([2])
        outputs[0][0] = self.extra(inputs[0] * K) * self.k + np.exp(0 * len(values + more))

@as_op([T.dvector], [T.dvector])
def plain(x): return x * scaled(1.0)

OP, x = Scale(2), T.dvector("x")

def build(): return engine.function([x], [OP(x), plain(x)])
"""

ELSEWHERE = """
import pickle, sys
from synk_testing.engine import engine
from synk_core._graph.shared import VariableRegistry
from synk_core._graph.transfer.pickling import loads
from synk_core._graph.users_code import code_of
sent = pickle.load(sys.stdin.buffer)
tables = [code_of(loads(data, VariableRegistry(), buffers)) for data, buffers in sent]
sys.stdout.buffer.write(pickle.dumps((tables, "plugin" in sys.modules)))
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # an edit may follow in the same second
    yield tmp_path / "userslib.py"
    sys.modules.pop("userslib", None)
    sys.modules.pop("plugin", None)


@pytest.fixture
def lib(path):
    path.write_text(SOURCE)
    return importlib.import_module("userslib")


def test_equal_code_is_equal_in_other_processes_by_import_and_by_value(lib, path):
    spec = importlib.util.spec_from_file_location("plugin", path)
    sys.modules["plugin"] = plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    functions = [lib.build(), plugin.build()]
    sent = []
    for function in functions:
        data, buffers = dumps(function, VariableRegistry())
        sent.append((data, [bytes(buffer) for buffer in buffers]))
    environment = {**os.environ, "PYTHONPATH": str(path.parent), "PYTHONHASHSEED": "5"}
    run = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        input=pickle.dumps(sent),
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        timeout=100,
    )
    tables, was_imported = pickle.loads(run.stdout)
    assert not was_imported
    for function, table in zip(functions, tables):
        assert len(table) > 40
        assert differing([code_of(function), table]) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("K = 7.0", "userslib.K differs: float 3.0 on rank 0, 2; float 7.0 on rank 1: import anew"),
        ("TABLE['b'][1].add(5)", "userslib.TABLE"),
        ("ARRAY[3] = 7", "userslib.ARRAY"),
        ("MODE = Mode.FAST", "userslib.MODE"),
        ("SLOTTED.u = 2", "userslib.SLOTTED"),
        ("CONFIG.rate = 2", "userslib.CONFIG"),
        ("FACTOR = 2", "userslib.FACTOR"),
        ("OP.k = 3", "userslib.Scale.k differs: int 2"),
        ("Base.HIDDEN = 8", "userslib.Base.HIDDEN"),
        ("Base.extra = lambda self, v: v", "userslib.Base.extra differs"),
        ("helper.__defaults__ = (3,)", "userslib.helper.__defaults__"),
        ("helper.__code__ = (lambda n, by: n).__code__", "userslib.helper.__code__"),
        ("square = lambda v: v**3", "userslib.<lambda>.__code__"),
        ("scaled.__closure__[0].cell_contents = 5", "userslib.make.<locals>.scaled.factor differs: int 4"),
        ("SETTINGS = Settings(rate=1.0)", "userslib.SETTINGS differs: userslib.Settings(rate=float 0.5)"),
    ],
)
def test_what_has_changed_is_named(lib, change, found):
    function = lib.build()
    before = code_of(function)
    assert is_as_before(function)
    exec(change, vars(lib))
    assert not is_as_before(function)
    words = differing([before, code_of(function), before])
    assert any(found in line for line in words), words
    assert len(words) < 6


def test_what_an_operation_changes_itself_is_its_own(lib):
    function = lib.build()
    before = code_of(function)
    expected = (np.arange(3.0) * 3 + 9) * 2 + 1, np.arange(3.0) * 7
    np.testing.assert_allclose(function(np.arange(3.0)), expected)
    assert lib.CACHE
    assert lib.OP.calls
    assert is_as_before(function)
    assert code_of(function) == before


def test_an_edited_module(lib, path):
    before = lib.build()
    table = code_of(before)
    path.write_text(SOURCE.replace("* self.k", "+ self.k"))
    importlib.reload(lib)
    (line,) = differing([table, code_of(lib.build())])
    assert line.startswith("userslib.Scale.perform.__code__ differs")
    assert "fork() again" in line


def test_operations_in_loops_are_found_and_the_engines_are_not(lib):
    x = T.dvector("x")
    assert not has_users_code(engine.function([x], T.exp(x).sum()))
    looped, _ = engine.scan(lib.OP, outputs_info=[x], n_steps=3)
    function = engine.function([x], looped[-1])
    assert has_users_code(function)
    assert any("userslib.K" in what for what, _ in code_of(function))

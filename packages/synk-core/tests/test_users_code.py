"""Other code or values on a rank are found, and nothing else is."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys

import numpy as np
import pytest

from synk_core._graph.transfer.users_code import code_of, differing, has_users_code, is_as_before
from synk_testing.engine import T, engine

SOURCE = """
import enum, functools, threading, types
import numpy as np
from synk_testing.engine import T, as_op, engine
from synk_core.engine import Apply, Op
K, COUNT, CACHE, SEEN, LOCK = 3.0, 1, {}, [], threading.Lock()
TABLE, ARRAY = {"a": 1, "b": [1, {3, 4}], "words": {"x", "y", "zz", "long"}}, np.arange(10.0)
Mode, CONFIG = enum.Enum("Mode", "FAST SLOW"), types.SimpleNamespace(rate=1)
class Slotted:
    __slots__ = ("u",)
    def __init__(self): self.u = 1
    @functools.lru_cache(maxsize=None)
    def go(self): return self.u
def helper(n, by=2, memo={}):
    memo[n] = n * by + (n in {"p", "q", "rr"})
    return memo[n]
def make(factor):
    return lambda v: v * factor + K
SLOTTED, MODE, scaled, part = Slotted(), Mode.SLOW, make(4), functools.partial(helper, by=5)
vectorized = np.vectorize(lambda v: v**2)
class Base(Op):
    __props__ = ("k",)
    HIDDEN = 9
    def __init__(self, k): self.k, self.calls = k, {"n": 0}
    def make_node(self, x): return Apply(self, [T.as_tensor_variable(x)], [x.type()])
    def extra(self, v): return v + self.HIDDEN
    @functools.cached_property
    def doubled(self): return 2 * self.k
class Scale(Base):
    def perform(self, node, inputs, outputs):
        global COUNT
        from userslib import FACTOR
        COUNT += 1
        self.calls["n"] += 1
        SEEN.append(COUNT)
        with LOCK:
            CACHE[str(COUNT)] = CACHE.get(COUNT, 0) + 1
        some = TABLE["a"], ARRAY.sum(), scaled(3), SLOTTED.go(), MODE.name, self.doubled
        more = FACTOR, CONFIG.rate, part(3), *vectorized([2])
        outputs[0][0] = self.extra(inputs[0] * K) * self.k + np.exp(0 * len(some + more))
@as_op([T.dvector], [T.dvector])
def plain(x): return x * scaled(1.0)
FACTOR, OP, x = 1, Scale(2), T.dvector("x")
def build(): return engine.function([x], [OP(x), plain(x)])
"""

ELSEWHERE = """import userslib, synk_core._graph.transfer.users_code as code
print(code.code_of(userslib.build()))"""

CHANGES = """
K = 7.0 -> K differs: float 3.0 on rank 0, 2; float 7.0 on rank 1: import anew
TABLE['b'][1].add(5) -> TABLE differs
ARRAY[3] = 7 -> ARRAY differs
MODE = Mode.FAST -> MODE differs
SLOTTED.u = 2 -> SLOTTED differs: userslib.Slotted(u=int 1)
CONFIG.rate = 2 -> CONFIG differs
FACTOR = 2 -> FACTOR differs
OP.k = 3 -> Scale.k differs
Base.HIDDEN = 8 -> Base.HIDDEN differs
Base.extra = lambda self, v: v -> Base.extra differs
helper.__code__ = (lambda n, by: n).__code__ -> helper.__code__ differs
vectorized.pyfunc = lambda v: v**3 -> <lambda>.__code__ differs
scaled.__closure__[0].cell_contents = 5 -> make.<locals>.<lambda>.factor differs: int 4
"""


@pytest.fixture
def lib(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # an edit may follow in the same second
    (tmp_path / "userslib.py").write_text(SOURCE)
    yield importlib.import_module("userslib")
    del sys.modules["userslib"]


def test_equal_code_is_equal_in_other_processes(lib):
    function, path = lib.build(), os.path.dirname(lib.__file__)
    assert not has_users_code(engine.function([lib.x], T.exp(lib.x).sum()))
    assert has_users_code(engine.function([lib.x], engine.scan(lib.OP, None, lib.x, n_steps=3)[0]))
    before = code_of(function)
    expected = (np.arange(3.0) * 3 + 9) * 2 + 1, np.arange(3.0) * 7
    np.testing.assert_allclose(function(np.arange(3.0)), expected)
    assert lib.CACHE, lib.SEEN
    assert is_as_before(function)
    assert code_of(function) == before
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "5"}
    printed = subprocess.check_output([sys.executable, "-c", ELSEWHERE], env=environment)
    assert differing([before, ast.literal_eval(printed.decode())]) == []


@pytest.mark.parametrize("line", CHANGES.strip().splitlines())
def test_a_changed_value_is_named(lib, line):
    change, found = line.split(" -> ")
    function = lib.build()
    before = code_of(function)
    assert is_as_before(function)
    exec(change, vars(lib))
    assert not is_as_before(function)
    words = differing([before, code_of(function), before])
    assert any(f"userslib.{found}" in line for line in words[:2]), words


def test_an_edited_module(lib):
    table = code_of(lib.build())
    with open(lib.__file__, "w") as file:
        file.write(SOURCE.replace("* self.k", "+ self.k"))
    importlib.reload(lib)
    lines = differing([table, code_of(lib.build())])
    assert [line.partition(" differs")[0] for line in lines] == ["userslib.Scale.perform.__code__"]

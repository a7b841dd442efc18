"""Fixtures of all tests of functions on ranks: runtimes, kept for all of them, and a leak check."""

from __future__ import annotations

import gc
import os

import cloudpickle
import pytest
from _features import STAND_INS, UNPROVED
from _leaks import no_ranks_left

from synk_core import Runtime
from synk_testing import Zygote

ALL = os.environ.get("SYNK_TESTS") == "all"


@pytest.fixture(scope="module", autouse=True)
def by_value(request):
    """Send what a test module defines by value: workers cannot import it by pytest's name."""
    cloudpickle.register_pickle_by_value(request.module)


@pytest.fixture(scope="session", autouse=True)
def frozen():
    """Exclude all objects from before the first test, the engine's, from garbage collections."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def python_on_cores():
    """If the ranks have stand-ins for GPUs, have functions that JAX cannot translate compute on
    their cores, as a user would."""
    if not STAND_INS:
        yield
        return
    from pytensor.graph.traversal import ancestors
    from pytensor.link.jax.dispatch import jax_funcify

    function, none = Runtime.function, jax_funcify.dispatch(object)

    def somewhere(self, inputs, outputs=None, **kwargs):
        listed = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        ends = [end[0] if isinstance(end, tuple) else end for end in listed]
        updates = kwargs.get("updates") or ()
        ends += [update[1] for update in getattr(updates, "items", lambda: updates)()]
        nodes = [v.owner for v in ancestors([v for v in ends if hasattr(v, "owner")]) if v.owner]
        if any(jax_funcify.dispatch(type(node.op)) is none for node in nodes):
            kwargs.setdefault("mode", "CVM")
        return function(self, inputs, outputs, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runtime, "function", somewhere)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_leaks():
    with no_ranks_left():
        yield


@pytest.fixture(scope="session")
def zygote():
    """A process that has imported the engine and this package: programs fork from it in no time."""
    with Zygote("import synk_shm, synk_core, synk_testing.engine") as made:
        yield made


BEGIN = """
import atexit, os, signal, subprocess, sys, threading, time, warnings
import numpy as np
from synk_core import Runtime
from synk_testing.engine import T, as_op
x = T.dvector("x")
"""


@pytest.fixture(scope="session")
def run_script(zygote):
    """Run Python code to its end, with usual imports: (exit status, standard output, errors)."""
    return lambda code, *arguments: zygote.run(BEGIN + code, *arguments)


# Three have uneven shares and one in the middle; two are there as `pair`.
@pytest.fixture(scope="session", params=[1, 2, 3, 4] if ALL else [1, 3])
def runtime(request):
    if request.param == 3:
        yield request.getfixturevalue("trio")
        return
    with Runtime(request.param) as opened:
        yield opened


@pytest.fixture(scope="session")
def trio():
    with Runtime(3) as opened:
        yield opened


@pytest.fixture(scope="module")
def house():
    """A runtime of three ranks for attempts with anything, looked at once more at the end."""
    from _fuzz import House

    with Runtime(3, use_gpu=False) as runtime:
        made = House(runtime)
        yield made
        made.check_memory(30)


@pytest.fixture(scope="session")
def pair():
    with Runtime(2) as opened:
        yield opened


@pytest.fixture
def unproved(monkeypatch):
    """Prove no calls: operations misbehave by their rows, and the master would compute all."""
    function = Runtime.function

    def without(self, *args, **kwargs):
        return function(self, *args, **{**UNPROVED, **kwargs})

    monkeypatch.setattr(Runtime, "function", without)

"""`synk_theano` has the names that it had before synk-core was a package of its own."""

from __future__ import annotations

import importlib
import pickle

import pytest

import synk_theano
from synk_theano.exceptions import SynkError, WorkerDied
from synk_theano.flight import folder
from synk_theano.in_graph import all_reduce
from synk_theano.mpi import launched

MODULES = ("engine", "exceptions", "flight", "in_graph", "mpi")


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_those_of_the_core(name):
    module = importlib.import_module(f"synk_theano.{name}")
    assert module is importlib.import_module(f"synk_core.{name}")
    assert module is getattr(synk_theano, name)


def test_names_are_the_same_objects():
    core = importlib.import_module("synk_core")
    assert (synk_theano.SynkError, synk_theano.WorkerDied) == (SynkError, WorkerDied)
    assert all_reduce is core.in_graph.all_reduce
    assert folder is core.flight.folder
    assert launched is core.mpi.launched
    assert pickle.loads(pickle.dumps(synk_theano.Runtime)) is core.Runtime

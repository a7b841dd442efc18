"""Which graph engine a process computes with, by the adapters that are installed."""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from types import SimpleNamespace

import numpy as np
import pytest

import synk_core.engine
from synk_core import Runtime, _adapters, engine
from synk_testing.engine import NAME, T, as_op, change_flags


def put(folder, name):
    """Install an engine's adapter in a folder: what importlib.metadata looks for."""
    info = folder / f"synk_{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: synk-{name}\n")
    (info / "entry_points.txt").write_text(f"[{_adapters.GROUP}]\n{name} = synk_{name}\n")


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Only a folder's distributions are installed."""
    every = metadata.distributions
    monkeypatch.setattr(metadata, "distributions", lambda: every(path=[str(tmp_path)]))
    return tmp_path


def test_the_engine_of_this_environment_is_found():
    (adapter,) = _adapters.installed()
    assert (adapter.engine, adapter.distribution) == (NAME, f"synk-{NAME}")
    assert synk_core.engine.NAME == NAME
    assert adapter.module == synk_core.engine.ADAPTER
    assert _adapters.chosen() == adapter


def test_of_several_the_imported_one_is_chosen_else_the_first_by_name(alone, monkeypatch):
    with pytest.raises(ImportError, match="pip install synkhronos brings the one for this Python"):
        _adapters.chosen()
    for name in ("zebra", "aardvark", "mole"):
        put(alone, name)
    assert [one.engine for one in _adapters.installed()] == ["aardvark", "mole", "zebra"]
    assert _adapters.chosen().engine == "aardvark"
    monkeypatch.setitem(sys.modules, "zebra", sys)
    assert _adapters.chosen() == ("zebra", "synk_zebra", "synk-zebra")
    monkeypatch.setitem(sys.modules, "mole", sys)
    assert _adapters.chosen().engine == "mole"


def test_an_adapter_for_another_version_is_refused_with_the_cure(monkeypatch):
    whole = importlib.import_module(engine.ADAPTER)
    lacking = {name: getattr(whole, name) for name in engine.__all__ if name not in ("T", "link")}
    monkeypatch.setitem(sys.modules, "synk_other._engine", SimpleNamespace(**lacking))
    before = engine.T
    said = "lacks T, link, .*: pip install --upgrade synk-core synk-other"
    with pytest.raises(ImportError, match=said):
        engine.load("synk_other._engine")
    assert engine.T is before


@pytest.mark.feature("finite", "proof", "stats", "timeline")
def test_all_names_of_the_adapters_package_are_the_cores():
    package = __import__(f"synk_{NAME}")
    assert package.__all__ == synk_core.__all__
    assert dir(package) == dir(synk_core)
    names = [*synk_core.__all__, "engine", "exceptions", "in_graph", "mpi"]
    assert [n for n in names if getattr(package, n) is not getattr(synk_core, n)] == []
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(package, "no_such_name")  # noqa: B009 - a name that is not there


@pytest.mark.c_code
def test_workers_compute_with_the_masters_engine_and_options(tmp_path, monkeypatch):
    """Not with the one that they would choose: another is installed, and is first by its name."""
    x = T.dvector("x")

    @as_op([T.dvector], [T.dvector])
    def look(values):
        config = sys.modules[NAME].config
        return np.full(len(values), float(config.cxx == "" and config.on_opt_error == "raise"))

    put(tmp_path, "aaa")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _adapters.installed()[0].engine == "aaa"
    with change_flags(cxx="", on_opt_error="raise"), Runtime(2, use_gpu=False) as runtime:
        f = runtime.function([x], (look(x), "gather"))
        np.testing.assert_array_equal(f(np.zeros(4)), np.ones(4))

"""The hook: import orders, switches, the user's flags, and environments without Theano."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import synk_theano_compat

SITE = Path(synk_theano_compat.__file__).parent.parent

WORKS = """
import theano, theano.tensor as T, numpy as np
assert theano.function([], T.dot(np.eye(2), np.eye(2)))().tolist() == [[1, 0], [0, 1]]
from synk_theano_compat._patches import apply
assert [r for _, _, r in apply.applied if r.startswith("failed")] == []
assert {"P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P11", "P12", "P15", "lock"} <= {
    name for name, _, _ in apply.applied
} | {"P6"}
"""

NIGHT = [
    "import synk_theano_compat.locks, synk_theano_compat._status",
    "import theano.tensor.signal.pool",
    "import os; before = dict(os.environ); import theano; assert dict(os.environ) == before",
    """
import threading, importlib
threads = [threading.Thread(target=importlib.import_module, args=("theano",)) for _ in range(2)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
""",
]


@pytest.mark.parametrize(
    "first", ["", *(pytest.param(first, marks=pytest.mark.nightly) for first in NIGHT)]
)
def test_whatever_is_imported_first(run, first: str):
    assert run(f"{first}\n{WORKS}").stderr == ""


@pytest.mark.nightly
@pytest.mark.parametrize("options", [("-I",), ("-O", "-W", "error::RuntimeWarning")])
def test_interpreter_options(run, options):
    run(WORKS, options=options)


def test_without_the_hook_theano_is_as_it_was(run):
    # as with -S, or switched off
    off = run("import sys\nimport theano", env={"SYNK_THEANO_COMPAT": "0"}, fails=True)
    assert "blas_opt_info" in off.stderr or "numpy" in off.stderr


def test_start_imports_next_to_nothing(run):
    code = (
        "import sys, importlib.util\n"
        "seen = ('synk', 'theano', 'numpy', 'importlib.m')\n"
        "print([n for n in sys.modules if n.startswith(seen)])\n"
    )
    assert run(code, env={"SYNK_THEANO_COMPAT": "0"}).stdout == "[]\n"
    looked = (
        "spec = importlib.util.find_spec('theano')\n"
        "assert spec.origin.endswith('__init__.py') and spec.submodule_search_locations\n"
        "assert spec.loader.get_filename('theano') == spec.origin\n"
        "assert 'theano' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    wanted = "['synk_theano_compat', 'synk_theano_compat._hook']\n"
    assert run(code + looked).stdout == wanted


def test_nothing_of_the_wrapper_stays_and_the_hook_is_there_once(forked):
    forked(
        "import theano, inspect, pickle, importlib.machinery as m\n"
        "from theano.tensor.sort import _topk_py_impl as topk\n"
        "assert type(theano.__loader__) is type(theano.__spec__.loader) is m.SourceFileLoader\n"
        "assert inspect.getsource(topk).startswith('def _topk_py_impl(')\n"
        "assert pickle.loads(pickle.dumps(topk)) is topk\n"
        "import sys, synk_theano_compat._hook as hook\n"
        "hook.install(), hook.install()\n"
        "assert sum(isinstance(f, hook.Finder) for f in sys.meta_path) == 1 and hook.installed()\n"
    )


WITHOUT = f"""
import importlib.util, site, sys
from importlib.machinery import PathFinder
site.addsitedir({str(SITE)!r})
assert any("synk" in repr(finder) for finder in sys.meta_path)
find = PathFinder.find_spec
PathFinder.find_spec = classmethod(
    lambda cls, name, *more: None if name.startswith("theano") else find(name, *more)
)
assert importlib.util.find_spec("theano") is None
import theano
"""


def test_environment_without_theano():
    command = [sys.executable, "-S", "-c", WITHOUT]  # without site-packages
    how = {"capture_output": True, "text": True, "timeout": 60, "check": False}
    done = subprocess.run(command, env={"PATH": ""}, **how)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("ModuleNotFoundError: No module named 'theano'")
    assert "synk" not in done.stderr.split("Traceback")[1].replace(str(SITE), "")


SHOW = (
    "import theano, json\n"
    "c = theano.config\n"
    "print(json.dumps([c.device, c.force_device, c.blas.ldflags, c.floatX, c.compile.wait]))"
)


def test_flags_of_the_environment_win(run):
    mine = "device=cpu,floatX=float32,'blas.ldflags=',compile.wait=3"
    assert json.loads(run(SHOW, flags=mine).stdout) == ["cpu", False, "", "float32", 3]


RC = """
[global]
base_compiledir = {0}
floatX = float32
force_device = False
[blas]
ldflags = -lm
[compile]
wait = 4
"""


@pytest.mark.parametrize("at_home", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_flags_of_the_users_file_win(run, tmp_path: Path, at_home: bool):
    rc = tmp_path / (".theanorc" if at_home else "my.theanorc")
    rc.write_text(RC.format(tmp_path))
    code, env = SHOW, {"THEANORC": str(rc)}
    if at_home:
        code = "import os; del os.environ['THEANORC']\n" + SHOW
        env = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for flags, ldflags in (("", "-lm"), ("blas.ldflags=", "")):
        shown = json.loads(run(code, env=env, flags=flags).stdout)
        assert shown == ["cpu", False, ldflags, "float32", 4]


@pytest.mark.nightly
def test_without_compiler_theano_says_so_once(run, tmp_path: Path):
    code = "import theano, theano.tensor as T\nprint(theano.function([], T.dot([[2.]], [[3.]]))())"
    done = run(code, env={"PATH": str(tmp_path)}, flags=f"base_compiledir={tmp_path}")
    assert done.stdout == "[[6.]]\n"
    assert "g++ not detected" in done.stderr
    assert "NumPy C-API" not in done.stderr

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


@pytest.mark.parametrize(
    "first",
    [
        "",
        *(
            pytest.param(first, marks=pytest.mark.nightly)
            for first in (
                "import synk_theano_compat.locks, synk_theano_compat._status",
                "import theano.tensor.signal.pool",
            )
        ),
    ],
)
def test_import_orders(run, first: str):
    assert run(f"{first}\n{WORKS}").stderr == ""


@pytest.mark.nightly
def test_import_in_a_thread(run):
    code = (
        "import threading, importlib\n"
        "threads = [threading.Thread(target=importlib.import_module, args=('theano',))"
        " for _ in range(2)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
    )
    assert run(code + WORKS).stderr == ""


@pytest.mark.nightly
@pytest.mark.parametrize("options", [("-I",), ("-O", "-W", "error::RuntimeWarning")])
def test_interpreter_options(run, options):
    run(WORKS, options=options)


def test_without_the_hook_theano_is_as_it_was(run):
    # as with -S, or switched off
    off = run("import sys\nimport theano", env={"SYNK_THEANO_COMPAT": "0"}, fails=True)
    assert "blas_opt_info" in off.stderr or "numpy" in off.stderr
    run(
        "import sys; assert 'synk_theano_compat' not in sys.modules",
        env={"SYNK_THEANO_COMPAT": "0"},
    )


def test_start_imports_next_to_nothing(run):
    code = (
        "import sys\n"
        "seen = ('synk', 'theano', 'numpy', 'importlib.m')\n"
        "print([n for n in sys.modules if n.startswith(seen)])"
    )
    assert run(code).stdout == "['synk_theano_compat', 'synk_theano_compat._hook']\n"


def test_find_spec_does_not_import(run):
    run(
        "import sys, importlib.util\n"
        "spec = importlib.util.find_spec('theano')\n"
        "assert spec.origin.endswith('__init__.py') and spec.submodule_search_locations\n"
        "assert spec.loader.get_filename('theano') == spec.origin\n"
        "assert 'theano' not in sys.modules and 'numpy' not in sys.modules\n"
    )


def test_nothing_of_the_wrapper_stays(forked):
    forked(
        "import theano, inspect, pickle, importlib.machinery as m\n"
        "from theano.tensor.sort import _topk_py_impl as topk\n"
        "assert type(theano.__loader__) is type(theano.__spec__.loader) is m.SourceFileLoader\n"
        "assert inspect.getsource(topk).startswith('def _topk_py_impl(')\n"
        "assert pickle.loads(pickle.dumps(topk)) is topk\n"
    )


def test_install_is_idempotent(run):
    run(
        "import sys, synk_theano_compat._hook as h\n"
        "h.install(); h.install()\n"
        "assert sum(isinstance(f, h.Finder) for f in sys.meta_path) == 1 and h.installed()\n"
    )


def test_environment_without_theano():
    # -S -E: no site-packages, so no theano; only our folder is added
    code = (
        f"import site, sys; site.addsitedir({str(SITE)!r})\n"
        f"sys.path[:] = [p for p in sys.path if 'site-packages' not in p or p == {str(SITE)!r}]\n"
        "import importlib.util\n"
        "assert any('synk' in repr(f) for f in sys.meta_path)\n"
        "from importlib.machinery import PathFinder\n"
        "real = PathFinder.find_spec\n"
        "PathFinder.find_spec = classmethod(lambda c, n, p=None, t=None:"
        " None if n.startswith('theano') else real(n, p, t))\n"
        "assert importlib.util.find_spec('theano') is None\n"
        "import theano"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
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


def test_flags_of_the_users_file_win(run, tmp_path: Path):
    rc = tmp_path / "my.theanorc"
    rc.write_text(
        f"[global]\nbase_compiledir = {tmp_path}\nfloatX = float32\nforce_device = False\n"
        "[blas]\nldflags = -lm\n[compile]\nwait = 4\n"
    )
    shown = json.loads(run(SHOW, env={"THEANORC": str(rc)}).stdout)
    assert shown == ["cpu", False, "-lm", "float32", 4]
    # the environment beats the file, as in Theano
    both = run(SHOW, env={"THEANORC": str(rc)}, flags="blas.ldflags=").stdout
    assert json.loads(both)[2] == ""


@pytest.mark.nightly
def test_home_theanorc_is_read(run, tmp_path: Path):
    (tmp_path / ".theanorc").write_text("[blas]\nldflags =\n[global]\nfloatX=float32\n")
    env = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    code = "import os; del os.environ['THEANORC']\nos.environ['THEANO_FLAGS'] = 'cxx='\n" + SHOW
    assert json.loads(run(code, env=env).stdout)[2:4] == ["", "float32"]


@pytest.mark.nightly
def test_environment_is_not_touched(run):
    run("import os; b = dict(os.environ); import theano; assert dict(os.environ) == b")


@pytest.mark.nightly
def test_without_compiler_theano_says_so_once(run, tmp_path: Path):
    code = "import theano, theano.tensor as T\nprint(theano.function([], T.dot([[2.]], [[3.]]))())"
    done = run(code, env={"PATH": str(tmp_path)}, flags=f"base_compiledir={tmp_path}")
    assert done.stdout == "[[6.]]\n"
    assert "g++ not detected" in done.stderr
    assert "NumPy C-API" not in done.stderr

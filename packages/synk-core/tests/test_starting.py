"""Workers start no workers, and find what the master has, wherever that is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from synk_comm.processes import NO_RANKS
from synk_core._graph import environment
from synk_core.exceptions import StartError

GUARD = 'put the call under `if __name__ == "__main__":`'

UNGUARDED = """
import os
os.environ["DEPTH"] = str(int(os.environ.get("DEPTH", 0)) + 1)
assert int(os.environ["DEPTH"]) < 4  # the end, should workers start workers
import synk_core
from synk_testing.engine import T, as_op
def twice(x): return 2 * x
runtime = synk_core.Runtime(2, use_gpu=False)
x = T.dvector()
f = runtime.function([x], (as_op([T.dvector], [T.dvector])(twice)(x), "gather"))
f([1.0, 2.0])
"""


def test_a_module_that_starts_workers_is_refused_in_a_worker(zygote, tmp_path):
    """A worker imports it to find what it defines."""
    (tmp_path / "unguarded.py").write_text(UNGUARDED)
    status, _, err = zygote.run("import unguarded", folder=tmp_path)
    assert status == 1
    (said,) = [line for line in err.splitlines() if line.startswith("synk_core.exceptions.Worker")]
    assert "rank 1 failed in distribute(): StartError: fork() was called in a worker" in said
    assert GUARD in said
    assert "synkhronos run" in said


def test_nothing_below_a_worker_starts_ranks():
    code = "from synk_comm.processes import require_leave; require_leave('fork()')"
    below = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], env={{}})"
    command = [sys.executable, "-c", below]
    done = subprocess.run(command, env={NO_RANKS: "a worker"}, capture_output=True, text=True)
    assert "fork() was called in a worker, or below it" in done.stderr
    assert GUARD in done.stderr


WITHOUT = """
import sys
import synk_core
python, sys.executable, sys.frozen = sys.executable, "/opt/app/application", True
try:
    synk_core.Runtime(2, use_gpu=False)
except synk_core.StartError as error:
    print(error)
import multiprocessing
multiprocessing.set_executable(python)
with synk_core.Runtime(2, use_gpu=False) as runtime:
    runtime.distribute()
"""


def test_without_a_python_the_error_says_how_to_name_one(zygote):
    status, out, err = zygote.run(WITHOUT)
    assert status == 0, err
    assert "sys.executable is '/opt/app/application', no Python to start ranks with" in out
    assert "multiprocessing.set_executable('/usr/bin/python3')" in out


HOMES = '''
import importlib.util, os, pathlib, sys, types
from synk_testing.engine import T, as_op

def module(name):
    made = types.ModuleType(name)
    sys.modules[name] = made
    return made

sys.path.append("relative")
import one
sys.path.append("")
import two
importlib.invalidate_caches()
os.chdir("elsewhere")
sys.path += [pathlib.Path("no text"), "with:colon", "\\udcff"]
source = """import functools, threading
FACTOR, LOCK = 2, threading.RLock()
@functools.lru_cache(None)
def power(n): return FACTOR * power(n - 1) if n else 1
def twice(x):
    with LOCK: return power(1) * x
"""
exec(source, globals())
exec(source, vars(module("made")))
module("plugins").__path__ = []
exec(source, vars(module("plugins.inner")))
spec = importlib.util.spec_from_file_location("loaded", "../file.py")
loaded = sys.modules["loaded"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loaded)
os.unlink("../file.py")

from synk_core import Runtime
x = T.dvector()

def computed(function):
    f = runtime.function([x], (as_op([T.dvector], [T.dvector])(function)(x), "gather"))
    return f([1.0, 2.0]).tolist()

with Runtime(2, use_gpu=False) as runtime:
    for name in ("one", "two", "made", "plugins.inner", "loaded", "__main__"):
        print(name, computed(sys.modules[name].twice))
    print("whole", computed(lambda x: loaded.twice(x)))
    os.mkdir("../late")  # which the workers have looked for in vain
    sys.path.append(os.path.abspath("../late"))
    computed(lambda x: x)
    with open("../late/added.py", "w") as file:
        file.write("ONCE = (i for i in ())\\n" + source.replace("* x", "* (ONCE and x)"))
    importlib.invalidate_caches()
    import added
    print("added", computed(added.twice))
    os.chdir("..")
    def in_folder(x): return x * os.path.exists("elsewhere")
    print("folder", computed(in_folder))
    def in_vain(x):
        import made
        return x
    try:
        computed(in_vain)
    except ModuleNotFoundError as error:
        print(error.rank, str(error).splitlines()[1])
'''


def test_workers_find_the_modules_of_the_master(zygote, tmp_path):
    (tmp_path / "relative").mkdir()
    (tmp_path / "elsewhere").mkdir()
    source = "ONCE = (i for i in ())\ndef twice(x): ONCE; return 2 * x\n"
    for name in ("relative/one.py", "two.py"):  # by value they could not be sent
        (tmp_path / name).write_text(source)
    source = "import threading\nLOCK = threading.Lock()\ndef twice(x): LOCK; return 2 * x\n"
    (tmp_path / "file.py").write_text(source)
    status, out, err = zygote.run(HOMES, folder=tmp_path)
    assert status == 0, err
    *computed, folder, vain = out.splitlines()
    names = ("one", "two", "made", "plugins.inner", "loaded", "__main__", "whole", "added")
    assert computed == [f"{name} [2.0, 4.0]" for name in names]
    assert folder == "folder [1.0, 2.0]"
    assert vain.startswith("1 Rank 1 does not find the module 'made': on every host, install it")
    assert "sys.path.append('/its/folder')" in vain


def test_a_folder_that_is_gone_is_no_affair_of_hosts_on_one_machine(tmp_path):
    before = os.getcwd()
    with pytest.raises(StartError) as caught:
        environment.follow(sys.path, str(tmp_path / "gone"), None)
    assert "is not there ([Errno 2]" in str(caught.value)
    assert "os.chdir()" in str(caught.value)
    assert "host" not in str(caught.value)
    assert os.getcwd() == before

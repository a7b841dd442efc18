"""The compile lock and the module cache, with several fresh processes."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def uncompiled(tmp_path: Path) -> str:
    """Flags for a cache of this test's own, without a compiler."""
    return f"base_compiledir={tmp_path},cxx="


def test_known_module_under_a_new_key_stays_in_memory(run, cold: str):
    # Without worker_cache the same takes the lock, to write the key to disk.
    code = """
import theano, theano.tensor as T, numpy as np
from theano.gof import cmodule, compilelock
from theano.gof.cc import get_module_cache
WORKER
locked = []
lock = compilelock.lock
def watched(*args, **kwargs):
    locked.append(args)
    return lock(*args, **kwargs)
x = T.matrix()
f = theano.function([x], T.exp(x) + 1)
cache = get_module_cache()
known = next(k for k in cache.module_hash_to_key_data.values() if k.keys)
before = open(known.key_pkl, "rb").read()
compilelock.lock = watched
version, rest = next(iter(known.keys))
module = cache._get_from_hash(known.module_hash, (version, (*rest, ("new",))), keep_lock=False)
assert module.__file__ == known.get_entry()
print(len(locked), before == open(known.key_pkl, "rb").read())
"""
    worker = "from synk_theano_compat.locks import worker_cache; worker_cache()"
    assert run(code.replace("WORKER", worker), flags=cold).stdout == "0 True\n"
    assert run(code.replace("WORKER", ""), flags=cold).stdout == "1 False\n"


def test_worker_leaves_cleaning_to_others(run, uncompiled: str):
    code = (
        "import theano\n"
        "from synk_theano_compat.locks import worker_cache, refresh_cache\n"
        "from theano.gof import cmodule\n"
        "import pathlib\n"
        "worker_cache(); worker_cache()\n"
        "ruin = pathlib.Path(theano.config.compiledir, 'tmpruin'); ruin.mkdir()\n"
        "refresh_cache(); cmodule._module_cache.refresh(cleanup=True)\n"
        "assert ruin.exists()\n"
    )
    run(code, flags=uncompiled)


HOLD = """
import theano
from theano.gof import compilelock
with compilelock.lock_ctx():
    print("held", flush=True)
    input()
"""
WAIT = """
import theano, time
from theano.gof import compilelock
waits = []
sleep = time.sleep
def noted(seconds):
    sleep(seconds)
    if sum(waits) < 3 <= sum(waits) + seconds:
        print("waits", flush=True)
    waits.append(seconds)
time.sleep = noted
with compilelock.lock_ctx():
    pass
print(max(waits))
"""


def test_lock_is_polled_fast_and_quietly(spawn, uncompiled: str):
    holder = spawn(HOLD, flags=uncompiled)
    assert holder.line() == "held"
    waiter = spawn(WAIT, flags=uncompiled)
    assert waiter.line() == "waits"
    holder.send()
    status, out, err = waiter.finish()
    assert status == 0, err
    assert float(out) <= 0.04
    assert "Waiting" not in err


def test_a_long_wait_is_said(run, uncompiled: str):
    code = (
        "import theano\n"
        "from synk_theano_compat import locks\n"
        "import logging, time\n"
        "log = logging.getLogger('theano.gof.compilelock')\n"
        "(messages,) = [f for f in log.filters if isinstance(f, locks._LockMessages)]\n"
        "clock = [0.0]\n"
        "time.monotonic = lambda: clock[0]\n"
        "messages.begin()\n"
        "for second in (1, 6, 7, 65, 67):\n"
        "    clock[0] = second\n"
        "    log.info('Waiting for existing lock by %s', second)\n"
        "    log.info('To manually release the lock, delete %s', second)\n"
        "log.info('Refreshing lock %s', 0)\n"
    )
    lines = run(code, flags=uncompiled).stderr.splitlines()
    said = [line.rsplit(" ", 1)[1] for line in lines if line.startswith("INFO")]
    assert said == ["6", "6", "67", "67", "0"]


def test_each_process_waits_in_its_own_way(run, uncompiled: str):
    code = (
        "import theano, numpy as np\n"
        "state = np.random.get_state()[1].tolist()\n"
        "from theano.gof import compilelock\n"
        "print(compilelock.random.uniform())"
    )
    assert run(code, flags=uncompiled).stdout != run(code, flags=uncompiled).stdout


def test_a_wait_the_user_has_set_is_kept(run, uncompiled: str):
    code = "import theano\nfrom theano.gof import compilelock\nprint(compilelock.lock.__module__)"
    assert run(code, flags=uncompiled).stdout == "synk_theano_compat.locks\n"
    assert run(code, flags=uncompiled + ",compile.wait=2").stdout == "theano.gof.compilelock\n"


def test_the_lock_is_released_when_something_fails_under_it(run, uncompiled: str):
    code = (
        "import os, theano\n"
        "from theano.gof import compilelock\n"
        "folder = os.path.join(theano.config.compiledir, 'lock_dir')\n"
        "for error in (OSError, KeyboardInterrupt):\n"
        "    try:\n"
        "        with compilelock.lock_ctx():\n"
        "            held = os.path.isdir(folder)\n"
        "            raise error\n"
        "    except error:\n"
        "        print(held, compilelock.get_lock.n_lock, os.path.isdir(folder))\n"
        "with compilelock.lock_ctx():\n"
        "    pass\n"
        "print(os.path.isdir(folder))\n"
    )
    assert run(code, flags=uncompiled).stdout == 2 * "True 0 False\n" + "False\n"


def test_a_lock_that_cannot_be_written_stands_in_nobodys_way(run, uncompiled: str):
    """As on a full disk, where the folder can be made, and the file in it cannot be written."""
    code = (
        "import os, time, theano\n"
        "from theano.gof import compilelock\n"
        "folder = os.path.join(theano.config.compiledir, 'lock_dir')\n"
        "plain = open\n"
        "def full(path, mode='r'):\n"
        "    if 'w' in mode:\n"
        "        raise OSError(28, 'No space left on device')\n"
        "    return plain(path, mode)\n"
        "compilelock.open = full\n"
        "start = time.monotonic()\n"
        "try:\n"
        "    compilelock.get_lock()\n"
        "except OSError as error:\n"
        "    print(error.errno, time.monotonic() - start < 60, os.path.isdir(folder))\n"
        "del compilelock.open\n"
        "with compilelock.lock_ctx():\n"
        "    print(os.path.isdir(folder))\n"
    )
    assert run(code, flags=uncompiled).stdout == "28 True False\nTrue\n"

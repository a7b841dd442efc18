"""The compile lock and the module cache, with several fresh processes."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def uncompiled(tmp_path: Path) -> str:
    """Flags for a cache of this test's own, without a compiler."""
    return f"base_compiledir={tmp_path},cxx="


def test_known_module_under_a_new_key_stays_in_memory(run, tmp_path: Path):
    # Without worker_cache the same takes the lock, to write the key to disk.
    code = """
import theano, theano.tensor as T
from theano.gof import compilelock
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
    for first, said in ((worker, "0 True\n"), ("", "1 False\n")):
        flags = f"base_compiledir={tmp_path}"
        assert run(code.replace("WORKER", first), flags=flags).stdout == said


def test_worker_leaves_cleaning_to_others(run, uncompiled: str):
    code = (
        "import theano\n"
        "from synk_theano_compat.locks import worker_cache, refresh_cache\n"
        "from theano.gof import cmodule\n"
        "import pathlib\n"
        "worker_cache(), worker_cache()\n"
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


def test_each_process_waits_in_its_own_way_unless_the_user_has_set_one(run, uncompiled: str):
    code = (
        "import theano\nfrom theano.gof import compilelock\n"
        "print(compilelock.lock.__module__, compilelock.random.uniform())"
    )
    (ours, first), (again, second) = (run(code, flags=uncompiled).stdout.split() for _ in "ab")
    assert ours == again == "synk_theano_compat.locks"
    assert first != second
    own = run(code, flags=uncompiled + ",compile.wait=2").stdout
    assert own.startswith("theano.gof.compilelock ")


# As on a full disk, where the folder can be made, and the file in it cannot be written.
RELEASED = """
import os, time, theano
from theano.gof import compilelock
folder = os.path.join(theano.config.compiledir, "lock_dir")
for error in (OSError, KeyboardInterrupt):
    try:
        with compilelock.lock_ctx():
            assert os.path.isdir(folder)
            raise error
    except error:
        assert not compilelock.get_lock.n_lock and not os.path.isdir(folder)
plain = open
def full(path, mode="r"):
    if "w" in mode:
        raise OSError(28, "No space left on device")
    return plain(path, mode)
compilelock.open = full
start = time.monotonic()
try:
    compilelock.get_lock()
except OSError as error:
    assert error.errno == 28 and time.monotonic() - start < 60 and not os.path.isdir(folder)
else:
    raise AssertionError("no error")
del compilelock.open
with compilelock.lock_ctx():
    assert os.path.isdir(folder)
assert not os.path.isdir(folder)
"""


def test_the_lock_is_released_when_something_fails(run, uncompiled: str):
    run(RELEASED, flags=uncompiled)

"""Users of one machine cannot see or change each other's segments, unless both allow it."""

from __future__ import annotations

import os
import pickle

import pytest

import synk_shm as shm

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")

NOBODY = 65534


@pytest.fixture
def given(given):
    """As in conftest.py; also removes what another user leaves under these names."""
    names = []
    yield lambda word: names.append(given(word)) or names[-1]
    for name in names:
        path = f"/dev/shm/synk.u.{name}"
        if os.path.exists(path) and os.stat(path).st_uid == NOBODY:
            inode = os.stat(path).st_ino
            for entry in list(os.scandir("/dev/shm")):
                if entry.inode() == inode:
                    os.unlink(entry.path)


BECOME_NOBODY = """
import hashlib, importlib, multiprocessing.reduction, multiprocessing.util, pkgutil

for module in pkgutil.iter_modules(shm.__path__):  # other users may not see their folder
    if module.name != "testing":
        importlib.import_module("synk_shm." + module.name)

def become_nobody():
    os.setgid(65534)
    os.setuid(65534)
"""


def test_users_are_separate_unless_both_allow_it(script, given):
    """Fixed names: two users of one machine clash, or open each other's memory."""
    name, trap, public = given("user"), given("trap"), given("public")
    mine = shm.ones(3, name=name)
    ours = shm.full(3, 2.0, name=public, mode=0o666)
    other = script.start(
        BECOME_NOBODY
        + """
become_nobody()
name, trap, public, text = sys.argv[1:]
trap = shm.full(3, 9.0, name=trap, mode=0o666)
errors = refused(shm.ShmError, lambda: shm.ones(3, name=name), lambda: shm.attach(name),
                 lambda: attach_hex(text), lambda: shm.attach(public), lambda: shm.unlink(public))
assert ["owner_uid" in str(error) for error in errors[1:4]] == [False, False, True]
assert shm.attach(public, owner_uid=0).sum() == 6
kinds = [type(error).__name__ for error in errors[:4]]
print(*kinds, name in str(shm.list()), name in str(shm.cleanup()), flush=True)
sys.stdin.readline()
""",
        *(name, trap, public, pickle.dumps(shm.handle(mine)).hex()),
    )
    refusals = ["ShmExistsError", *["ShmPermissionError"] * 3, "False", "False"]
    assert other.line().split() == refusals
    with pytest.raises(PermissionError, match="owner_uid"):
        shm.attach(trap)
    with pytest.raises(FileExistsError):
        shm.ones(3, name=trap)
    assert shm.attach(trap, owner_uid=NOBODY).sum() == 27
    other.kill()
    path = f"/dev/shm/synk.u.{trap}"
    assert trap not in str(shm.cleanup())  # only its own user may remove it
    assert os.stat(path).st_uid == NOBODY
    script.run(BECOME_NOBODY + "become_nobody()\nshm.cleanup()")
    assert not os.path.exists(path)
    assert shm.attach(name).sum() == 3
    assert shm.attach(public).sum() == ours.sum()


def test_a_process_that_becomes_another_user_leaves_nothing(script, given):
    """A daemon may give up its rights: its segments belong to another user then."""
    names = given("before"), given("after")
    paths = [f"/dev/shm/synk.u.{name}" for name in names]
    code = """
a = shm.ones(3, name=sys.argv[1])
become_nobody()
b = shm.ones(3, name=sys.argv[2])
print(os.getuid(), flush=True)
sys.stdin.readline()
"""
    daemon = script.start(BECOME_NOBODY + code, *names)
    assert daemon.line() == str(NOBODY)
    daemon.kill()
    shm.cleanup()
    script.run(BECOME_NOBODY + "become_nobody()\nshm.cleanup()")
    assert [path for path in paths if os.path.exists(path)] == []

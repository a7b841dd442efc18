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


def test_users_are_separate(script, given):
    """Fixed names: two users of one machine clash, or open each other's memory."""
    name, trap = given("user"), given("trap")
    mine = shm.ones(3, name=name)
    other = script.start(
        BECOME_NOBODY
        + """
become_nobody()
trap = shm.full(3, 9.0, name=sys.argv[2], mode=0o666)
errors = refused(shm.ShmError, lambda: shm.ones(3, name=sys.argv[1]),
                 lambda: shm.attach(sys.argv[1]), lambda: attach_hex(sys.argv[3]))
kinds = [type(error).__name__ for error in errors]
print(*kinds, sys.argv[1] in str(shm.list()), sys.argv[1] in str(shm.cleanup()), flush=True)
sys.stdin.readline()
""",
        name,
        trap,
        pickle.dumps(shm.handle(mine)).hex(),
    )
    assert other.line() == ("ShmExistsError ShmPermissionError ShmPermissionError False False")
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


def test_a_process_that_becomes_another_user_leaves_nothing(script, given):
    """After a daemon has given up its rights, its segments belong to another user."""
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


def test_segments_that_both_users_allow(script, given):
    private, public = given("private"), given("public")
    a = shm.ones(3, name=private)
    b = shm.full(3, 2.0, name=public, mode=0o666)
    out = script.run(
        BECOME_NOBODY
        + """
become_nobody()
private, public = sys.argv[1:]
for name, options in [(private, {}), (public, {}), (public, {"owner_uid": 0})]:
    try:
        print(shm.attach(name, **options).sum())
    except PermissionError as error:
        print(type(error).__name__, "owner_uid" in str(error))
print(private in str(shm.list()), private in str(shm.cleanup()))
refused(shm.ShmError, lambda: shm.unlink(public))
""",
        private,
        public,
    )
    assert out.splitlines() == [
        "ShmPermissionError False",
        "ShmPermissionError True",
        "6.0",
        "False False",
    ]
    assert (a.sum(), shm.attach(public).sum()) == (3, b.sum())

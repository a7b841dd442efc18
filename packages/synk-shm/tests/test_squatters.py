"""Entries of shared memory that other programs make, remove, or may read.

Docstrings name other libraries and their faults.
"""

from __future__ import annotations

import os
import pickle
import secrets
import shutil
import socket
import stat
import subprocess
import time

import pytest

import synk_shm as shm


@pytest.fixture
def squat(tmp_path):
    """A function that makes an entry at a path of shared memory, until the test ends."""
    made = []
    segments = [shm.ones(3)]
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious" * 1000)

    def put(kind, path):
        made.append(path)
        links = {
            "symlink to a file": precious,
            "symlink to a segment": f"/dev/shm{shm.segment(segments[0]).name}",
            "dangling symlink": tmp_path / "missing",
            "symlink to itself": path,
        }
        if kind in links:
            os.symlink(links[kind], path)
        elif kind in ("FIFO", "directory"):
            (os.mkfifo if kind == "FIFO" else os.mkdir)(path)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path)
        elif kind == "hard link to a file":
            source = f"/dev/shm/precious-{secrets.token_hex(5)}"
            shutil.copyfile(precious, source)
            os.link(source, path)
            made.append(source)
        else:
            with open(path, "wb") as file:
                file.write(b"" if kind == "empty file" else b"foreign" * 1000)

    yield put
    assert shm.attach(shm.segment(segments[0]).name).sum() == 3
    segments.clear()  # pytest keeps `put`, and so its variables
    assert precious.read_bytes() == b"precious" * 1000
    assert not (tmp_path / "missing").exists()
    for path in filter(os.path.lexists, made):
        (os.rmdir if stat.S_ISDIR(os.lstat(path).st_mode) else os.unlink)(path)


REGULAR = ["hard link to a file", "empty file", "foreign file"]
KINDS = [
    *("symlink to a file", "symlink to a segment", "dangling symlink", "symlink to itself"),
    *("FIFO", "directory", "socket", *REGULAR),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_squatted_name_is_neither_used_nor_touched(squat, given, tmp_path, kind):
    """Creators without O_EXCL, or that follow links, write into an entry made by others."""
    name = given("squat")
    path = f"/dev/shm/synk.u.{name}"
    squat(kind, path)
    before = os.lstat(path)
    for make in (shm.zeros, shm.share):
        with pytest.raises(FileExistsError):
            make(3, name=name)
    # Opening a FIFO for reading waits for a writer: the helper becomes one after 5 s.
    unblock = f"sleep 5; touch {tmp_path}/hung; [ ! -p {path} ] || exec 3<>{path}"
    rescue = subprocess.Popen(["sh", "-c", unblock])
    for readonly in (False, True):
        with pytest.raises((shm.ShmError, ValueError)):
            shm.attach(name, readonly=readonly, timeout_s=0.05)
    rescue.kill()
    rescue.wait(30)
    assert not (tmp_path / "hung").exists(), "attach hung"
    assert all(info.shape is None for info in shm.list() if info.name == name)
    shm.cleanup()
    after = os.lstat(path)
    for field in ("st_ino", "st_mode", "st_size", "st_nlink"):
        assert getattr(after, field) == getattr(before, field)


def test_a_random_name_that_is_taken(script):
    """A program that guesses a name cannot place memory there: another name is drawn."""
    script.run(
        """
        a = shm.ones(3)
        os.urandom = lambda count: b"x" * count
        b = shm.full(3, 2.0)
        made = []
        for make in (lambda: shm.full(5, 3.0), lambda: shm.share([3.0] * 5)):
            try:
                made.append(make())
            except FileExistsError:
                pass
        assert a.tolist() == [1] * 3 and b.tolist() == [2] * 3
        assert all(c.tolist() == [3] * 5 and not (c == 2).any() for c in made)
        """
    )


USE = """
    a = shm.ones(3)
    assert shm.attach(shm.handle(a), readonly=True).sum() == 3
    assert shm.list() and shm.cleanup() is not None
"""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in REGULAR])
def test_a_squatted_lock_file_stops_no_process(squat, script, kind):
    """Fast-DDS, Ladybird: an entry of others in place of an internal file stops all programs."""
    squat(kind, f"/dev/shm/synk.{os.geteuid()}.{secrets.token_hex(4)}.lock")
    script.run(USE)


def test_a_lease_on_a_lock_file_delays_no_process(script):
    """Any program may lease a file of its own under any name: who opens it waits 45 s."""
    path = f"/dev/shm/synk.{os.geteuid()}.{secrets.token_hex(4)}.lock"
    holder = script.start(
        """
        import fcntl
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        print("held", flush=True)
        sys.stdin.readline()
        os.unlink(sys.argv[1])
        """,
        path,
    )
    assert holder.line() == "held"
    began = time.monotonic()
    script.run(USE)
    with open("/proc/sys/fs/lease-break-time") as file:
        assert time.monotonic() - began < float(file.read()) - 10
    assert os.path.exists(path)  # it looks like that of a living family
    holder.send()
    holder.wait(30)
    assert not os.path.exists(path)


def test_all_entries_are_private(script, given):
    """SharedArray: its files have mode 0666, so all users can read and write them."""
    out = script.run(
        """
        from multiprocessing.reduction import ForkingPickler
        os.umask(0)
        a, b = shm.ones(3), shm.ones(3, name=sys.argv[1])
        message = bytes(ForkingPickler.dumps(b))
        family = shm.segment(a).family
        found = [name for name in os.listdir("/dev/shm") if family in name or sys.argv[1] in name]
        modes = {os.stat("/dev/shm/" + name).st_mode & 0o7777 for name in found}
        print(len(found) >= 4, *map(oct, modes))
        """,
        given("private"),
    )
    assert out == "True 0o600"


def test_no_descriptor_reaches_other_programs(script):
    """Memory files without the close-on-exec flag stay open in programs that are started."""
    script.run(
        """
        a, b = shm.ones(3), shm.ones(3, backend="memfd")
        c = shm.attach(shm.handle(b), readonly=True)
        look = "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in range(3, 60) " \\
            "if os.path.exists(f'/proc/self/fd/{n}')])"
        command = [sys.executable, "-S", "-c", look]
        out = subprocess.run(command, close_fds=False, capture_output=True, text=True)
        assert "synk" not in out.stdout and "[" in out.stdout, out
        """
    )


@pytest.mark.parametrize("backend, room", [("memfd", "other_pids"), ("shm", "small_shm")])
def test_handles_do_not_reach_into_other_containers(script, request, backend, room):
    """In another container the numbers of processes and files, and /dev/shm, are others."""
    a = shm.ones(3, backend=backend)
    code = """
        own = shm.ones(3, backend=sys.argv[2])
        error, = refused(FileNotFoundError, lambda: attach_hex(sys.argv[1]))
        print(error.errno)
        """
    prefix = request.getfixturevalue(room)
    assert script.run(code, pickle.dumps(shm.handle(a)).hex(), backend, prefix=prefix) == "2"


def test_a_family_is_alive_in_all_pid_namespaces(script, other_pids):
    """sglang, Fast-DDS: the pid of an owner in another container looks dead: its memory goes."""
    a = shm.ones(3)
    code = """
        assert sys.argv[1] not in shm.cleanup()
        print(shm.attach(sys.argv[1]).sum(), shm.cleanup().count(sys.argv[1]))
        """
    assert script.run(code, shm.segment(a).name, prefix=other_pids) == "3.0 0"
    assert shm.handle(a).attach().sum() == 3

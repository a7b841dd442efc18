"""``synkhronos clean``: what dead processes left goes, what anybody may use stays."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from _cli import command, invoke

from synkhronos_cli._clean import leftovers
from synkhronos_cli._probe import Answer

SHARED_MEMORY = Path("/dev/shm")
HOUR_AGO = time.time() - 4000


def dead_pid() -> int:
    """The number of a process that is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files, of this process and of the command."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def theano_folder(tmp_path, monkeypatch):
    """An empty folder of compiled modules."""
    base = tmp_path / "theano"
    folder = base / "compiledir_Linux-x"
    folder.mkdir(parents=True)
    monkeypatch.setenv("THEANO_FLAGS", f"floatX=float32,base_compiledir={base}")
    return folder


def lock(folder: Path, owner: str) -> Path:
    (folder / "lock_dir").mkdir()
    (folder / "lock_dir" / "lock").write_text(f"{owner}\n")
    return folder / "lock_dir"


def sockets_in(folder: Path, name: str, *, listening: bool) -> "tuple[Path, socket.socket]":
    group = folder / f"synk-comm-{name}"
    group.mkdir(mode=0o700)
    one = socket.socket(socket.AF_UNIX)
    one.bind(str(group / "0-1"))
    if listening:
        one.listen(1)
    else:
        one.close()
    return group, one


# ---- compile locks -------------------------------------------------------------------------------


def test_a_lock_of_a_dead_process_goes(theano_folder):
    held = lock(theano_folder, f"{dead_pid()}_1234567890_{socket.gethostname()}")
    (found,) = leftovers.find_locks()
    assert (found.kind, found.name, found.removable) == ("compile lock", str(held), True)
    assert "has ended" in found.why
    assert leftovers.remove(found) == ""
    assert list(theano_folder.iterdir()) == []


def test_a_lock_of_a_living_process_stays(theano_folder):
    lock(theano_folder, f"{os.getpid()}_1234567890_{socket.gethostname()}")
    assert leftovers.find_locks() == []
    assert leftovers.find_compiled_modules() == []


def test_a_lock_that_was_taken_meanwhile_stays(theano_folder):
    held = lock(theano_folder, f"{dead_pid()}_1_{socket.gethostname()}")
    (found,) = leftovers.find_locks()
    (held / "lock").write_text(f"{os.getpid()}_2_{socket.gethostname()}\n")
    assert leftovers.remove(found) == "it has a new owner"
    assert (held / "lock").is_file()


def test_a_lock_that_is_a_link_is_left(theano_folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").write_text(f"{dead_pid()}_1_{socket.gethostname()}")
    (theano_folder / "lock_dir").symlink_to(elsewhere)
    assert leftovers.find_locks() == []


def test_a_lock_of_another_machine_is_told_of_only(theano_folder, capfd):
    held = lock(theano_folder, "77_1234567890_some_other_host")
    (found,) = leftovers.find_locks()
    assert not found.removable
    assert "process 77 of some_other_host" in found.why
    done = invoke("clean")
    assert done.exit_code == 0
    assert f"rm -r {held}" in " ".join(done.stdout.split())
    assert held.is_dir()


def test_a_lock_without_owner_goes_when_it_is_old(theano_folder):
    held = theano_folder / "lock_dir"
    held.mkdir()
    assert leftovers.find_locks() == []
    os.utime(held, (HOUR_AGO, HOUR_AGO))
    assert [one.name for one in leftovers.find_locks()] == [str(held)]


def test_folders_are_found_as_theano_finds_them(tmp_path, monkeypatch):
    rc = tmp_path / "rc"
    rc.write_text(f"[global]\nbase_compiledir = {tmp_path / 'a'}\n")
    for name in ("a", "b", "home/.theano"):
        (tmp_path / name / "compiledir_x").mkdir(parents=True)
    monkeypatch.setenv("THEANORC", str(rc))
    monkeypatch.setenv("THEANO_FLAGS", "")
    assert leftovers.compile_folders() == [tmp_path / "a" / "compiledir_x"]
    monkeypatch.setenv("THEANO_FLAGS", f"base_compiledir={tmp_path / 'b'}")
    assert leftovers.compile_folders() == [tmp_path / "b" / "compiledir_x"]
    monkeypatch.setenv("THEANO_FLAGS", f"compiledir={tmp_path / 'c'}")
    assert leftovers.compile_folders() == [tmp_path / "c"]
    monkeypatch.setenv("THEANO_FLAGS", "")
    rc.write_bytes(b"\xff no settings")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert leftovers.compile_folders() == [tmp_path / "home/.theano/compiledir_x"]


def test_compiled_modules_go_when_they_are_asked_for(theano_folder):
    (theano_folder / "module").mkdir()
    (theano_folder / "module" / "mod.so").write_bytes(b"x" * 2048)
    (found,) = leftovers.find_compiled_modules()
    assert (found.name, found.nbytes) == (str(theano_folder), 2048)
    invoke("clean")
    assert theano_folder.is_dir()
    done = invoke("clean", "--theano-cache")
    assert done.exit_code == 0
    assert "removed compiled modules" in done.stdout
    assert list(theano_folder.parent.iterdir()) == []


# ---- socket folders ------------------------------------------------------------------------------


def test_only_folders_without_listeners_go(temporary):
    stale, _ = sockets_in(temporary, "stale", listening=False)
    _, listener = sockets_in(temporary, "live", listening=True)
    (temporary / "synk-comm-young").mkdir(mode=0o700)
    old = temporary / "synk-comm-old"
    old.mkdir(mode=0o700)
    os.utime(old, (HOUR_AGO, HOUR_AGO))
    open_to_all = temporary / "synk-comm-open"
    open_to_all.mkdir()
    os.utime(open_to_all, (HOUR_AGO, HOUR_AGO))
    (temporary / "mine").mkdir(mode=0o700)
    with listener:
        assert [one.name for one in leftovers.find_socket_folders()] == [str(old), str(stale)]
        rehearsal = invoke("clean", "--dry-run", "--json")
        assert stale.is_dir()
        report = json.loads(rehearsal.stdout)
        assert report["dry_run"] is True
        assert {one["name"] for one in report["found"]} >= {str(old), str(stale)}
        done = json.loads(invoke("clean", "--json").stdout)
    removed = {one["name"] for one in done["found"] if one["removed"]}
    assert removed >= {str(old), str(stale)}
    left = sorted(path.name for path in temporary.iterdir())
    assert left == ["mine", "synk-comm-live", "synk-comm-open", "synk-comm-young"]


def test_folders_that_hold_anything_but_sockets_stay(temporary, monkeypatch):
    named = temporary / "synk-comm-0.1.0"
    (named / "src").mkdir(mode=0o700, parents=True)
    named.chmod(0o700)
    (named / "src" / "thesis.py").write_text("work")
    mixed, _ = sockets_in(temporary, "mixed", listening=False)
    (mixed / "notes").write_text("work")
    linked, _ = sockets_in(temporary, "linked", listening=False)
    (linked / "link").symlink_to(next(linked.iterdir()))
    assert leftovers.find_socket_folders() == []
    # What comes after it was found stays, too.
    late, _ = sockets_in(temporary, "late", listening=False)
    (found,) = leftovers.find_socket_folders()
    (late / "notes").write_text("work")
    monkeypatch.setattr(leftovers, "_judge_sockets", lambda path: found)
    assert leftovers.remove(found) != ""
    assert [path.name for path in late.iterdir()] == ["notes"]
    assert (named / "src" / "thesis.py").read_text() == (mixed / "notes").read_text() == "work"


def test_the_shorter_place_is_looked_at_where_that_of_temporary_files_is_long(
    tmp_path, monkeypatch
):
    usual, short = tmp_path / ("l" * 120), tmp_path / "s"
    usual.mkdir()
    short.mkdir()
    stale, _ = sockets_in(short, "stale", listening=False)
    monkeypatch.setattr(leftovers, "_SHORT", (str(short),))
    monkeypatch.setattr("tempfile.tempdir", str(usual))
    assert [one.name for one in leftovers.find_socket_folders()] == [str(stale)]
    monkeypatch.setattr("tempfile.tempdir", "/tmp/elsewhere")
    assert leftovers.find_socket_folders() == []


def test_where_proc_is_not_readable_no_folder_is_stale(temporary, monkeypatch):
    sockets_in(temporary, "stale", listening=False)
    monkeypatch.setattr(leftovers, "_bound_sockets", lambda: None)
    assert leftovers.find_socket_folders() == []


def test_what_is_of_others_is_not_looked_at(temporary, theano_folder, monkeypatch):
    sockets_in(temporary, "stale", listening=False)
    lock(theano_folder, f"{dead_pid()}_1_{socket.gethostname()}")
    monkeypatch.setattr(leftovers.os, "geteuid", lambda: 123456)
    assert leftovers.find_socket_folders() == []
    assert leftovers.find_locks() == []


# ---- segments ------------------------------------------------------------------------------------

LEAVE = """
import os, sys
import synk_shm
array = synk_shm.zeros((1 << 16,), "float64", name=sys.argv[1])
os.kill(os.getpid(), 9)
"""
HOLD = """
import sys
import synk_shm
array = synk_shm.zeros((1 << 16,), "float64", name=sys.argv[1])
print("made", flush=True)
sys.stdin.read()
"""


def test_segments_of_the_dead_go_and_those_of_the_living_stay():
    dead, living = f"dead{os.getpid()}", f"live{os.getpid()}"
    # One that lives first: making a segment sweeps what the dead have left.
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, living],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "made\n"
    subprocess.run([sys.executable, "-c", LEAVE, dead], check=False)
    try:
        shown = command("clean", "--json")
        assert shown.returncode == 0
        names = {one["name"] for one in json.loads(shown.stdout)["found"]}
        assert living not in names
        # Another program of this user may have swept it before: gone it is.
        assert list(SHARED_MEMORY.glob(f"*{dead}")) == []
        assert len(list(SHARED_MEMORY.glob(f"*{living}"))) == 1
    finally:
        holder.communicate("")


def test_segments_are_listed_in_a_rehearsal_and_left(monkeypatch, temporary, theano_folder):
    asked = []

    def ask(code, timeout_s):
        asked.append(code)
        return Answer({"segments": [["weights", 3 << 20]], "removed": ["weights"]})

    monkeypatch.setattr(leftovers, "ask", ask)
    shown = invoke("clean", "--dry-run")
    assert shown.exit_code == 0
    (row,) = (line for line in shown.stdout.splitlines() if "weights" in line)
    assert "would remove segment" in row
    assert asked == [leftovers._LIST_SEGMENTS]
    shown = invoke("clean")
    assert "removed segment" in shown.stdout
    assert asked[1:] == [leftovers._LIST_SEGMENTS, leftovers._REMOVE_SEGMENTS]


def test_what_cannot_be_removed_is_told(monkeypatch, temporary):
    stale, _ = sockets_in(temporary, "stale", listening=False)

    def refuse(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "rmdir", refuse)
    done = invoke("clean")
    assert done.exit_code == 1
    shown = " ".join(done.stdout.split())
    assert "not removed: socket" in shown
    assert "Permission denied" in shown
    assert stale.is_dir()


def test_without_numpy_the_rest_is_cleaned_all_the_same(tmp_path, theano_folder):
    (tmp_path / "numpy.py").write_text("raise ImportError('spoiled')\n")
    held = lock(theano_folder, f"{dead_pid()}_1_{socket.gethostname()}")
    done = command("clean", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "Segments could not be listed: ImportError: spoiled" in done.stdout
    assert not held.exists()


def test_compiled_modules_of_a_living_process_stay(theano_folder, temporary):
    module = theano_folder / "m.so"
    module.write_bytes(b"x" * 4096)
    program = (
        "import mmap, sys; f = open(sys.argv[1], 'rb'); "
        "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); print(1, flush=True); sys.stdin.read()"
    )
    user = subprocess.Popen(
        [sys.executable, "-c", program, str(module)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        user.stdout.readline()
        (found,) = leftovers.find_compiled_modules()
        assert (found.removable, found.why) == (False, f"process {user.pid} uses it")
        # One that comes between finding and removing is seen, too.
        assert leftovers.remove(found) == f"process {user.pid} uses it"
        done = invoke("clean", "--theano-cache")
        assert "kept compiled modules" in done.stdout
        assert done.exit_code == 0
        assert module.exists()
    finally:
        user.communicate()
    (found,) = leftovers.find_compiled_modules()
    assert leftovers.remove(found) == ""
    assert not theano_folder.exists()


def test_a_socket_that_is_about_to_listen_stays(temporary, monkeypatch):
    """It is bound, and refuses, at the very moment at which the folder is looked at."""
    group = temporary / "synk-comm-new"
    group.mkdir(mode=0o700)
    stale, late = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    stale.bind(str(group / "0-1"))
    stale.close()
    (found,) = leftovers.find_socket_folders()
    refuses = leftovers._is_refused

    def binds_meanwhile(path):
        if not late.getsockname():
            path.unlink()
            late.bind(str(path))
        return refuses(path)

    monkeypatch.setattr(leftovers, "_is_refused", binds_meanwhile)
    with late:
        assert leftovers.find_socket_folders() == []
        assert leftovers.remove(found) == "a process listens at its sockets now"
        assert group.is_dir()


def test_a_folder_that_somebody_uses_for_more_is_no_cache(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    for module in ("tmp12345678", "cutils_ext", "lazylinker_ext", "scan_perform"):
        (folder / module).mkdir(parents=True)
    (folder / "__init__.py").touch()
    monkeypatch.setenv("THEANO_FLAGS", f"compiledir={folder}")
    (found,) = leftovers.find_compiled_modules()
    assert found.removable
    (folder / "thesis.tex").write_text("work")
    assert leftovers.remove(found) == "thesis.tex in it is not Theano's"
    done = invoke("clean", "--theano-cache")
    assert "kept compiled modules" in done.stdout
    assert (folder / "thesis.tex").read_text() == "work"
    (folder / "thesis.tex").unlink()
    assert leftovers.remove(found) == ""
    assert not folder.exists()

"""``synkhronos clean``: segments of dead processes go, those of living ones stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from _cli import command, invoke

import synk_shm

SHARED_MEMORY = Path("/dev/shm")
MAKE = """
import os, sys
import synk_shm
array = synk_shm.zeros((1 << 16,), "float64", name=sys.argv[1])
print("made", flush=True)
if sys.argv[2] == "die":
    os.kill(os.getpid(), 9)
sys.stdin.read()
"""


def maker(name, then):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", MAKE, name, then], **pipes)
    assert process.stdout.readline() == "made\n"
    return process


def test_segments_of_the_dead_go_and_those_of_the_living_stay():
    dead, living = f"dead{os.getpid()}", f"live{os.getpid()}"
    # The living one first: making a segment sweeps what the dead have left.
    holder, victim = maker(living, "hold"), maker(dead, "die")
    victim.communicate()
    try:
        shown = command("clean", "--json")
        assert (shown.returncode, shown.stderr) == (0, "")
        found = json.loads(shown.stdout)["found"]
        assert not [one for one in found if living in one["name"] or not one["removed"]]
        # Another program of this user may have swept it before: gone it is.
        assert list(SHARED_MEMORY.glob(f"*{dead}")) == []
        assert len(list(SHARED_MEMORY.glob(f"*{living}"))) == 1
    finally:
        holder.communicate("")


def test_what_is_stale_is_listed_removed_or_kept(monkeypatch):
    """Of segments made up: another program may sweep real ones at any moment."""
    one = SimpleNamespace(name="weights", nbytes=3 << 20, alive=False, mine=False)
    stale, alive = [one], SimpleNamespace(name="busy", nbytes=1, alive=True, mine=False)
    removed = []
    monkeypatch.setattr(synk_shm, "list", lambda: [*stale, alive])
    monkeypatch.setattr(synk_shm, "cleanup", lambda: removed.append(1))
    done = invoke("clean", "--dry-run")
    assert (done.exit_code, done.stdout) == (0, "would remove segment weights, 3 MiB\n")
    assert removed == []
    done = invoke("clean")
    assert (done.exit_code, done.stdout) == (1, "not removed: segment weights, 3 MiB\n")
    monkeypatch.setattr(synk_shm, "cleanup", stale.clear)
    done = invoke("clean", "--json")
    expected = [{"name": "weights", "nbytes": 3 << 20, "removed": True}]
    assert json.loads(done.stdout) == {"dry_run": False, "found": expected}
    assert (done.exit_code, invoke("clean").stdout) == (0, "Nothing is stale.\n")


def test_without_numpy_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "synk_shm", None)
    done = invoke("clean")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("synkhronos: clean needs synk-shm, which cannot be imported: ")

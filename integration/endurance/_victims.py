"""The program of the kill trials, for the process that kills it; and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any, Optional

from synk_testing import Program, children, descriptors, shared_memory
from synk_testing.processes import kill

VICTIM = Path(__file__).resolve().with_name("_victim.py")
ACTS = {
    "computing": ("call", "copy", "slice"),
    "updating": ("call", "end"),
    "collective": ("all_reduce", "gather"),
    "stepping": ("step",),
    "distributing": ("distribute",),
    "growing": ("grow",),
}
"""What it does in a state in which it can be killed: acts of the fault suite's bench."""

STATES = ("starting", *ACTS, "idle", "closing", "mixed")


class Trouble(Exception):
    """A trial did not go as promised."""


class Victim(Program):
    """The victim, or the victim's master: one process, for one trial after the other."""

    def __init__(self, folder: Path) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.descriptors: Optional[int] = None
        # Nothing is compiled but what Theano itself needs, once.
        flags = f"mode=FAST_COMPILE,base_compiledir={folder / 'theano'}"
        environment = {"THEANO_FLAGS": flags, "TMPDIR": str(self.temporary)}
        super().__init__(VICTIM, environment={"SYNKHRONOS_USE_GPU": "0", **environment})

    def event(self, until: float) -> Optional[dict[str, Any]]:
        """Return the next thing that it tells; None if there is none until this moment, or ever."""
        line = self.line_or_end() if self.has_said(until - time.monotonic()) else None
        return None if line is None else json.loads(line)

    def await_event(self, name: str, until: float) -> dict[str, Any]:
        """Return the next event of this name; raise `Trouble` if it does not come in time."""
        while True:
            event = self.event(until)
            if event is None:
                raise Trouble(f"no {name!r} in time")
            if event["event"] == name:
                return event
            if event["event"] == "caught":
                raise Trouble(f"{event['type']} before {name!r}: {event['message'][:500]}")

    def family(self) -> Optional[str]:
        """Return the name that all its shared memory has in common; None before it has some."""
        for target in descriptors(self.pid).values():
            found = re.search(r"/synk\.(?:\d+\.)?([0-9a-f]{8})\.lock$", target)
            if found:
                return found.group(1)
        return None

    def close(self) -> None:
        self.kill_all()
        super().close()
        while reaped():
            kill(children())
            time.sleep(0.01)


def reaped() -> bool:
    """Reap the children that have ended; return whether there are others."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def in_memory(family: Optional[str]) -> list[str]:
    """Return a family's segments in shared memory, but for its lock files: they hold no memory."""
    names = shared_memory(f".{family}.") if family else []
    return [name for name in names if not name.endswith(".lock")]


def taken_away(folder: Path) -> list[str]:
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return found

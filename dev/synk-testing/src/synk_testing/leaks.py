"""Look for what a process has left behind."""

from __future__ import annotations

import contextlib
import gc
import glob
import os
import threading
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional

from .processes import children, descriptors

GRACE_S = 5.0
BUT_PROCESSES = ("descriptors", "open_files", "threads", "files", "segments")


def shared_memory(part: str = "") -> List[str]:
    """Return the names with `part` in them that this user has in shared memory (Linux)."""
    found = []
    for entry in os.scandir("/dev/shm"):
        with contextlib.suppress(OSError):  # gone meanwhile
            if part in entry.name and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                found.append(entry.name)
    return found


class Leftovers:
    """What this process has now, for a comparison later (Linux); other programs do not count.

    `files` is a pattern of paths of this program alone; `segments` returns the names of its shared
    memory. `without` are kinds that do not count, of "processes", "descriptors" (of sockets, pipes
    and memory), "open_files", "threads", "files" and "segments".
    """

    def __init__(
        self,
        files: str = "",
        segments: Optional[Callable[[], Iterable[str]]] = None,
        without: Iterable[str] = (),
    ) -> None:
        self._files = files
        self._segments = segments
        self._without = set(without)
        self._before = self._look()

    def since(self, grace_s: float = GRACE_S) -> Dict[str, List[str]]:
        """Return, by kind, what is there that was not; wait `grace_s` seconds for it to go."""
        deadline = time.monotonic() + grace_s
        while True:
            gc.collect()
            now = self._look()
            left = {kind: sorted(set(now[kind]) - set(self._before[kind])) for kind in now}
            if not any(left.values()) or time.monotonic() > deadline:
                return left
            time.sleep(0.01)

    def _look(self) -> Dict[str, List[str]]:
        targets = list(descriptors().values())
        found: Dict[str, Iterable[str]] = {
            "processes": map(str, children()),
            "descriptors": _counted(target for target in targets if not _is_file(target)),
            "open_files": _counted(filter(_is_file, targets)),
            "threads": [thread.name for thread in threading.enumerate()],
            "files": glob.glob(self._files),
            "segments": [] if self._segments is None else self._segments(),
        }
        return {kind: list(names) for kind, names in found.items() if kind not in self._without}


def _is_file(target: str) -> bool:
    return target.startswith("/") and not target.startswith("/memfd:")


def _counted(targets: Iterable[str]) -> List[str]:
    """Name descriptors by what they are, and count them: the numbers are used again."""
    kinds = [target.split(":")[0] for target in targets]
    return [f"{kind} {kinds[:place].count(kind)}" for place, kind in enumerate(kinds)]


@contextlib.contextmanager
def nothing_left(grace_s: float = GRACE_S, **what: Any) -> Iterator[None]:
    """Assert that the block leaves nothing behind, or name it; `what` is as of `Leftovers`."""
    look = Leftovers(**what)
    yield
    left = {kind: names for kind, names in look.since(grace_s).items() if names}
    assert not left, f"left behind: {left}"

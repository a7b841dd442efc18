"""The tests' side of the programs in `_fault_host`: started ahead, watched, killed if they hang."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple

from synk_testing import Mark, Program, Zygote, shared_memory

LIMIT_S = 60.0
"""For a case, however it hangs."""

START_LIMIT_S = 120.0

CODE = Path(__file__).with_name("_fault_host.py")


class Host:
    """A program that is a master.

    Args:
        folder: for its temporary files.
        zygote: to fork it from.
        prefix: of its command.
    """

    def __init__(self, folder: Path, zygote: Zygote, prefix: Sequence[str] = ()) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.mark = Mark(folder / "mark")
        self._due = 0
        self.workers: List[int] = []
        self.program = Program(
            CODE,
            prefix=prefix,
            zygote=zygote,
            limit_s=LIMIT_S,
            environment={
                "TMPDIR": str(self.temporary),
                "SYNK_THEANO_FAULTS_MARK": str(self.mark.path),
            },
        )

    def tell(self, do: str, **order: Any) -> None:
        """Have it do something; its answers come one by one."""
        self.program.tell(do=do, **order)
        self._due += 1

    def answer(self, limit_s: float = LIMIT_S) -> Dict[str, Any]:
        """Its next answer; it is killed if none comes.

        Raises:
            AssertionError: none has come, or it failed in a way that no case expects.
        """
        found: Dict[str, Any] = self.program.answer(limit_s)
        assert "broken" not in found, f"{found['broken']}\nIt printed:\n{self.program.printed()}"
        if "pids" in found:
            self.workers = [*found["pids"], *filter(None, [found["watchdog"]])]
        else:
            self._due -= 1
        return found

    def settle(self) -> None:
        """Read what it has been told to do and was not asked for."""
        while self._due:
            self.answer(START_LIMIT_S)

    def family_left(self, family: str) -> List[str]:
        """What is in shared memory of it; but for a lock file, which the next to start removes."""
        return [name for name in shared_memory(f".{family}.") if not name.endswith(".lock")]

    def kill(self) -> None:
        """End it and all that it has started."""
        self.program.kill_all()
        self.program.close()

    def end(self) -> Dict[str, Any]:
        """Have it close its runtime and end; what was left."""
        self.settle()
        self.tell("end")
        found = self.answer()
        assert self.program.end() == 0, self.program.printed()
        self.program.close()
        return found


class Hosts:
    """Programs that are kept ready for the next cases, because to start takes the longest.

    Args:
        folder: for their files.
        zygote: to fork them from.
    """

    def __init__(self, folder: Path, zygote: Zygote) -> None:
        self._folder = folder
        self._zygote = zygote
        self._count = 0
        self._waiting: Dict[Tuple[Tuple[str, Any], ...], Deque[Host]] = {}

    def new(self, **how: Any) -> Host:
        self._count += 1
        return Host(self._folder / str(self._count), self._zygote, **how)

    def take(self, options: Optional[Dict[str, Any]], ahead: int) -> Host:
        """A program with such a runtime; None for one without.

        Args:
            ahead: how many such programs to have.
        """
        waiting = self._waiting.setdefault(_key(options), deque())
        while len(waiting) < ahead:
            waiting.append(self._prepared(self.new(), options))
        host = waiting.popleft()
        try:
            host.settle()
        except BaseException:
            host.kill()
            raise
        return host

    def give_back(self, host: Host, options: Optional[Dict[str, Any]], closed: bool) -> None:
        """A program that may be used again; `closed` if it has no runtime any more."""
        if host.program.status is not None:
            return
        if closed:
            self._prepared(host, options)
        self._waiting[_key(options)].append(host)

    def replace(self, host: Host, options: Optional[Dict[str, Any]]) -> None:
        """One that is gone."""
        host.kill()
        self._waiting[_key(options)].append(self._prepared(self.new(), options))

    def beside(self, options: Optional[Dict[str, Any]]) -> Optional[Host]:
        """Another one that is ready."""
        waiting = self._waiting[_key(options)]
        return waiting[0] if waiting else None

    def _prepared(self, host: Host, options: Optional[Dict[str, Any]]) -> Host:
        if options is not None:
            host.tell("prepare", **options)
        return host

    def end(self) -> None:
        """End all; nothing may be left of any."""
        for waiting in self._waiting.values():
            for host in waiting:
                left = host.end()["left"]
                assert not any(left.values()), left


def _key(options: Optional[Dict[str, Any]]) -> Tuple[Tuple[str, Any], ...]:
    return tuple(sorted((options or {}).items()))

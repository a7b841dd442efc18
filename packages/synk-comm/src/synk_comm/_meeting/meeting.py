"""A meeting: ranks that have found each other and agree on what will carry their bytes.

The lines to rank 0's desk stay open while a back-end is set up. Over them the ranks exchange what
they must know of each other, and hear at once of a rank that fails or dies meanwhile.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import time
from types import TracebackType
from typing import Any, Callable, Sequence

from synk_comm._core.fabric import Watch, lost
from synk_comm._system.auth import derived
from synk_comm._system.folder import SocketFolder
from synk_comm._system.liveness import identity
from synk_comm.exceptions import CommError, CommTimeout, JoinError, PeerLost

from .host import Host
from .link import Goods, HungUp, Line, Patience, wait_for


class Unusable(JoinError):
    """A back-end cannot carry this group; raised on all ranks alike."""


class Meeting:
    """What a back-end gets to open a communicator with; the same on every rank but for ``rank``.

    Attributes:
        rank, size: as in ``Communicator``.
        hosts: where each rank runs, by rank.
        folder: a folder of this user that all ranks can enter; None if they met by TCP.
        timeout_s: default bound of every collective of the communicator to be made.
        deadline: until when all must have joined, on the clock of ``time.monotonic``.
        watch: to be called at least every 20 ms in every wait of the communicator.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        patience: Patience,
        timeout_s: float,
        *,
        key: bytes = b"",
        lines: dict[int, Line] | None = None,
        folder: SocketFolder | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.hosts: list[Host] = []
        self.folder = folder
        self.timeout_s = timeout_s
        self.deadline = patience.deadline
        self.watch: Watch | None = patience.watch
        self._key = key
        self._lines = {} if lines is None else lines  # the desk adds to them
        self._patience = Patience(rank, patience.deadline, self.look)
        self._said: dict[int, Any] = {}  # what came while this rank was looking elsewhere
        self._relay: Goods | None = None

    def begin(self, cards: Sequence[Goods]) -> None:
        """Tell all ranks of each other, from the cards that rank 0 got; check that they agree."""
        first = {"cards": cards, "run": secrets.token_hex(32)} if self.rank == 0 else None
        told = self.exchange(first)[0]
        self._key = derived(self._key, f"run {told['run']}")
        self.hosts = [Host(*card["host"]) for card in told["cards"]]
        asked = [card["backend"] for card in told["cards"]]
        if len(set(asked)) > 1:
            lines = "".join(f"\n  rank {rank}: {name!r}" for rank, name in enumerate(asked))
            raise JoinError(f"the ranks asked for different back-ends:{lines}")

    def key(self, purpose: str) -> bytes:
        """Return a secret key that only members of this group can know."""
        return derived(self._key, purpose)

    # -- what back-ends call --------------------------------------------------------------

    def exchange(self, said: Any) -> list[Any]:
        """Tell all ranks something, and return what each said, by rank; all call it together.

        What is said must be JSON (lists come back for tuples), and travels authenticated but
        not encrypted.
        """
        if self.rank:
            self._send(0, {"said": said})
            answer: list[Any] = self._wait_for([0])[0]
            return answer
        heard = self._wait_for(list(self._lines))
        table = [said, *(heard[rank] for rank in sorted(heard))]
        for rank in list(self._lines):
            self._send(rank, {"said": table})
        return table

    def agree(self, problem: str) -> None:
        """Raise ``Unusable`` on all ranks if any of them tells a problem; all call it together."""
        for rank, theirs in enumerate(self.exchange(problem)):
            if theirs:
                raise Unusable(f"rank {rank}: {theirs}")

    def hand_over(self, fd: int) -> int:
        """Give rank 0's descriptor of shared memory to all ranks; return the own, to be closed.

        Args:
            fd: on rank 0 the descriptor, elsewhere ignored.

        Raises:
            Unusable: some rank could not receive it (on all ranks).
        """
        if self.folder is None:
            return self._open_at_rank_0(fd)
        got, problem = -1, ""
        self.agree("")  # so that nothing else is on the lines
        try:
            if self.rank == 0:
                for line in self._lines.values():
                    socket.send_fds(line.raw, [b"F"], [fd])
                got = os.dup(fd)
            else:
                got = self._receive_fd()
        except CommError:
            raise
        except OSError as exc:
            problem = str(exc)
        return self._all_or_none(got, problem)

    def look(self) -> None:
        """Raise if a rank has failed or gone, or what the user's watch raises; never waits."""
        if self.watch is not None:
            self.watch()
        self.hear()

    def hear(self) -> None:
        """Raise if a rank has failed or gone; never waits."""
        for fd in wait_for({line.fileno(): select.POLLIN for line in self._lines.values()}, 0):
            self._hear(fd)

    # -- lines ----------------------------------------------------------------------------

    def _send(self, rank: int, goods: Goods) -> None:
        line = self._lines[rank]
        try:
            line.send_goods(goods, self._patience)
        except HungUp:
            while rank in self._lines and wait_for({line.fileno(): select.POLLIN}):
                self._hear(line.fileno())  # it may have said why, before
            raise lost(rank, "it left while the ranks were joining") from None

    def _wait_for(self, ranks: list[int]) -> dict[int, Any]:
        while True:
            missing = [rank for rank in ranks if rank not in self._said]
            if not missing:
                return {rank: self._said.pop(rank) for rank in ranks}
            ready = wait_for({self._lines[rank].fileno(): select.POLLIN for rank in missing})
            for fd in ready:
                self._hear(fd)
            if not ready:  # what was said comes before what the line brings next
                self._patience.look(lambda: dict.fromkeys(ranks, "is still busy joining"))

    def _hear(self, fd: int) -> None:
        """Take in what a line brings: something said, a failure, a farewell, or its end."""
        rank, line = next(pair for pair in self._lines.items() if pair[1].fileno() == fd)
        try:
            goods = line.take_goods()
        except HungUp:
            raise lost(rank, "it ended, or was cut off, while the ranks were joining") from None
        if goods is None:
            return
        if "failed" in goods:
            goods.setdefault("by", rank)
            self._relay = goods
            raise _failure(goods)
        if goods.get("bye"):
            del self._lines[rank]
            line.close()
        elif rank in self._said:
            raise JoinError(f"rank {rank} is out of step while the ranks are joining")
        else:
            self._said[rank] = goods.get("said")

    def _receive_fd(self) -> int:
        line = self._lines[0]
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        while True:
            try:
                _, fds, _, _ = socket.recv_fds(line.raw, 1, 1, flags)
            except BlockingIOError:
                wait_for({line.fileno(): select.POLLIN})
                if self.watch is not None:
                    self.watch()
                if time.monotonic() >= self.deadline:
                    missing = {0: "does not send the memory"}
                    raise CommTimeout("waited for the memory of rank 0", missing=missing) from None
                continue
            if not fds:
                raise lost(0, "it hung up before it sent the memory")
            return fds[0]

    def _open_at_rank_0(self, fd: int) -> int:
        """Open rank 0's descriptor through /proc, which only this user's processes can do."""
        mine = [*identity()[:1], identity().namespace, fd]
        pid, namespace, number = self.exchange(mine if self.rank == 0 else None)[0]
        got, problem = -1, ""
        path = f"/proc/{pid}/fd/{number}"
        try:
            if self.rank == 0:
                got = os.dup(fd)
            elif not namespace or namespace != identity().namespace:
                problem = "it does not see the process of rank 0"
            elif not os.readlink(path).startswith("/memfd:synk-comm"):
                problem = f"{path} is not the memory of rank 0"
            else:
                got = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as exc:
            problem = str(exc)
        return self._all_or_none(got, problem)

    def _all_or_none(self, fd: int, problem: str) -> int:
        try:
            self.agree(problem)
        except BaseException:
            if fd >= 0:
                os.close(fd)
            raise
        return fd

    # -- the end --------------------------------------------------------------------------

    def __enter__(self) -> Meeting:  # noqa: PYI034 - typing.Self is newer than 3.9
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Say farewell, or tell the others what went wrong here; close the lines."""
        word: Goods = {"bye": True}
        if exc is not None and not isinstance(exc, Unusable):  # which all ranks know of
            word = self._relay or _told(exc)
        for line in self._lines.values():
            line.last_word(word)
        self._lines.clear()


def _told(exc: BaseException) -> Goods:
    """Describe a failure for the other ranks."""
    goods: Goods = {"failed": f"{type(exc).__name__}: {exc}"[:3000]}
    if isinstance(exc, PeerLost):
        goods["lost"] = exc.rank
    if isinstance(exc, CommTimeout):
        goods["failed"] = str(exc)
        goods["missing"] = {str(rank): text for rank, text in exc.missing.items()}
    return goods


def _failure(goods: Goods) -> CommError:
    """Return the error for a failure that another rank has told."""
    text, rank = str(goods["failed"]), int(goods["by"])
    if "lost" in goods:
        gone = int(goods["lost"])
        return lost(gone, f"rank {rank} found it gone while the ranks were joining")
    if "missing" in goods:
        missing = {int(which): str(seen) for which, seen in goods["missing"].items()}
        return CommTimeout(text, missing=missing)
    return JoinError(f"rank {rank} could not join: {text}")


def alone(patience: Patience, timeout_s: float, host: Callable[[], Host]) -> Meeting:
    """Return the meeting of a group of one."""
    meeting = Meeting(0, 1, patience, timeout_s, key=os.urandom(32))
    meeting.hosts = [host()]
    return meeting

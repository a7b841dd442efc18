"""A meeting: ranks that are connected and agree on a back-end.

The connections to rank 0's server stay open while a back-end is set up. Through them the ranks
exchange their descriptions, and see at once if a rank fails or dies meanwhile.
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
from .link import Connection, Disconnected, Frame, WaitLimit, wait_for


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
        limit: WaitLimit,
        timeout_s: float,
        *,
        key: bytes = b"",
        connections: dict[int, Connection] | None = None,
        folder: SocketFolder | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.hosts: list[Host] = []
        self.folder = folder
        self.timeout_s = timeout_s
        self.deadline = limit.deadline
        self.watch: Watch | None = limit.watch
        self._key = key
        self._connections = {} if connections is None else connections  # the server adds to them
        self._limit = WaitLimit(rank, limit.deadline, self.look)
        self._said: dict[int, Any] = {}  # received while this rank waited for another one
        self._relay: Frame | None = None

    def begin(self, cards: Sequence[Frame]) -> None:
        """Distribute the cards that rank 0 received; check that they agree."""
        first = {"cards": cards, "run": secrets.token_hex(32)} if self.rank == 0 else None
        agreed = self.exchange(first)[0]
        self._key = derived(self._key, f"run {agreed['run']}")
        self.hosts = [Host(*card["host"]) for card in agreed["cards"]]
        asked = [card["backend"] for card in agreed["cards"]]
        if len(set(asked)) > 1:
            lines = "".join(f"\n  rank {rank}: {name!r}" for rank, name in enumerate(asked))
            raise JoinError(f"the ranks asked for different back-ends:{lines}")

    def key(self, purpose: str) -> bytes:
        """Return a secret key that only members of this group can know."""
        return derived(self._key, purpose)

    # -- what back-ends call --------------------------------------------------------------

    def exchange(self, said: Any) -> list[Any]:
        """Send a value to all ranks; return all values, by rank; all call it together.

        A value must be JSON (lists come back for tuples), and travels authenticated but
        not encrypted.
        """
        if self.rank:
            self._send(0, {"said": said})
            answer: list[Any] = self._wait_for([0])[0]
            return answer
        heard = self._wait_for(list(self._connections))
        table = [said, *(heard[rank] for rank in sorted(heard))]
        for rank in list(self._connections):
            self._send(rank, {"said": table})
        return table

    def agree(self, problem: str) -> None:
        """Raise ``Unusable`` on all ranks if any reports a problem; all call it together."""
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
        self.agree("")  # so that nothing else is under way
        try:
            if self.rank == 0:
                for connection in self._connections.values():
                    socket.send_fds(connection.raw, [b"F"], [fd])
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
        for fd in wait_for(
            {connection.fileno(): select.POLLIN for connection in self._connections.values()}, 0
        ):
            self._hear(fd)

    # -- connections ----------------------------------------------------------------------

    def _send(self, rank: int, frame: Frame) -> None:
        connection = self._connections[rank]
        try:
            connection.send_frame(frame, self._limit)
        except Disconnected:
            while rank in self._connections and wait_for({connection.fileno(): select.POLLIN}):
                self._hear(connection.fileno())  # it may have said why, before
            raise lost(rank, "it left while the ranks were joining") from None

    def _wait_for(self, ranks: list[int]) -> dict[int, Any]:
        while True:
            missing = [rank for rank in ranks if rank not in self._said]
            if not missing:
                return {rank: self._said.pop(rank) for rank in ranks}
            ready = wait_for({self._connections[rank].fileno(): select.POLLIN for rank in missing})
            for fd in ready:
                self._hear(fd)
            if not ready:  # what was said comes before what the connection brings next
                self._limit.look(lambda: dict.fromkeys(ranks, "is still busy joining"))

    def _hear(self, fd: int) -> None:
        """Take in what a connection brings: an answer, a failure, the last frame, or its end."""
        rank, connection = next(
            pair for pair in self._connections.items() if pair[1].fileno() == fd
        )
        try:
            frame = connection.receive_frame()
        except Disconnected:
            raise lost(rank, "it ended, or was cut off, while the ranks were joining") from None
        if frame is None:
            return
        if "failed" in frame:
            frame.setdefault("by", rank)
            self._relay = frame
            raise _failure(frame)
        if frame.get("bye"):
            del self._connections[rank]
            connection.close()
        elif rank in self._said:
            raise JoinError(f"rank {rank} is out of step while the ranks are joining")
        else:
            self._said[rank] = frame.get("said")

    def _receive_fd(self) -> int:
        connection = self._connections[0]
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        while True:
            try:
                _, fds, _, _ = socket.recv_fds(connection.raw, 1, 1, flags)
            except BlockingIOError:
                wait_for({connection.fileno(): select.POLLIN})
                if self.watch is not None:
                    self.watch()
                if time.monotonic() >= self.deadline:
                    missing = {0: "does not send the memory"}
                    raise CommTimeout("waited for the memory of rank 0", missing=missing) from None
                continue
            if not fds:
                raise lost(0, "it closed the connection before it sent the memory")
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
        """Send a last frame: the end, or the failure of this rank; close the connections."""
        word: Frame = {"bye": True}
        if exc is not None and not isinstance(exc, Unusable):  # which all ranks know of
            word = self._relay or _described(exc)
        for connection in self._connections.values():
            connection.send_last(word)
        self._connections.clear()


def _described(exc: BaseException) -> Frame:
    """Describe a failure for the other ranks."""
    frame: Frame = {"failed": f"{type(exc).__name__}: {exc}"[:3000]}
    if isinstance(exc, PeerLost):
        frame["lost"] = exc.rank
    if isinstance(exc, CommTimeout):
        frame["failed"] = str(exc)
        frame["missing"] = {str(rank): text for rank, text in exc.missing.items()}
    return frame


def _failure(frame: Frame) -> CommError:
    """Return the error for a failure that another rank reported."""
    text, rank = str(frame["failed"]), int(frame["by"])
    if "lost" in frame:
        gone = int(frame["lost"])
        return lost(gone, f"rank {rank} found it gone while the ranks were joining")
    if "missing" in frame:
        missing = {int(which): str(seen) for which, seen in frame["missing"].items()}
        return CommTimeout(text, missing=missing)
    return JoinError(f"rank {rank} could not join: {text}")


def alone(limit: WaitLimit, timeout_s: float, host: Callable[[], Host]) -> Meeting:
    """Return the meeting of a group of one."""
    meeting = Meeting(0, 1, limit, timeout_s, key=os.urandom(32))
    meeting.hosts = [host()]
    return meeting

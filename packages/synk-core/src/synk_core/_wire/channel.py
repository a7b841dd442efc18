"""A duplex pipe of frames between the master and one worker: an inherited socket pair, without
port and name. A frame is an 8-byte little-endian length and that many bytes."""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import Optional, Tuple

_LENGTH = struct.Struct("<Q")


class ChannelClosed(ConnectionError):
    """The other side is gone."""


class Channel:
    """One end of the pipe. Its methods raise ChannelClosed when the other process is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        self._received = bytearray()

    @classmethod
    def pair(cls) -> Tuple[Channel, socket.socket]:
        """Return this side's channel, and the socket for the other side to inherit."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), theirs

    def send(self, payload: bytes, timeout_s: float = 60.0) -> None:
        """Send one frame; TimeoutError if the other side does not read for `timeout_s` seconds."""
        self._sock.settimeout(timeout_s)
        try:
            # No signal: a program that restores SIGPIPE's default would die with a worker.
            self._sock.sendall(_LENGTH.pack(len(payload)) + payload, socket.MSG_NOSIGNAL)
        except socket.timeout:
            raise TimeoutError(f"the other side did not read for {timeout_s} s") from None
        except OSError as error:
            raise ChannelClosed(str(error)) from None

    def recv(self, timeout_s: Optional[float] = None) -> bytes:
        """Receive one frame; TimeoutError if there is none in `timeout_s` seconds (None: wait)."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._fill(_LENGTH.size, deadline)
        (length,) = _LENGTH.unpack_from(self._received)
        self._fill(_LENGTH.size + length, deadline)
        payload = bytes(self._received[_LENGTH.size : _LENGTH.size + length])
        del self._received[: _LENGTH.size + length]
        return payload

    def _fill(self, count: int, deadline: Optional[float]) -> None:
        """Receive until there are `count` bytes; an interrupt loses none of them."""
        while len(self._received) < count:
            left = None if deadline is None else max(deadline - time.monotonic(), 1e-3)
            self._sock.settimeout(left)
            try:
                chunk = self._sock.recv(max(count - len(self._received), 65536))
            except socket.timeout:
                raise TimeoutError("no answer in time") from None
            except OSError as error:
                raise ChannelClosed(str(error)) from None
            if not chunk:
                raise ChannelClosed("end of file")
            self._received += chunk

    def pending(self) -> bool:
        """Return whether `recv` would return (or raise ChannelClosed) without waiting."""
        return bool(self._received or self._poll.poll(0))

    def at_end(self) -> bool:
        """Return whether the other side is gone and nothing is left to read."""
        if self._received or not self.pending():
            return False
        try:
            return self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self._sock.close()

"""A process that attaches, reads and answers. It is spawned, so it inherits nothing."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import struct
from multiprocessing.reduction import ForkingPickler
from statistics import median
from time import perf_counter
from typing import Any, final

from .contender import Contender, Pair
from .contenders import CONTENDERS

FIRST = 42.5  # the first element of every array, which a reader checks
_DOUBLE = struct.Struct("d")
_JOIN_S = 5


@final
class Child:
    """The parent's end of such a process."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        # It inherits this, so that an early Ctrl-C does not kill it.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        theirs.close()

    def close(self) -> None:
        """Wait until the child has exited, `_JOIN_S` seconds at most."""
        self._connection.close()  # the child exits when its end of the pipe breaks
        self._process.join(_JOIN_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_JOIN_S)
        self._process.close()

    def ask(self, order: str, contender: Contender, *arguments: Any) -> Any:
        """Send an order and wait for its answer."""
        self._connection.send((order, contender.name, *arguments))
        return _checked(self._connection.recv())

    def trips(self, contender: Contender, pair: Pair, repeats: int) -> tuple[float, float]:
        """Return the seconds of a round trip, and the bytes sent. One more trip warms up."""
        connection = self._connection
        data = ForkingPickler.dumps(contender.message(*pair))
        size = len(data)
        connection.send(("echo", contender.name, repeats + 1))
        connection.send_bytes(data)  # as send() does, after the same dumps()
        del data
        times: list[float] = []
        for number in range(repeats + 1):
            begin = perf_counter()
            if number:
                connection.send(contender.message(*pair))
            answer = connection.recv_bytes()
            times.append(perf_counter() - begin)
            if len(answer) != _DOUBLE.size:
                _checked(pickle.loads(answer))  # noqa: S301 - from a child of our own
            if _DOUBLE.unpack(answer)[0] != FIRST:
                raise RuntimeError("the child read another value")
            connection.recv_bytes()  # sent after the detach
        _checked(connection.recv())
        return median(times[1:]), float(size)


def _checked(answer: tuple[str, Any]) -> Any:
    state, content = answer
    if state != "done":
        raise RuntimeError(f"the child failed: {content}")
    return content


def _serve(connection: Any) -> None:
    """Run orders in the child until the pipe breaks."""
    made: dict[str, Contender] = {}
    acts = {"attach": _attach, "echo": _echo}
    while True:
        try:
            order, name, *arguments = connection.recv()
            try:
                if name not in made:
                    made[name] = CONTENDERS[name]()
                answer = "done", acts[order](connection, made[name], *arguments)
            except (EOFError, ConnectionError):
                raise
            except Exception as error:  # noqa: BLE001 - the other side reports it
                answer = "failed", f"{type(error).__name__}: {error}"
            connection.send(answer)
        except (EOFError, ConnectionError):
            return  # the other side has closed


def _attach(_connection: Any, contender: Contender, address: Any, repeats: int) -> Any:
    times: dict[str, list[float]] = {"attach": [], "detach": []}
    for _ in range(repeats + 1):
        begin = perf_counter()
        array, keep = contender.attach(address)
        attached = perf_counter()
        value = array[0]
        read = perf_counter()
        array = None
        contender.detach(keep)
        keep = None
        end = perf_counter()
        if value != FIRST:
            raise RuntimeError(f"expected {FIRST}, read {value}")
        times["attach"].append(attached - begin)
        times["detach"].append(end - read)
    return {part: median(taken[1:]) for part, taken in times.items()}  # the first warms up


def _echo(connection: Any, contender: Contender, repeats: int) -> None:
    for _ in range(repeats):
        array, keep = contender.receive(connection.recv())
        connection.send_bytes(_DOUBLE.pack(array[0]))
        array = None
        contender.detach(keep)
        keep = None
        connection.send_bytes(b"")

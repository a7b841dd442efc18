"""Measure other processes: attach there, and pass arrays through a Pipe."""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import signal
import struct
from contextlib import closing, suppress
from multiprocessing.reduction import ForkingPickler
from statistics import median
from time import perf_counter
from typing import Any, Callable, final

from synk_benchmarks.contender import NotOfferedError
from synk_benchmarks.results import BYTES, Cell, Row
from synk_benchmarks.text import size_name

from .bench import LARGE, Bench, Parts, one_each, rows
from .contender import Contender, Pair
from .contenders import CONTENDERS

KIB = 1 << 10
MIB = 1 << 20
FIRST = 42.5  # the first element of every array, which a reader checks
_DOUBLE = struct.Struct("d")
_JOIN_S = 5
Arrays = Callable[[Contender], Pair]


@final
class Child:
    """A process that attaches, reads and answers. It is spawned, so it inherits nothing.

    Args:
        stranger: give it another authentication key of multiprocessing, so that it looks like
            a process of another program.
    """

    def __init__(self, *, stranger: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, stranger), daemon=True)
        # It inherits this, so that an early Ctrl-C does not kill it.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        theirs.close()

    def close(self) -> None:
        """Wait until the child has exited, `_JOIN_S` seconds at most."""
        self.connection.close()  # the child exits when its end of the pipe breaks
        self._process.join(_JOIN_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_JOIN_S)
        self._process.close()

    def ask(self, order: str, contender: Contender, *arguments: Any) -> Any:
        """Send an order and wait for its answer."""
        self.connection.send((order, contender.name, *arguments))
        return self.answer()

    def answer(self) -> Any:
        """Return what the child sends when it is done.

        Raises:
            RuntimeError: the child failed, with its error.
        """
        return _checked(self.connection.recv())


def attach(bench: Bench) -> list[Row]:
    """Measure attach, read and detach in a child, and in a process of another program."""
    made: list[Row] = []
    plan = [(KIB, "1K", False), (bench.large, "large", False), (KIB, "stranger", True)]
    for size, key, stranger in plan:
        repeats = bench.repeats(100)
        with one_each(size // 8, FIRST) as arrays, closing(Child(stranger=stranger)) as child:
            measure = functools.partial(_attach, child, arrays, repeats)
            what = size_name(size) + (", other program" if stranger else "")
            cells = bench.take_turns(f"attach {what}", bench.rounds(0), measure)
        titles = {"attach": (f"attach/{key}", f"attach {what}")}
        if not stranger:
            titles["read"] = (f"read/{key}", f"then read a[0] {what}")
        titles["detach"] = (f"detach/{key}", f"detach {what}")
        made += rows(bench, cells, titles)
    return made


def passing(bench: Bench) -> list[Row]:
    """Measure a round trip through a Pipe (send, attach, read, acknowledge), and its bytes."""
    made: list[Row] = []
    for size, key in ((KIB, "1K"), (MIB, "1M"), (bench.large, "large")):
        repeats = bench.repeats(50) if size < LARGE else 1 if bench.quick else 3
        with one_each(size // 8, FIRST) as arrays, closing(Child()) as child:
            measure = functools.partial(_pass, child, arrays, repeats)
            what = f"pass {size_name(size)}"
            cells = bench.take_turns(what, bench.rounds(size), measure)
        trips = {
            "trip": (f"pass/{key}", what),
            "handle trip": (f"handle/{key}", f"{what} by handle"),
        }
        made += rows(bench, cells, trips)
        if key == "1K":
            lengths = {
                "bytes": ("bytes/message", "bytes of a message"),
                "handle bytes": ("bytes/handle", "bytes of a handle"),
            }
            made += rows(bench, cells, lengths, BYTES)
    return [*made, _bytes_of_view(bench)]


def _bytes_of_view(bench: Bench) -> Row:
    """Count the bytes that a Pipe carries for a view with gaps, 1 MB of a larger array."""
    cells: dict[str, Cell] = {}
    for contender in bench.contenders:
        if not contender.sends_views:
            cells[contender.name] = Cell(note="no views")
            continue
        array, keep = contender.create(MIB // 2)
        array.fill(FIRST)
        view = array.reshape(-1, 8)[::2, 1:7:2]
        data = bytes(ForkingPickler.dumps(contender.message(view, keep)))
        arrived = pickle.loads(data)  # noqa: S301 (made above)
        if arrived.shape != view.shape or arrived[-1, -1] != FIRST:
            cells[contender.name] = Cell(note="failed: the view arrived as another")
        else:
            cells[contender.name] = Cell((float(len(data)),))
        del array, view, arrived
        contender.destroy(keep)
    return Row("bytes/view", bench.group, "bytes of a view's message", cells, BYTES)


def _attach(child: Child, arrays: Arrays, repeats: int, contender: Contender) -> Parts:
    address = contender.address(*arrays(contender))
    parts: Parts = child.ask("attach", contender, address, repeats)
    return parts


def _pass(child: Child, arrays: Arrays, repeats: int, contender: Contender) -> Parts:
    """Measure the trips of the message that a user would send, and of the smallest one."""
    pair = arrays(contender)
    seconds, size = _trips(child, contender, pair, repeats, address=False)
    parts = {"trip": seconds, "bytes": size}
    with suppress(NotOfferedError):
        seconds, size = _trips(child, contender, pair, repeats, address=True)
        parts.update({"handle trip": seconds, "handle bytes": size})
    return parts


def _trips(
    child: Child, contender: Contender, pair: Pair, repeats: int, *, address: bool
) -> tuple[float, float]:
    """Return the seconds of a round trip, and the bytes sent. One more trip warms up."""
    connection = child.connection
    wrap = contender.address if address else contender.message
    data = ForkingPickler.dumps(wrap(*pair))
    size = len(data)
    connection.send(("echo", contender.name, repeats + 1, address))
    connection.send_bytes(data)  # as send() does, after the same dumps()
    del data
    times: list[float] = []
    for number in range(repeats + 1):
        begin = perf_counter()
        if number:
            connection.send(wrap(*pair))
        answer = connection.recv_bytes()
        times.append(perf_counter() - begin)
        _check_echo(answer)
        connection.recv_bytes()  # sent after the detach
    child.answer()
    return median(times[1:]), float(size)


def _check_echo(answer: bytes) -> None:
    if len(answer) != _DOUBLE.size:
        _checked(pickle.loads(answer))  # noqa: S301 (from a child of our own)
        raise RuntimeError("the child answered out of turn")
    if _DOUBLE.unpack(answer)[0] != FIRST:
        raise RuntimeError("the child read another value")


def _checked(answer: tuple[str, Any]) -> Any:
    state, content = answer
    if state != "done":
        raise RuntimeError(f"the child failed: {content}")
    return content


def _serve(connection: Any, stranger: bool) -> None:
    """Run orders in the child until the pipe breaks."""
    if stranger:
        multiprocessing.current_process().authkey = os.urandom(32)
    made: dict[str, Contender] = {}
    while True:
        try:
            order, name, *arguments = connection.recv()
            connection.send(_run(connection, made, order, name, arguments))
        except (EOFError, ConnectionError):
            return  # the other side has closed


def _run(
    connection: Any, made: dict[str, Contender], order: str, name: str, arguments: list[Any]
) -> tuple[str, Any]:
    try:
        if name not in made:
            made[name] = CONTENDERS[name]()
        act = {"attach": _attach_here, "echo": _echo}[order]
        return "done", act(connection, made[name], *arguments)
    except (EOFError, ConnectionError):
        raise
    except Exception as error:  # noqa: BLE001 (the other side reports it)
        return "failed", f"{type(error).__name__}: {error}"


def _attach_here(_connection: Any, contender: Contender, address: Any, repeats: int) -> Parts:
    times: dict[str, list[float]] = {"attach": [], "read": [], "detach": []}
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
        times["read"].append(read - attached)
        times["detach"].append(end - read)
    return {part: median(taken[1:]) for part, taken in times.items()}  # the first warms up


def _echo(connection: Any, contender: Contender, repeats: int, address: bool) -> None:
    receive = contender.attach if address else contender.receive
    for _ in range(repeats):
        array, keep = receive(connection.recv())
        connection.send_bytes(_DOUBLE.pack(array[0]))
        array = None
        contender.detach(keep)
        keep = None
        connection.send_bytes(b"")

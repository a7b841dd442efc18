"""What it costs to reach another process: attaching there, and passing through a Pipe."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import struct
from multiprocessing.reduction import ForkingPickler
from statistics import median
from time import perf_counter
from typing import Any, Callable, final

from synk_benchmarks.contender import NotOfferedError
from synk_benchmarks.results import BYTES, Cell, Row
from synk_benchmarks.text import size_name

from .bench import LARGE, Bench, Parts, one_each, rows
from .contender import Contender, Pair
from .contenders import make

KIB = 1 << 10
MIB = 1 << 20
FIRST = 42.5  # what every array begins with, so that a reader knows it has the right one
_DOUBLE = struct.Struct("d")
_JOIN_S = 5


@final
class Child:
    """A process that attaches, reads and answers. Started anew, it shares nothing by birth.

    Args:
        stranger: make it another program to this one, as far as multiprocessing tells
            (another authentication key), instead of one of its children.
    """

    def __init__(self, *, stranger: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, stranger), daemon=True)
        # It inherits this, so that Ctrl-C finds it prepared however early it comes.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        theirs.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()  # it leaves when its end of the pipe breaks
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
        """What the child sends when it is done.

        Raises:
            RuntimeError: it failed, with what it said.
        """
        return _checked(self.connection.recv())


def attach(bench: Bench) -> list[Row]:
    """Attach, read one element, detach: in a child, and in a process of another program."""
    made: list[Row] = []
    plan = [(KIB, "1K", False), (bench.large, "large", False), (KIB, "stranger", True)]
    for size, key, stranger in plan:
        repeats = bench.repeats(100)
        with one_each(size // 8, FIRST) as arrays, Child(stranger=stranger) as child:

            def measure(
                contender: Contender,
                child: Child = child,
                arrays: Callable[[Contender], Pair] = arrays,
                repeats: int = repeats,
            ) -> Parts:
                address = contender.address(*arrays(contender))
                parts: Parts = child.ask("attach", contender, address, repeats)
                return parts

            what = size_name(size) + (", other program" if stranger else "")
            cells = bench.take_turns(f"attach {what}", bench.rounds(0), measure)
        titles = {"attach": (f"attach/{key}", f"attach {what}")}
        if not stranger:
            titles["read"] = (f"read/{key}", f"then read a[0] {what}")
        titles["detach"] = (f"detach/{key}", f"detach {what}")
        made += rows(bench, cells, titles)
    return made


def passing(bench: Bench) -> list[Row]:
    """There and back through a Pipe: send, attach, read, acknowledge; and how many bytes."""
    made: list[Row] = []
    for size, key in ((KIB, "1K"), (MIB, "1M"), (bench.large, "large")):
        repeats = bench.repeats(50) if size < LARGE else 1 if bench.quick else 3
        with one_each(size // 8, FIRST) as arrays, Child() as child:

            def measure(
                contender: Contender,
                child: Child = child,
                arrays: Callable[[Contender], Pair] = arrays,
                repeats: int = repeats,
            ) -> Parts:
                return _pass(child, contender, arrays(contender), repeats)

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
    """A view with gaps, 1 MB of a larger array: what a Pipe carries for it."""
    cells: dict[str, Cell] = {}
    for contender in bench.contenders:
        if not contender.sends_views:
            cells[contender.name] = Cell(note="no views")
            continue
        array, keep = contender.create(MIB // 2)
        array.fill(FIRST)
        view = array.reshape(-1, 8)[::2, 1:7:2]
        data = bytes(ForkingPickler.dumps(contender.message(view, keep)))
        arrived = pickle.loads(data)  # noqa: S301 (just made; takes over what it carries)
        if arrived.shape != view.shape or arrived[-1, -1] != FIRST:
            cells[contender.name] = Cell(note="failed: the view arrived as another")
        else:
            cells[contender.name] = Cell((float(len(data)),))
        del array, view, arrived
        contender.destroy(keep)
    return Row("bytes/view", bench.group, "bytes of a view's message", cells, BYTES)


def _pass(child: Child, contender: Contender, pair: Pair, repeats: int) -> Parts:
    """The trips of the message that its user would send, and of the least that will do."""
    seconds, size = _trips(child, contender, pair, repeats, address=False)
    parts = {"trip": seconds, "bytes": size}
    with contextlib.suppress(NotOfferedError):
        seconds, size = _trips(child, contender, pair, repeats, address=True)
        parts.update({"handle trip": seconds, "handle bytes": size})
    return parts


def _trips(
    child: Child, contender: Contender, pair: Pair, repeats: int, *, address: bool
) -> tuple[float, float]:
    """Seconds of a round trip, and bytes of what is sent. One more trip warms up."""
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
        connection.recv_bytes()  # it has detached
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
    """The child: carry out orders until the pipe breaks."""
    if stranger:
        multiprocessing.current_process().authkey = os.urandom(32)
    made: dict[str, Contender] = {}
    while True:
        try:
            order, name, *arguments = connection.recv()
            connection.send(_obey(connection, made, order, name, arguments))
        except (EOFError, ConnectionError):
            return  # the other side has gone


def _obey(
    connection: Any, made: dict[str, Contender], order: str, name: str, arguments: list[Any]
) -> tuple[str, Any]:
    try:
        if name not in made:
            made[name] = make(name)
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

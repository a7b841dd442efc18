"""Start a program on several ranks: ``python -m synk_comm.run -n 4 script.py [args]``.

The program finds its group with ``comm = synk_comm.connect()``. See ``--help``.
"""

from __future__ import annotations

import argparse
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Callable, NoReturn, Sequence

from ._join.groups import Group, create_group
from ._processes.crew import Crew
from ._processes.loading import Source
from ._processes.process import RankFailure, RankProcess, rank_environment
from ._processes.rank import Script
from .exceptions import MisuseError
from .processes import import_path, require_leave

_DESCRIPTION = """\
Start a Python program on several ranks of one machine, and wait for them.

The program finds its group with

    comm = synk_comm.connect()
"""

_EPILOG = """\
examples:
  python -m synk_comm.run -n 4 train.py --rate 0.1
  python -m synk_comm.run -n 2 --timeout 600 -m mypackage.train --rate 0.1
  python -m synk_comm.run -n 2 --no-tag-output script.py | sort

Rank 0 has the standard input, the others have none. Each rank has SYNK_COMM_RANK and
SYNK_COMM_SIZE in its environment, and OMP_NUM_THREADS = cores / ranks (at least 1) if that is not
set here. SIGINT (Ctrl-C) and SIGTERM go on to all ranks; the second one kills them. So does the end
of this process, whatever its cause. SIGQUIT to a rank makes it write its stacks.

The exit code is 0 if all ranks ended with 0. Else the others are ended, and it is that of the rank
that failed first: 128 + n for signal n. 124 after --timeout, 2 if nothing could be started.
"""

_TIMEOUT_CODE = 124  # as timeout(1) has it
_FAILURE_GRACE_S = 5.0  # from SIGTERM to SIGKILL, for what runs when another rank has failed
_READ_BYTES = 1 << 16
_LONGEST_LINE = 1 << 24
_MOST_LEFT = 1 << 21  # more than a pipe holds


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    source, arguments = _program(parser, options)
    tagged = options.n > 1 if options.tag_output is None else options.tag_output
    try:
        require_leave("python -m synk_comm.run")
        group = create_group(options.n, options.backend)
    except (ValueError, MemoryError, MisuseError) as exc:
        parser.error(str(exc))
    outputs: list[_Output] = []
    with group, Crew() as crew, _SignalForwarder(crew, options.grace) as signals:
        try:
            _start(crew, group, source, arguments, signals, outputs if tagged else None)
            deadline = None if options.timeout is None else time.monotonic() + options.timeout
            crew.wait(deadline, _FAILURE_GRACE_S)
            for output in outputs:
                output.finish()
        except BrokenPipeError:  # the reader of our output has gone
            for output in outputs:
                output.drop()
            return 128 + signal.SIGPIPE
        finally:
            crew.kill()
            group.discard()
    return _verdict(crew, options.timeout, signals.asked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m synk_comm.run",
        usage="%(prog)s -n N [options] (script.py | -m module) [arguments ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-n", type=_positive(int), required=True, help="number of ranks")
    parser.add_argument(
        "--backend",
        default="auto",
        help="shm (shared memory), zmq (ZeroMQ), or auto: shm where memory can be shared (default)",
    )
    parser.add_argument(
        "--timeout", type=_positive(float), metavar="S", help="end all ranks after S seconds"
    )
    parser.add_argument(
        "--grace",
        type=_positive(float),
        metavar="S",
        default=30.0,
        help="what ranks get to end after SIGINT or SIGTERM before they are killed (default 30)",
    )
    tags = parser.add_mutually_exclusive_group()
    tags.add_argument(
        "--tag-output",
        action="store_true",
        default=None,
        help="put '[rank] ' before each line of output, and let lines through as a whole "
        "(default with more than one rank)",
    )
    tags.add_argument(
        "--no-tag-output",
        action="store_false",
        dest="tag_output",
        help="let the ranks write straight to the output of this process",
    )
    parser.add_argument(
        "-m",
        "--module",
        nargs=argparse.REMAINDER,
        help="run a module, as python -m does; what follows are its arguments",
    )
    parser.add_argument("script", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def positive(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"must be more than 0, got {text}")
        return value

    positive.__name__ = kind.__name__  # argparse names it in "invalid int value"
    return positive


def _program(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> tuple[Source, list[str]]:
    if options.module is not None:
        if not options.module:
            parser.error("-m needs the name of a module")
        return Source(options.module[0], ""), options.module
    if not options.script:
        parser.error("expected a script, or -m and a module")
    script = options.script[0]
    if not os.path.exists(script):
        parser.error(f"there is no file {script!r}")
    return Source("", os.path.abspath(script)), options.script


def _path(source: Source) -> Sequence[str]:
    """Return ``sys.path`` as ``python script.py`` or ``python -m module`` would have it."""
    path = import_path()
    if not source.path or sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return path
    # We were started by -m ourselves: the first entry is the current folder.
    return [os.path.dirname(os.path.realpath(source.path)), *path[1:]]


def _start(
    crew: Crew,
    group: Group,
    source: Source,
    arguments: list[str],
    signals: _SignalForwarder,
    outputs: list[_Output] | None,
) -> None:
    """Start all ranks; if their output is to be tagged, add what passes it on to ``outputs``."""
    pipe = None if outputs is None else subprocess.PIPE
    for rank in range(group.size):
        if signals.asked is not None:
            break
        process = RankProcess(
            rank,
            Script(source, by_line=outputs is not None),
            path=_path(source),
            argv=arguments,
            env=rank_environment(group.size, rank, {"SYNK_COMM_TICKET": group.ticket(rank)}),
            fds=group.fds,
            stdin=None if rank == 0 else subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
        )
        crew.add(process)
        for theirs, ours in ((process.stdout, 1), (process.stderr, 2)):
            if theirs is not None and outputs is not None:
                output = _Output(theirs.fileno(), b"[%d] " % rank, ours)
                crew.register(theirs.fileno(), selectors.EVENT_READ, output.ready)
                outputs.append(output)


class _Output:
    """Passes on what a rank writes, line by line, each with a tag in front."""

    def __init__(self, theirs: int, tag: bytes, ours: int) -> None:
        os.set_blocking(theirs, False)
        self._theirs = theirs
        self._tag = tag
        self._ours = ours
        self._begun = bytearray()  # of a line whose end has not come
        self._dropped = False

    def ready(self) -> bool:
        """Pass on the next piece; return whether that was the last."""
        try:
            data = os.read(self._theirs, _READ_BYTES)
        except BlockingIOError:
            return False
        end = data.rfind(b"\n") + 1
        if end:
            lines = bytes(self._begun + data[:end]).split(b"\n")[:-1]
            self._begun = bytearray()
            self._write(lines)
        self._begun += data[end:]
        if len(self._begun) > _LONGEST_LINE or not data:
            self._end_line()
        return not data

    def drop(self) -> None:
        """Pass on nothing more."""
        self._dropped = True

    def finish(self) -> None:
        """Pass on what is left in the pipe, even if some grandchild still holds it open."""
        for _ in range(_MOST_LEFT // _READ_BYTES):
            if not select.select([self._theirs], [], [], 0)[0]:
                break
            if self.ready():
                return
        self._end_line()

    def _end_line(self) -> None:
        # A line that never ends, or the end of all: other ranks begin a line of their own.
        if self._begun:
            line, self._begun = bytes(self._begun), bytearray()
            self._write([line])

    def _write(self, lines: list[bytes]) -> None:
        if not self._dropped:
            write_all(self._ours, b"".join(b"%b%b\n" % (self._tag, line) for line in lines))


def write_all(fd: int, data: bytes) -> None:
    """Write everything, also to a descriptor that does not block."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            select.select([], [fd], [], 1.0)


class _SignalForwarder:
    """While it is entered, SIGINT and SIGTERM go on to the ranks.

    Attributes:
        asked: the first signal that came, or None.
    """

    def __init__(self, crew: Crew, grace_s: float) -> None:
        self._crew = crew
        self._grace_s = grace_s
        self._before: dict[int, object] = {}
        self.asked: int | None = None

    def __enter__(self) -> _SignalForwarder:  # noqa: PYI034 - typing.Self is newer than 3.9
        for signum in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup, or a shell's background
                self._before[signum] = signal.signal(signum, self._pass_on)
        # It may be ignored from the start; then no exit code of a child is known.
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]

    def _pass_on(self, signum: int, frame: FrameType | None) -> None:
        del frame
        if self.asked is None:
            self.asked = signum
            self._crew.ask(signum, self._grace_s)
        else:
            self._crew.ask(signal.SIGKILL, 0.0)


def _verdict(crew: Crew, timeout_s: float | None, asked: int | None) -> int:
    failures = crew.failures()
    size = len(crew.ranks)
    if asked is not None:
        if all(rank.exitcode == 0 for rank in crew.ranks):
            return 0
        _say(f"stopped by {signal.Signals(asked).name}")
        return 128 + asked
    if failures:
        first = failures[0]
        others = [rank for rank in crew.ranks if rank.rank != first.rank]
        lines = [f"\n  rank {rank.rank}: {rank.fate()}" for rank in others]
        _say(f"rank {first.rank} of {size} failed first: {first}{''.join(lines)}")
        return _exit_code(crew.ranks[first.rank], first)
    late = [str(rank.rank) for rank in crew.ranks if rank.stopped_at is not None]
    if late:
        which = f"rank {late[0]}" if len(late) == 1 else f"ranks {', '.join(late)}"
        _say(f"{which} of {size} still ran after {timeout_s} s and had to be ended")
        return _TIMEOUT_CODE
    return 0


def _exit_code(rank: RankProcess, failure: RankFailure) -> int:
    exitcode = rank.exitcode
    if exitcode is None or (failure.report is not None and rank.stopped_at is not None):
        return 1  # it had failed already, but would not end
    return exitcode if exitcode >= 0 else 128 - exitcode


def _say(text: str) -> None:
    write_all(2, f"synk_comm.run: {text}\n".encode(errors="replace"))


def _exit() -> NoReturn:
    raise SystemExit(main())


if __name__ == "__main__":
    _exit()

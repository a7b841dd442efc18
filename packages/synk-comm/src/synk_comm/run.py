"""Start a Python program on several ranks of one machine, and wait for them.

The program finds its group with

    comm = synk_comm.connect()
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Iterator, Sequence

from ._join import create_group
from ._processes.crew import Crew
from ._processes.rank import Script, Source
from .exceptions import MisuseError
from .processes import import_path, require_leave

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
_FAILURE_GRACE_S = 5.0  # from SIGTERM to SIGKILL, after another rank has failed
_READ_BYTES = 1 << 16
_LONGEST_LINE = 1 << 24
_MOST_LEFT = 1 << 21  # more than a pipe holds


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    for name in ("n", "timeout", "grace"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            parser.error(f"{name} must be more than 0, got {value}")
    source, arguments = _program(parser, options)
    tagged = options.n > 1 if options.tag_output is None else options.tag_output
    try:
        require_leave("python -m synk_comm.run")
        crew = Crew(create_group(options.n, options.backend))
    except (ValueError, MemoryError, MisuseError) as exc:
        parser.error(str(exc))
    outputs: list[_Output] = []
    with _passing_on(crew, options.grace) as asked, crew:
        try:
            crew.start(
                Script(source, arguments, by_line=tagged),
                path=_path(source),
                stdin=None,
                output=subprocess.PIPE if tagged else None,
            )
            for rank in crew.ranks:
                for theirs, ours in ((rank.stdout, 1), (rank.stderr, 2)):
                    if theirs is not None:
                        outputs.append(_Output(theirs.fileno(), b"[%d] " % rank.rank, ours))
                        crew.register(theirs.fileno(), outputs[-1].ready)
            deadline = None if options.timeout is None else time.monotonic() + options.timeout
            crew.wait(deadline, _FAILURE_GRACE_S)
            for output in outputs:
                output.finish()
        except BrokenPipeError:  # the reader of our output has gone
            for output in outputs:
                output.ours = None
            return 128 + signal.SIGPIPE
    return _verdict(crew, options.timeout, asked[0] if asked else None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m synk_comm.run",
        usage="%(prog)s -n N [options] (script.py | -m module) [arguments ...]",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-n", type=int, required=True, help="number of ranks")
    parser.add_argument(
        "--backend",
        default="auto",
        help="shm (shared memory), zmq (ZeroMQ), or auto: shm where memory can be shared (default)",
    )
    parser.add_argument("--timeout", type=float, metavar="S", help="end all ranks after S seconds")
    parser.add_argument(
        "--grace",
        type=float,
        metavar="S",
        default=30.0,
        help="time for ranks to end after SIGINT or SIGTERM before they are killed (default 30)",
    )
    parser.add_argument(
        "--tag-output",
        action=argparse.BooleanOptionalAction,
        help="put '[rank] ' before each line of output, and let lines through as a whole (default "
        "with more than one rank); else the ranks write straight to the output of this process",
    )
    parser.add_argument(
        "-m",
        "--module",
        nargs=argparse.REMAINDER,
        help="run a module, as python -m does; its arguments follow",
    )
    parser.add_argument("script", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


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


class _Output:
    """Passes on the lines of a rank, each with a tag in front."""

    def __init__(self, theirs: int, tag: bytes, ours: int) -> None:
        os.set_blocking(theirs, False)
        self.ours: int | None = ours  # None to pass on nothing more
        self._theirs = theirs
        self._tag = tag
        self._begun = bytearray()  # not passed on yet

    def ready(self) -> bool:
        """Pass on the next piece; return whether that was the last."""
        try:
            data = os.read(self._theirs, _READ_BYTES)
        except BlockingIOError:
            return False
        self._begun += data
        is_over = not data or len(self._begun) > _LONGEST_LINE
        if b"\n" in data or is_over:
            self._pass_on(is_over)
        return not data

    def finish(self) -> None:
        """Pass on the rest in the pipe, even if some grandchild still holds it open."""
        for _ in range(_MOST_LEFT // _READ_BYTES):
            if not select.select([self._theirs], [], [], 0)[0] or self.ready():
                break
        self._pass_on(True)

    def _pass_on(self, is_over: bool) -> None:
        """Pass on all whole lines; if ``is_over``, also the begin of one."""
        *lines, begun = bytes(self._begun).split(b"\n")
        if is_over and begun:
            lines.append(begun)  # other ranks begin a line of their own
            begun = b""
        self._begun = bytearray(begun)
        if self.ours is not None:
            write_all(self.ours, b"".join(b"%b%b\n" % (self._tag, line) for line in lines))


def write_all(fd: int, data: bytes) -> None:
    """Write everything, also to a non-blocking descriptor."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            select.select([], [fd], [], 1.0)


@contextlib.contextmanager
def _passing_on(crew: Crew, grace_s: float) -> Iterator[list[int]]:
    """Pass SIGINT and SIGTERM on to the ranks; yield the list of those that come."""
    came: list[int] = []

    def pass_on(signum: int, _: FrameType | None) -> None:
        came.append(signum)
        if len(came) == 1:
            crew.ask(signum, grace_s)
        else:
            crew.ask(signal.SIGKILL, 0.0)

    before = {
        signum: signal.signal(signum, pass_on)
        for signum in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(signum) is not signal.SIG_IGN  # as of nohup, or a shell's background
    }
    # If it is ignored from the start, no exit code of a child is known.
    before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield came
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _verdict(crew: Crew, timeout_s: float | None, asked: int | None) -> int:
    """Report how the job ended, unless it ended well; return the exit code."""
    if asked is not None:
        if all(rank.exitcode == 0 for rank in crew.ranks):
            return 0
        _say(f"stopped by {signal.Signals(asked).name}")
        return 128 + asked
    failures = crew.failures()
    if failures:
        first, report = failures[0]
        place = f"rank {first.rank} of {len(crew.ranks)}"
        _say(f"{place} failed first: {report.brief}{crew.fates(besides=first)}")
        exitcode = first.exitcode
        if exitcode is None or (report.failure and first.stopped_at is not None):
            return 1  # it had failed already, but would not end
        return exitcode if exitcode >= 0 else 128 - exitcode
    late, said = crew.late(timeout_s)
    if late:
        _say(said)
        return _TIMEOUT_CODE
    return 0


def _say(text: str) -> None:
    write_all(2, f"synk_comm.run: {text}\n".encode(errors="replace"))


if __name__ == "__main__":
    raise SystemExit(main())

"""The process of one rank, from the inside: what ``launch`` and ``run`` start.

The work comes in files of a ``Process`` without names, and a report of the result goes back in
another. All are inherited, so the pickles in them come from this user's own processes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import io
import mmap
import os
import pickle
import runpy
import signal
import sys
import time
import traceback
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

from synk_comm._core.calls import brief, chain
from synk_comm._join import join
from synk_comm.exceptions import AbortedError, CommError, CommTimeout, PeerDeclined, PeerLost
from synk_comm.processes import NO_RANKS

MAIN_NAMES = ("__main__", "__mp_main__")
"""What the main script is called where it runs, and where a rank has loaded it (as
``multiprocessing`` calls it)."""

STACKS_SIGNAL = signal.SIGQUIT
"""Lets a rank write the stacks of its threads to standard error, and go on."""

_BY_OTHERS = (PeerLost, AbortedError, PeerDeclined, CommTimeout)
_TOLD_BY_OTHERS = (PeerLost, AbortedError, PeerDeclined)
"""Errors without a traceback of this rank: that of the rank that caused them says more."""

_LOADS = "a rank that loads the program"
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


class Source(NamedTuple):
    """Where a module comes from.

    Attributes:
        name: to import it by, or "".
        path: of its file, or "".
    """

    name: str
    path: str


class Task(NamedTuple):
    """Work: call a function with a communicator.

    Attributes:
        timeout_s: for ``join``.
        main: the main script, if the payload refers to it.
        home: the module of the function, if that is another one.
        tell: whether a failure is sent to peers by ``abort``; else they notice that it has left.
    """

    timeout_s: float
    main: Source | None
    home: Source | None
    tell: bool


class Script(NamedTuple):
    """Work: run a program as ``__main__``.

    Attributes:
        source: by name (``-m``) or by path.
        by_line: whether its output goes out line by line, as it does on a terminal.
    """

    source: Source
    by_line: bool


class RankReport(NamedTuple):
    """Result of the work; of plain types, so that the parent can always read it.

    Attributes:
        value: pickle of what the function returned.
        failure: the traceback, or "" if there is no failure.
        brief: type and first line of the exception.
        raised: pickle of the exception, or empty if it cannot be pickled.
        by_others: whether the exception came of what another rank did or failed to do.
        at: when, on the monotonic clock.
    """

    value: bytes = b""
    failure: str = ""
    brief: str = ""
    raised: bytes = b""
    by_others: bool = False
    at: float = 0.0

    @classmethod
    def of(cls, exc: BaseException, rank: int) -> RankReport:
        """Describe a failure."""
        lines = traceback.format_exception(type(exc), exc, _outside(exc))
        text = "".join(lines)
        raised = b""
        try:
            raised = pickle.dumps(exc)
            unpickled(raised)  # not all that can be pickled can be read back
        except (Exception, SystemExit):  # noqa: BLE001 - whatever its class does there: the text remains
            raised = b""
        return cls(b"", text, brief(exc), raised, _by_others(exc, rank), time.monotonic())

    def send(self, fd: int) -> None:
        """Write it into a file, and then, at its begin, that it is whole."""
        with open(fd, "wb") as file:
            file.seek(1)
            file.write(pickle.dumps(tuple(self), protocol=pickle.HIGHEST_PROTOCOL))
            file.flush()
            os.pwrite(fd, b"\1", 0)


def main(rank: int, report: int, payload: int, argv: list[str], work: Task | Script) -> None:
    """Do the work; the process ends with it.

    Args:
        rank: its number.
        report, payload: descriptors of the files for the report, and of a task with
            ``pickle.dumps((function, args))``.
        argv: the command line that the work sees.
    """
    for fd in (report, payload):
        os.set_inheritable(fd, False)
    sys.argv[:] = argv
    with contextlib.suppress(RuntimeError, ValueError, OSError):  # standard error is closed
        faulthandler.register(STACKS_SIGNAL)
    if isinstance(work, Task):
        with contextlib.suppress(RuntimeError, ValueError, OSError):
            faulthandler.enable()
        _perform(rank, report, payload, work)
    else:
        os.close(payload)
        _run(rank, report, work)


def _perform(rank: int, report_fd: int, payload: int, task: Task) -> None:
    report, ticket = None, os.environ.pop("SYNK_COMM_TICKET")
    try:
        # What is imported here must not start ranks, which would import it, too.
        is_loading = os.environ.setdefault(NO_RANKS, _LOADS) == _LOADS
        if task.main is not None:
            _load_main(task.main)
        if task.home is not None:
            _load(task.home)
        function, args = unpickled(mmap.mmap(payload, 0, access=mmap.ACCESS_READ))
        os.close(payload)
        if is_loading:
            os.environ.pop(NO_RANKS, None)
        with join(ticket, timeout_s=task.timeout_s) as comm:
            try:
                report = RankReport(_pickled(function(comm, *args)), at=time.monotonic())
            except BaseException as exc:
                # Before peers notice it, by the end of this ``with``: their failures come later.
                report = RankReport.of(exc, rank)
                report.send(report_fd)
                if not task.tell:
                    comm.close()
                raise
    except BaseException as exc:  # noqa: BLE001 - a KeyboardInterrupt is an outcome too
        if report is None or not report.failure:
            RankReport.of(exc, rank).send(report_fd)
        # Not by raising again: the traceback travels, and need not be shown twice.
        raise SystemExit(1) from None
    report.send(report_fd)


def _load_main(source: Source) -> None:
    """Load the parent's main script under another name, so that its guard keeps it still."""
    if source.name:
        names = runpy.run_module(source.name, run_name="__mp_main__", alter_sys=True)
    else:
        names = runpy.run_path(source.path, run_name="__mp_main__")
    module = ModuleType("__mp_main__")
    vars(module).update(names)
    for name in MAIN_NAMES:
        sys.modules[name] = module


def _load(source: Source) -> None:
    """Import a module; from its file if its name leads nowhere, or elsewhere.

    Test modules and scripts in other folders are often not importable by name.
    """
    if source.name in sys.modules:
        return
    spec = None
    try:
        spec = importlib.util.find_spec(source.name)
    except ModuleNotFoundError as exc:
        if not f"{source.name}.".startswith(f"{exc.name}."):
            raise  # not its package is missing, but something that its package needs
    except ValueError:  # a module without a spec
        pass
    origin = spec.origin if spec is not None else None
    if not source.path or (
        origin and os.path.exists(origin) and os.path.samefile(origin, source.path)
    ):
        importlib.import_module(source.name)
        return
    spec = importlib.util.spec_from_file_location(source.name, source.path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load the module {source.name!r} from {source.path!r}")
    module = importlib.util.module_from_spec(spec)
    package = source.name.rpartition(".")[0]
    while package:  # pickle imports them, though they have no file
        sys.modules.setdefault(package, ModuleType(package))
        package = package.rpartition(".")[0]
    sys.modules[source.name] = module
    spec.loader.exec_module(module)


class _MainUnpickler(pickle.Unpickler):
    """Knows the main script by the name that the ranks give it."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        if module_name == "__mp_main__" and module_name not in sys.modules:
            module_name = "__main__"
        return super().find_class(module_name, global_name)


def unpickled(data: bytes | mmap.mmap) -> Any:
    """Read what the parent of this process, or a rank of it, has sent."""
    return _MainUnpickler(io.BytesIO(data)).load()


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as exc:
        raise TypeError(
            f"the function returned a {type(value).__qualname__} that cannot be pickled for the "
            f"way back ({brief(exc)}); return arrays, numbers, text, or containers of them"
        ) from exc


def _run(rank: int, report_fd: int, script: Script) -> None:
    if script.by_line:
        for stream in (sys.stdout, sys.stderr):
            getattr(stream, "reconfigure", lambda **_: None)(line_buffering=True)
    try:
        if script.source.name:
            runpy.run_module(script.source.name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script.source.path, run_name="__main__")
    except SystemExit:
        raise
    except BaseException as exc:
        RankReport.of(exc, rank).send(report_fd)
        exc = exc.with_traceback(_outside(exc))
        if isinstance(exc, _TOLD_BY_OTHERS):
            _say_where(exc, rank)
            raise SystemExit(1) from None
        if isinstance(exc, KeyboardInterrupt):
            # The interpreter ends itself by SIGINT, as its parent expects. A bare raise
            # would bring back the whole traceback on Python 3.9.
            raise exc  # noqa: TRY201
        sys.excepthook(type(exc), exc, exc.__traceback__)
        raise SystemExit(1) from None


def _say_where(exc: BaseException, rank: int) -> None:
    """Write, in place of a traceback, one line: what ended this rank, and where in its script."""
    frames = traceback.extract_tb(exc.__traceback__)
    place = f" at {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    with contextlib.suppress(OSError, AttributeError, ValueError):  # standard error is closed
        sys.stderr.write(f"synk_comm: rank {rank} ended{place}: {brief(exc)}\n")


def _outside(exc: BaseException) -> TracebackType | None:
    """Drop the frames of this file, and of what it uses to run a program, from the top.

    Of an error between ranks, which says all, those of this package also go from the bottom.
    """
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    trace = exc.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    last, link = None, trace if isinstance(exc, CommError) else None
    while link is not None:
        if not link.tb_frame.f_code.co_filename.startswith(_FOLDER):
            last = link
        link = link.tb_next
    if last is not None:
        last.tb_next = None
    return trace


def _by_others(exc: BaseException, rank: int) -> bool:
    for link in chain(exc):
        # A rank that gave up by itself is no victim of others.
        if isinstance(link, _BY_OTHERS) and not (
            isinstance(link, AbortedError) and link.rank == rank
        ):
            return True
    return False

"""The process of one rank, from the inside.

All pickles come in inherited files without names, so from this user's own processes.
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
from collections.abc import Sequence
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

from synk_comm._core.calls import brief, chain
from synk_comm._join import join
from synk_comm.exceptions import AbortedError, CommError, CommTimeout, EndOfGroup, PeerDeclined
from synk_comm.processes import NO_RANKS

MAIN_NAMES = ("__main__", "__mp_main__")
"""Names of the main script: in its own process, and in a rank (as ``multiprocessing`` has it)."""
STACKS_SIGNAL = signal.SIGQUIT
"""A rank writes the stacks of its threads to standard error, and goes on."""

_NAMED_BY_OTHERS = (EndOfGroup, PeerDeclined)
"""Errors without a traceback of this rank: that of the rank that caused them says more."""
_BY_OTHERS = (*_NAMED_BY_OTHERS, CommTimeout)

_LOADS = "a rank that loads the program"
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


class Source(NamedTuple):
    """A module: by its name, or by the path of its file; "" if unknown."""

    name: str
    path: str

    def run(self, run_name: str) -> dict[str, Any]:
        """Run it as a program; return its names."""
        if self.name:
            return runpy.run_module(self.name, run_name=run_name, alter_sys=True)
        return runpy.run_path(self.path, run_name=run_name)


class Task(NamedTuple):
    """Work: call a function with a communicator."""

    timeout_s: float  # for ``join``
    main: Source | None  # the main script, if the payload refers to it
    home: Source | None  # the module of the function, if that is another one
    aborts: bool  # whether a failure is sent to peers by ``abort``; else this rank just leaves
    argv: Sequence[str]


class Script(NamedTuple):
    """Work: run a program as ``__main__``; ``by_line`` if it writes as on a terminal."""

    source: Source
    argv: Sequence[str]
    by_line: bool


class RankReport(NamedTuple):
    """Result of the work, of plain types, so that the parent can always read it."""

    value: bytes = b""  # pickle of the function's result
    failure: str = ""  # the traceback, or "" if there is no failure
    brief: str = ""  # type and first line of the exception
    raised: bytes = b""  # pickle of the exception, or empty if it cannot be pickled
    by_others: bool = False  # whether another rank caused the exception
    at: float = 0.0  # when, on the monotonic clock

    @classmethod
    def of(cls, exc: BaseException, rank: int) -> RankReport:
        """Describe a failure."""
        text = "".join(traceback.format_exception(type(exc), exc, _outside(exc)))
        try:
            raised = pickle.dumps(exc)
            unpickled(raised)  # some pickles cannot be read back
        except (Exception, SystemExit):  # noqa: BLE001 - of its class; the text remains
            raised = b""
        by_others = any(
            isinstance(link, _BY_OTHERS)
            and not (isinstance(link, AbortedError) and link.rank == rank)  # it gave up itself
            for link in chain(exc)
        )
        return cls(b"", text, brief(exc), raised, by_others, time.monotonic())

    def send(self, fd: int) -> None:
        """Write it into a file, and then a mark at the begin."""
        with open(fd, "wb") as file:
            file.seek(1)
            file.write(pickle.dumps(tuple(self), protocol=pickle.HIGHEST_PROTOCOL))
            file.flush()
            os.pwrite(fd, b"\1", 0)


def main(rank: int, report: int, payload: int, work: Task | Script) -> None:
    """Do the work, of the file ``payload``, and fill ``report``; the process ends with it."""
    for fd in (report, payload):
        os.set_inheritable(fd, False)
    sys.argv[:] = work.argv
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
        # The imports must not start ranks, which would import the same.
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
                # Before the end of this ``with``, which peers notice: their failures come later.
                report = RankReport.of(exc, rank)
                report.send(report_fd)
                if not task.aborts:
                    comm.close()
                raise
    except BaseException as exc:  # noqa: BLE001 - a KeyboardInterrupt is an outcome too
        if report is None or not report.failure:
            RankReport.of(exc, rank).send(report_fd)
        raise SystemExit(1) from None  # the report has the traceback
    report.send(report_fd)


def _load_main(source: Source) -> None:
    """Load the parent's main script under a name at which its guard does nothing."""
    module = ModuleType("__mp_main__")
    vars(module).update(source.run("__mp_main__"))
    for name in MAIN_NAMES:
        sys.modules[name] = module


def _load(source: Source) -> None:
    """Import a module; from its file if its name finds none, or another one, as often in tests."""
    if source.name in sys.modules:
        return
    spec = None
    try:
        spec = importlib.util.find_spec(source.name)
    except ModuleNotFoundError as exc:
        if not f"{source.name}.".startswith(f"{exc.name}."):
            raise  # its package is there, but lacks a module that it imports
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
    """Also finds the main script by its name in ranks."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        if module_name == "__mp_main__" and module_name not in sys.modules:
            module_name = "__main__"
        return super().find_class(module_name, global_name)


def unpickled(data: bytes | mmap.mmap) -> Any:
    """Read a pickle of the parent of this process, or of a rank of it."""
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
        script.source.run("__main__")
    except SystemExit:
        raise
    except BaseException as exc:
        report = RankReport.of(exc, rank)
        report.send(report_fd)
        exc, text = exc.with_traceback(_outside(exc)), report.failure
        if isinstance(exc, KeyboardInterrupt):
            # The interpreter ends itself by SIGINT, as its parent expects. A bare raise
            # would bring back the whole traceback on Python 3.9.
            raise exc  # noqa: TRY201
        if isinstance(exc, _NAMED_BY_OTHERS):
            frames = traceback.extract_tb(exc.__traceback__)
            place = f" at {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
            text = f"synk_comm: rank {rank} ended{place}: {brief(exc)}\n"
        elif sys.excepthook is not sys.__excepthook__:
            sys.excepthook(type(exc), exc, exc.__traceback__)
            raise SystemExit(1) from None
        with contextlib.suppress(OSError, AttributeError, ValueError):  # standard error is closed
            sys.stderr.write(text)  # at once: Python's own hook would mix it with other ranks' text
        raise SystemExit(1) from None


def _outside(exc: BaseException) -> TracebackType | None:
    """Drop the frames of this file and of ``runpy`` from the top of a traceback.

    Of an error between ranks, also drop those of this package from the bottom.
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

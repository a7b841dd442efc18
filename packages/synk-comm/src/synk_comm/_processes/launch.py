"""``launch``: run a function on ranks in fresh processes, and collect what they return."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import pickle
import signal
import sys
import time
from types import FunctionType, MethodType, ModuleType
from typing import Any, Callable

from synk_comm._core.calls import brief
from synk_comm._core.guard import DEFAULT_TIMEOUT_S, deadline_after
from synk_comm._join import create_group
from synk_comm.exceptions import CommTimeout, RankDied, RankFailed
from synk_comm.processes import require_leave

from .crew import Crew, Environment
from .rank import MAIN_NAMES, RankReport, Source, Task, unpickled


def launch(
    n: int,
    fn: Callable[..., Any],
    *args: Any,
    backend: str = "auto",
    timeout_s: float | None = None,
    comm_timeout_s: float = DEFAULT_TIMEOUT_S,
    grace_s: float = 5.0,
    env: Environment = None,
) -> list[Any]:
    """Run ``fn(comm, *args)`` on ``n`` ranks, each in a fresh Python process; return the results.

    Blocks until all processes have ended. When one fails, the others get three seconds to fail by
    themselves and report it; then they are ended. No process is left, nor any that the ranks
    started, also if this process is killed.

    May be called from any thread, from a rank (but not from ranks of that), from an interactive
    session (for functions of modules). A script needs ``if __name__ == "__main__":`` around it.

    Args:
        n: number of ranks; there may be more than cores.
        fn: a function of the top level of a module or of the main script, which the processes
            load: the main script under the name ``__mp_main__``, and only if it is needed. Its
            first argument is the rank's ``Communicator``, closed when it returns.
        args: its other arguments; picklable.
        backend: as for ``create_group``.
        timeout_s: after this time all ranks are ended; None is no limit.
        comm_timeout_s: the communicator's own bound, for joining and for each collective.
        grace_s: time for ranks to end by themselves after SIGTERM, when another has failed, and
            after SIGINT, when this process got a Ctrl-C; then they are killed.
        env: environment variables for the ranks, or a function from rank to these. Ranks also have
            ``SYNK_COMM_RANK``, ``SYNK_COMM_SIZE``, and, if this process has not set it,
            ``OMP_NUM_THREADS`` = cores // n, at least 1.

    Returns:
        The results of ``fn``, pickled, by rank.

    Raises:
        RankFailed: a rank raised; names the first one, and the ends of the others.
        RankDied: a rank's process ended by itself; a ``RankFailed`` too.
        CommTimeout: some ranks still ran after ``timeout_s``. They write the stacks of their
            threads to standard error first, as they do whenever they get SIGQUIT.
        TypeError: ``fn`` or ``args`` cannot be sent to other processes.
        MisuseError: this process may start no ranks, or has no Python to start them with.
    """
    if not hasattr(n, "__index__"):
        raise TypeError(f"n is {n!r}, expected the number of ranks: launch(n, function, *args)")
    if operator.index(n) < 1:
        raise ValueError(f"n must be at least 1, got {n!r}")
    deadline = None if timeout_s is None else deadline_after(timeout_s)
    deadline_after(comm_timeout_s)
    require_leave("launch()")
    work = packed(fn, args, comm_timeout_s, aborts=True)
    with Crew(create_group(n, backend)) as crew:
        try:
            crew.start(*work, env=env)
            crew.wait(deadline, grace_s)
        except KeyboardInterrupt:
            crew.ask(signal.SIGINT, grace_s)
            crew.wait_until(time.monotonic() + grace_s)
            raise
    return _results(crew, timeout_s)


def packed(
    fn: Callable[..., Any], args: tuple[Any, ...], timeout_s: float, *, aborts: bool
) -> tuple[Task, bytes]:
    """Pickle a function, by name, and its arguments; return the task and the pickle."""
    if not callable(fn):
        raise TypeError(f"fn must be a function, got {type(fn).__qualname__}: {fn!r}")
    inner = _innermost(fn)
    name = getattr(inner, "__module__", None) or ""
    what = getattr(inner, "__qualname__", repr(inner))
    cure = "; use a function of the top level of a module, and pass what it needs as arguments"
    if isinstance(inner, FunctionType) and ("<lambda>" in what or "<locals>" in what):
        kind = "a lambda" if inner.__name__ == "<lambda>" else "made inside another function"
        raise TypeError(f"ranks are other processes and cannot load {what}: it is {kind}{cure}")
    main = _main_source()
    if name in MAIN_NAMES and main is None:
        raise TypeError(
            f"ranks are other processes and cannot load {what} from here: it was typed into an "
            "interactive session, or came from `python -c` or standard input; put it into a file "
            "mine.py, and `import mine`"
        )
    try:
        payload = pickle.dumps((fn, args), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as exc:
        raise TypeError(
            f"{_culprit(fn, args)} cannot be sent to ranks: {brief(exc)}{cure}"
        ) from exc
    is_elsewhere = name and name not in MAIN_NAMES
    home = Source(name, _file(sys.modules.get(name))) if is_elsewhere else None
    # A string in the arguments may look alike: then the script is loaded for nothing.
    main = main if b"_main__" in payload else None
    return Task(timeout_s, main, home, aborts, sys.argv), payload


def _innermost(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, MethodType):
        fn = fn.__func__
    return fn if hasattr(fn, "__qualname__") else type(fn)  # of an object with __call__


def _culprit(fn: Any, args: tuple[Any, ...]) -> str:
    for number, arg in enumerate(args):
        try:
            pickle.dumps(arg)
        except Exception:  # noqa: BLE001 - of its class
            return f"argument {number} of the function, a {type(arg).__qualname__},"
    return f"the function {getattr(fn, '__qualname__', fn)!s}"


def _file(module: ModuleType | None) -> str:
    path = getattr(module, "__file__", None)
    return os.path.abspath(path) if path else ""


def _main_source() -> Source | None:
    module = sys.modules.get("__main__")
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name not in MAIN_NAMES:
        return Source(spec.name, "")
    path = _file(module)
    return Source("", path) if os.path.exists(path) else None


def _results(crew: Crew, timeout_s: float | None) -> list[Any]:
    if crew.failures():
        raise _error(crew)
    late, said = crew.late(timeout_s)
    if late:
        raise CommTimeout(
            f"{said}; raise timeout_s, or see on standard error where the threads were",
            missing=dict.fromkeys(late, "still ran"),
        )
    values = []
    for rank in crew.ranks:
        report = rank.report or RankReport()
        try:
            values.append(unpickled(report.value))
        except Exception as exc:
            raise RankFailed(
                f"rank {rank.rank} of {len(crew.ranks)} returned what cannot be unpickled here: "
                f"{brief(exc)}; return types that this process can import, too",
                rank=rank.rank,
                exitcode=rank.exitcode,
            ) from exc
    return values


def _error(crew: Crew) -> RankFailed:
    rank, report = crew.failures()[0]
    fates = crew.fates(besides=rank)
    others = f"\n\nThe others:{fates}" if fates else ""
    place = f"rank {rank.rank} of {len(crew.ranks)}"
    who: dict[str, Any] = {"rank": rank.rank, "exitcode": rank.exitcode}
    if not report.failure:
        when = " after its function had returned" if rank.report else ""
        return RankDied(f"{place} {report.brief}{when}{others}", **who)
    text = f"{place} failed: {report.brief}\n\nThere:\n{report.failure.rstrip()}{others}"
    error = RankFailed(text, traceback=report.failure, **who)
    if report.raised:
        with contextlib.suppress(Exception):  # of a module that only the ranks have
            error.__cause__ = unpickled(report.raised)
    return error

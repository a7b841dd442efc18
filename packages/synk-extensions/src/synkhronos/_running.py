"""``python -m synkhronos._running script.py ...``: run a script with all ranks of a launcher.

Rank 0 runs the script; the others compute what it orders, and never read it. Without a launcher
this is what Python does itself. ``-m module ...`` runs a module.
"""

from __future__ import annotations

import os
import runpy
import sys
import tokenize
from types import ModuleType
from typing import Any, Callable, List

from synk_core import StartError, mpi


def _main() -> int:
    try:
        world = mpi.join()
    except StartError as error:
        sys.stderr.write(f"synkhronos: {error}\n")
        return 1
    if world is not None and world.rank:
        mpi.serve()
        return 0
    status = run_script(sys.argv[1], sys.argv[2:])
    if world is not None:
        world.status = status  # it ends after all that the script has left open
    return status


def run_script(path: str, arguments: List[str]) -> int:
    """Run a script, or after "-m" a module, as ``__main__``; return the status that Python would
    exit with.

    An exception is printed as Python prints it. The status of an interrupt is 130.
    """
    is_module = path == "-m"
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(path))
    if is_module:
        sys.argv = list(arguments)
        return _status_of(lambda: runpy.run_module(arguments[0], {}, "__main__", alter_sys=True))
    sys.argv = [path, *arguments]
    # As Python has them since 3.9: the script may change the folder.
    file_name = os.path.abspath(path)
    module = ModuleType("__main__")
    module.__dict__.update(__file__=file_name, __builtins__=__builtins__)
    sys.modules["__main__"] = module

    def run() -> None:
        with tokenize.open(path) as file:
            code = compile(file.read(), file_name, "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - the user's own script

    return _status_of(run)


def _status_of(run: Callable[[], Any]) -> int:
    """Run a program; return the status that Python would exit with."""
    try:
        run()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException as error:  # noqa: BLE001 - everything that Python itself would print
        _print_traceback(error)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _print_traceback(error: BaseException) -> None:
    """Print the traceback from the program's first line on, without what runs it."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.stdout.flush()
    # The hook may be Theano's or the script's own.
    sys.excepthook(type(error), error, error.__traceback__)


if __name__ == "__main__":
    sys.exit(_main())

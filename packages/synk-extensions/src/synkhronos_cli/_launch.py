"""Starting another Python in place of this one, or beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Mapping, NoReturn, Sequence

from ._terminal import fail


def script_path(name: str) -> str:
    """Return a script's path, or end with one line that says what is wrong with it."""
    path = Path(name)
    if path.is_dir():
        fail(f"{name} is a folder; expected a Python script")
    if not path.is_file():
        fail(f"no such script: {name}")
    if not os.access(path, os.R_OK):
        fail(f"{name} cannot be read")
    return name


def replace(arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Go on as a Python with these arguments: signals, streams and status are its own.

    Args:
        arguments: What follows ``python``.
        environment: Variables that it gets besides those of this process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, *arguments]
    os.execve(sys.executable, command, {**os.environ, **environment})  # noqa: S606 - no shell


def beside(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a Python with these arguments to its end; return its exit status as a shell tells it.

    Who ends this process ends that one: what SIGTERM and SIGHUP ask for is handed on.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    process = subprocess.Popen([sys.executable, *arguments], env={**os.environ, **environment})
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # not under nohup
            signal.signal(number, lambda number, _: process.send_signal(number))
    while True:
        try:
            status = process.wait()
        except KeyboardInterrupt:
            continue  # it got the same from the terminal, and ends by itself
        return 128 - status if status < 0 else status


def devices_for_fork(processes: int | None, devices: str | None) -> dict[str, str]:
    """Return the environment in which `fork()` without arguments takes these.

    Ends with one line if devices are named: there is no variable for a choice of GPUs.
    """
    environment = {}
    if processes is not None:
        environment["SYNKHRONOS_N_PARALLEL"] = str(processes)
    if devices == "cpu":
        environment["SYNKHRONOS_USE_GPU"] = "0"
    elif devices is not None:
        fail(f"--devices {devices}: this program takes all GPUs that there are, or 'cpu'")
    return environment

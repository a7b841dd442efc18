"""A warm process that programs are forked from, each as if it were started afresh."""

from __future__ import annotations

import array
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from . import _forked
from .program import LIMIT_S, Done, Program, Source, _closed, _is_readable, run

AT_IMPORT = ("PYTHON", "THEANO", "OMP_", "MKL_", "OPENBLAS", "BLIS_", "LD_", "MALLOC_", "CUDA")
"""Beginnings of the variables that programs read only when they begin or import."""

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Variables that keep the zygote at one thread: a fork copies no more."""


class Zygote:
    """A process that has imported what programs need; it runs `prepare`, code, once.

    What is forked from it leads a session, has its own standard streams, variables, folder,
    arguments, `__main__` and key of multiprocessing, every signal as at a start, and leaves the
    interpreter in the ordinary way. `prepare` must neither start a thread nor open what may not be
    shared; it can renew anything else in the programs by `os.register_at_fork`.
    """

    def __init__(self, prepare: str, options: Sequence[str] = ()) -> None:
        self._options = list(options)
        self._at_import = _at_import(os.environ)
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._line, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *options, _forked.__file__, str(theirs.fileno()), prepare],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                env={**os.environ, **ONE_THREAD},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def start(self, source: Source, *arguments: object, **how: Any) -> Program:
        """Start a program; arguments are as of `Program`."""
        return Program(source, *arguments, zygote=self, **how)

    def run(
        self, source: Source, *arguments: object, line: Optional[object] = None, **how: Any
    ) -> Done:
        """Run a program to its end; arguments are as of `Program`."""
        return run(source, *arguments, line=line, zygote=self, **how)

    def fits(self, source: Source, options: Sequence[str], env: Mapping[str, str]) -> bool:
        """Return whether a program can be forked that would be started with these."""
        is_code = isinstance(source, (str, Path))
        return is_code and list(options) == self._options and _at_import(env) == self._at_import

    def fork(
        self,
        source: Union[str, Path],
        arguments: List[str],
        env: Dict[str, str],
        folder: Any,
        streams: Sequence[int],
        stacks: bool,
    ) -> "Forked":
        """Fork a program; for `Program`."""
        status, theirs = os.pipe()
        is_file = isinstance(source, Path)
        order = {
            "code": Path(source).read_text() if is_file else str(source),
            "file": str(source) if is_file else None,
            "arguments": arguments,
            "env": env,
            "folder": str(folder or os.getcwd()),
            "stacks": stacks,
        }
        try:
            text = json.dumps(order).encode()
            fds = array.array("i", [*streams, theirs])
            kinds = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
            self._line.sendmsg([len(text).to_bytes(8, "little")], kinds)
            self._line.sendall(text)
        except OSError as error:
            os.close(status)
            self._printed.seek(0)
            text = self._printed.read()
            raise AssertionError(f"the zygote has ended:\n{text.decode()}") from error
        finally:
            os.close(theirs)
        return Forked(status, self._printed)

    def close(self) -> None:
        """End it, and kill the programs that it has forked and that still run."""
        self._line.close()
        self._process.wait(LIMIT_S)
        self._printed.close()

    def __enter__(self) -> "Zygote":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Forked:
    """A process that a zygote has forked, with the methods of `subprocess.Popen`."""

    def __init__(self, line: int, printed: Any) -> None:
        self._line = line
        self.pid = 0
        self.returncode: Optional[int] = None
        word = self._word(LIMIT_S)
        if word is None:
            self._line = _closed(line)
            printed.seek(0)
            raise AssertionError(f"the zygote forks nothing:\n{printed.read().decode()}")
        self.pid = word

    def poll(self) -> Optional[int]:
        """Return its exit status; None while it runs."""
        return self._look(0.0)

    def wait(self, seconds: float) -> int:
        """Wait until it ends; return its exit status."""
        status = self._look(seconds)
        if status is None:
            raise subprocess.TimeoutExpired("a forked program", seconds)
        return status

    def _look(self, seconds: float) -> Optional[int]:
        if self.returncode is None:
            self.returncode = self._word(seconds)
            if self.returncode is not None:
                self._line = _closed(self._line)
        return self.returncode

    def _word(self, seconds: float) -> Optional[int]:
        if not _is_readable(self._line, seconds):
            return None
        text = os.read(self._line, 8)  # written at one stroke
        assert text or not self.pid, "the zygote has ended"
        return int.from_bytes(text, "little", signed=True) if text else None

    def __del__(self) -> None:
        _closed(self._line)


def _at_import(env: Mapping[str, str]) -> Dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(AT_IMPORT)}

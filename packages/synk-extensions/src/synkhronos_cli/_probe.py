"""Run code in a Python of its own, which may hang, crash or raise, and read its answer."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional

# The answer is the last line that begins with this: imported modules may print anything.
_MARK = "synkhronos-doctor:"
_ANSWER = f"""
import json, sys
def answer(**values):
    sys.stdout.write("\\n{_MARK}" + json.dumps(values) + "\\n")
    sys.stdout.flush()
"""
_LONGEST_ERROR = 400  # characters
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Answer:
    """The answer of a probe: its values, or in ``problem`` what went wrong instead."""

    values: dict[str, Any] = field(default_factory=dict)
    problem: str = ""

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value; the default if the answer has none of this name."""
        return self.values.get(name, default)


def ask(code: str, timeout_s: float, environment: Optional[Mapping[str, str]] = None) -> Answer:
    """Run Python code that calls ``answer(name=value, ...)`` once; return the answer.

    Args:
        code: Source, in which ``answer`` is defined and takes values of JSON's types.
        timeout_s: Seconds until it is killed, with all that it has started.
        environment: Variables to add to those of this process.
    """
    return _run(["-c", _ANSWER + code], timeout_s, _after_mark, environment)


def ask_module(arguments: list[str], timeout_s: float) -> Answer:
    """Run ``python -m ...``, which prints a JSON object; return it."""
    return _run(["-m", *arguments], timeout_s, lambda output: output[output.find("{") :])


def _after_mark(output: str) -> str:
    lines = (line for line in reversed(output.splitlines()) if line.startswith(_MARK))
    return next(lines, _MARK)[len(_MARK) :]


def output_of(command: list[str], timeout_s: float) -> tuple[str, str]:
    """Run another program; return what it prints, and "" or what went wrong."""
    try:
        status, output, errors = _ended(command, timeout_s)
    except subprocess.TimeoutExpired:
        return "", f"no answer in {timeout_s:g} s"
    except OSError as error:
        return "", f"could not be started: {error}"
    return output + errors, _ending(status, errors or output) if status else ""


def _run(
    arguments: list[str],
    timeout_s: float,
    find: Callable[[str], str],
    environment: Optional[Mapping[str, str]] = None,
) -> Answer:
    """Run Python; return the JSON object that `find` cuts out of its output."""
    try:
        status, output, errors = _ended([sys.executable, *arguments], timeout_s, environment)
    except subprocess.TimeoutExpired:
        return Answer(problem=f"no answer in {timeout_s:g} s")
    except OSError as error:
        return Answer(problem=f"could not be started: {error}")
    values = _object(find(output))
    return Answer(problem=_ending(status, errors)) if values is None else Answer(values)


def _ended(
    command: list[str], timeout_s: float, environment: Optional[Mapping[str, str]] = None
) -> tuple[int, str, str]:
    """Run a program to its end; return its status and what it has printed.

    Raises:
        subprocess.TimeoutExpired: it was killed, with all that it has started.
        OSError: it could not be started.
    """
    # Files, not pipes: a process that a killed probe has started could keep a pipe open.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        env = {**os.environ, **(environment or {}), "PYTHONIOENCODING": "utf-8"}
        # What a launcher has given to this process shows a probe that there is one.
        how = {"env": env, "stdout": output, "stderr": errors, "close_fds": False}
        status = run_to_end(command, timeout_s, **how)
        return status, _text(output), _text(errors)


def run_to_end(command: list[str], timeout_s: Optional[float] = None, **how: Any) -> int:
    """Run a program, with arguments of `Popen`; return its status. If this process is interrupted
    or ended by a signal, the program is killed with all that it has started.

    Raises:
        subprocess.TimeoutExpired, OSError: As `_ended`.
    """
    process = started(command, stdin=subprocess.DEVNULL, start_new_session=True, **how)
    try:
        return process.wait(timeout_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def started(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
    """Start a program that the kernel kills when this process is killed."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: None

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return subprocess.Popen(command, preexec_fn=prepare, **how)  # noqa: PLW1509 - no threads wait


def _object(text: str) -> Optional[dict[str, Any]]:
    try:
        values = json.loads(text)
    except ValueError:
        return None
    return values if isinstance(values, dict) else None


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))


def _ending(status: int, errors: str) -> str:
    """Return how a probe without an answer ended: its signal, last line or exit status."""
    if status < 0:
        try:
            return f"died of {signal.Signals(-status).name}"
        except ValueError:
            return f"died of signal {-status}"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return lines[-1][:_LONGEST_ERROR] if lines else f"ended with status {status} and no message"

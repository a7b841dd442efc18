"""Run code in a Python of its own, which may hang, crash or raise, and read its answer."""

from __future__ import annotations

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


def _run(
    arguments: list[str],
    timeout_s: float,
    find: Callable[[str], str],
    environment: Optional[Mapping[str, str]] = None,
) -> Answer:
    """Run Python; return the JSON object that `find` cuts out of its output."""
    # Files, not pipes: a process that a killed probe has started could keep a pipe open.
    try:
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env={**os.environ, **(environment or {}), "PYTHONIOENCODING": "utf-8"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
            try:
                status = process.wait(timeout_s)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            values = _object(find(_text(output)))
            return (
                Answer(problem=_ending(status, _text(errors))) if values is None else Answer(values)
            )
    except subprocess.TimeoutExpired:
        return Answer(problem=f"no answer in {timeout_s:g} s")
    except OSError as error:
        return Answer(problem=f"could not be started: {error}")


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

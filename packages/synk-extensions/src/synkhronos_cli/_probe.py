"""Run code in a Python of its own, which may hang, crash or raise, and read its answer."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Optional, Tuple

Answer = Dict[str, Any]
"""The values that a probe returned, or ``problem``: why there are none."""

# Imported modules may print anything: the last line that begins with "{" begins the answer.
_ANSWER = """
import json
def answer(**values):
    print("\\n" + json.dumps(values), flush=True)
"""
TIMEOUT_S = 60.0
"""Until a program is killed, with all that it has started."""

_LONGEST_ERROR = 400  # characters
_PR_SET_PDEATHSIG = 1
_SIGNALS = {one.value: one.name for one in signal.Signals}


def ask(code: str, timeout_s: float = TIMEOUT_S) -> Answer:
    """Run Python code that calls ``answer(name=value, ...)`` once; return the values."""
    return ask_python(["-c", _ANSWER + code], timeout_s)


def ask_python(arguments: List[str], timeout_s: float = TIMEOUT_S) -> Answer:
    """Run ``python`` with these arguments, which prints a JSON object; return it."""
    output, errors, problem = output_of([sys.executable, *arguments], timeout_s)
    text = f"\n{output}"
    try:
        return dict(json.JSONDecoder().raw_decode(text, text.rindex("\n{") + 1)[0])
    except ValueError:
        return {"problem": problem or _how_it_ended(0, errors)}


def output_of(command: List[str], timeout_s: float) -> Tuple[str, str, str]:
    """Run a program to its end; return its output, its errors, and "" or what went wrong."""
    # Files, not pipes: a process that a killed probe has started could keep a pipe open.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        env = {**os.environ, "PYTHONIOENCODING": "utf-8"}
        try:
            # The descriptors that a launcher gave to this process show a probe that there is one.
            status = run_to_end(
                command, timeout_s, env=env, stdout=output, stderr=errors, close_fds=False
            )
        except subprocess.TimeoutExpired:
            return "", "", f"no answer in {timeout_s:g} s"
        except OSError as error:
            return "", "", f"could not be started: {error}"
        for file in (output, errors):
            file.seek(0)
        printed, complaint = (file.read().decode(errors="replace") for file in (output, errors))
    return printed, complaint, _how_it_ended(status, complaint or printed) if status else ""


def run_to_end(command: List[str], timeout_s: Optional[float] = None, **how: Any) -> int:
    """Run a program, with arguments of `Popen`; return its status.

    After the timeout, or if this process is interrupted or ended by a signal, the program is killed
    with all that it has started. The kernel kills the program itself if this process is killed.
    """
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    how.update(stdin=subprocess.DEVNULL, start_new_session=True)
    process = subprocess.Popen(command, preexec_fn=prepare, **how)  # noqa: PLW1509 - no threads
    try:
        return process.wait(timeout_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _how_it_ended(status: int, printed: str) -> str:
    """Return the signal, the last line or the exit status with which a program ended."""
    if status < 0:
        return f"died of {_SIGNALS.get(-status, f'signal {-status}')}"
    last = printed.strip().rpartition("\n")[2].strip()
    return last[:_LONGEST_ERROR] or f"ended with status {status} and no message"

"""Progress of long work: bars with description, steps, and estimated time; or a line of text.

rich draws bars on standard error, and only on terminals, for work that takes more than a moment.
Notebooks need `ipywidgets` for that. Where there are no bars, compilation and distribution that
take some seconds are told of in one line, so that the program does not pass for dead.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, Optional

from synk_core import InputTypeError, InputValueError

DELAY_S = 0.7
"""Seconds until work is shown; shorter work is not."""

LINE_S = 5.0
"""Seconds until a line says that work is under way, where no bar is drawn."""

USE_PROGRESS = "SYNKHRONOS_PROGRESS"
"""Environment variable with 0 or 1, for programs that leave it to the default."""

_logger = logging.getLogger("synkhronos")


def progress(on: Optional[bool] = None) -> None:
    """Switch progress bars on or off for this process.

    Args:
        on: True shows them on any output, False never. None, the default, shows them on terminals
            and in notebooks, and elsewhere a line of text for what takes more than five seconds;
            unless the level of the logger ``"synkhronos"`` is above ``logging.INFO``.
            SYNKHRONOS_PROGRESS, 0 or 1 in the environment, is another default.

    Raises:
        InputTypeError: `on` has another value.
    """
    if on not in (True, False, None):
        raise InputTypeError(f"progress(): got {on!r}, expected True, False or None")
    _display.setting = on


@contextlib.contextmanager
def track(description: str, total: Optional[float] = None) -> Iterator[Bar]:
    """Show a progress bar as long as the block lasts.

    Args:
        description: a few words.
        total: number of steps; None shows only the elapsed time, or a line where there are no bars.

    Raises:
        InputValueError: the environment has another value than 0 and 1.
    """
    bar = Bar(_display, description, total)
    if _display.wanted():
        timer = threading.Timer(DELAY_S, bar.show)
    elif total is None and _display.tells():
        timer = threading.Timer(LINE_S, bar.tell)
    else:
        yield bar
        return
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # no more threads: nothing is shown
        timer.start()
    try:
        yield bar
    finally:
        timer.cancel()
        bar.hide()


class Bar:
    """One piece of work on the display, created by `track`."""

    def __init__(self, display: ProgressDisplay, description: str, total: Optional[float]) -> None:
        self._display = display
        self._description = description
        self._total = total
        self._done = 0.0
        self._text = ""
        self._task: Any = None
        self._over = False

    def advance(self, steps: float = 1, text: str = "") -> None:
        """Count finished steps, and set the text beside the bar."""
        self._done += steps
        self._text = text
        if self._task is not None:
            self._display.update(self._task, completed=self._done, text=text)

    def show(self) -> None:
        """Draw the bar, unless the work is over."""
        with self._display.lock:
            if not self._over:
                self._task = self._display.add(
                    self._description, self._total, self._done, self._text
                )
                # Do not lose updates that came while the display was created.
                self._display.update(self._task, completed=self._done, text=self._text)

    def tell(self) -> None:
        """Write a line, unless the work is over."""
        with self._display.lock:
            if not self._over:
                self._display.tell(f"Synkhronos: {self._description}, for {LINE_S:.0f} s so far")

    def hide(self) -> None:
        """Remove the bar from the display."""
        with self._display.lock:
            self._over = True
            if self._task is not None:
                self._display.remove(self._task)
                self._task = None


class ProgressDisplay:
    """The drawn lines, one for each piece of work under way.

    If the terminal disappears, drawing stops and the program continues.

    Attributes:
        setting: the user's choice; see `progress`.
        lock: held while lines are added and removed, since several threads may work.
    """

    def __init__(self) -> None:
        self.setting: Optional[bool] = None
        self.lock = threading.RLock()
        self._progress: Any = None
        self._streams: Any = None

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        try:
            yield
        except Exception:  # noqa: BLE001 - broken, closed, or a program's own stream
            self.setting = False
            self._forget()

    def leave(self) -> None:
        """Restore the cursor when the program ends, even if a thread still has a line."""
        with self._drawing():
            if self._progress is not None:
                self._progress.stop()
                self._progress = None

    def after_fork(self) -> None:
        """Reset in a child process: the lines, and threads that hold locks, are the parent's."""
        self.lock = threading.RLock()
        self._forget()

    def _forget(self) -> None:
        """Drop the lines without writing to the terminal."""
        if self._progress is not None:
            sys.stdout, sys.stderr = self._streams
            self._progress = None

    def _chosen(self) -> Optional[bool]:
        """Return what the program, or else the environment, says."""
        given = os.environ.get(USE_PROGRESS, "").strip()
        if self.setting is not None or not given:
            return self.setting
        if given not in ("0", "1"):
            raise InputValueError(f"{USE_PROGRESS}: got {given!r}, expected 0 or 1")
        return given == "1"

    def wanted(self) -> bool:
        """Return whether to draw anything."""
        chosen = self._chosen()
        if chosen is not None:
            return chosen
        if _logger.level > logging.INFO:
            return False
        if _in_notebook():
            return importlib.util.find_spec("ipywidgets") is not None
        return _is_terminal(sys.stderr)

    def tells(self) -> bool:
        """Return whether to write lines where nothing is drawn."""
        return self._chosen() is None and _logger.level <= logging.INFO

    def tell(self, line: str) -> None:
        """Write a line."""
        with self._drawing():
            if sys.stderr:
                sys.stderr.write(line + "\n")
                sys.stderr.flush()

    def add(self, description: str, total: Optional[float], done: float, text: str) -> Any:
        """Draw one more line; return its handle."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        if self._progress is None:
            self._streams = sys.stdout, sys.stderr
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[text]}", markup=False),
                console=Console(stderr=True),
                transient=True,
                # Terminals only: drawn above the lines. A file gets its output unchanged.
                redirect_stdout=_is_terminal(sys.stdout),
            )
            with self._drawing():
                self._progress.start()
        with self._drawing():
            if self._progress is not None:
                return self._progress.add_task(description, total=total, completed=done, text=text)
        return None

    def update(self, task: Any, **fields: Any) -> None:
        """Update a line."""
        with self.lock, self._drawing():
            if self._progress is not None:
                self._progress.update(task, **fields)

    def remove(self, task: Any) -> None:
        """Remove a line, and with the last one the display."""
        with self._drawing():
            if self._progress is not None:
                self._progress.remove_task(task)
                if not self._progress.tasks:
                    self._progress.stop()
                    self._progress = None


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except Exception:  # noqa: BLE001 - none, closed, or a program's own stream
        return False


def _in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return type(running).__name__ == "ZMQInteractiveShell"


_display = ProgressDisplay()
atexit.register(_display.leave)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_display.after_fork)

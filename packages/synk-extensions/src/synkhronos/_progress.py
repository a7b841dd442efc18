"""Progress of long work: what is being done, how far it is, how long it may still take.

Drawn by rich on standard error, and only for a person who looks: nothing is shown where standard
error is no terminal, or for work that is over before anybody wonders. In notebooks it takes
`ipywidgets`; without that package they stay quiet.
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

from synk_theano import InputTypeError

DELAY_S = 0.7
"""Work that takes less than this is not shown."""

_logger = logging.getLogger("synkhronos")


def progress(on: Optional[bool] = None) -> None:
    """Switch the display of progress for this process.

    Args:
        on: True shows it wherever output can be drawn, False never. None, as it is from the start:
            on terminals and in notebooks, unless the level of the logger ``"synkhronos"`` is set
            above ``logging.INFO``.

    Raises:
        InputTypeError: `on` is something else.
    """
    if on not in (True, False, None):
        raise InputTypeError(f"progress(): got {on!r}, expected True, False or None")
    _display.setting = on


@contextlib.contextmanager
def track(description: str, total: Optional[float] = None) -> Iterator[Bar]:
    """Show that something is going on, as long as the block lasts.

    Args:
        description: what, in a few words.
        total: of how many steps; None shows only the time that has passed.
    """
    bar = Bar(_display, description, total)
    if not _display.wanted():
        yield bar
        return
    timer = threading.Timer(DELAY_S, bar.show)
    timer.daemon = True
    timer.start()
    try:
        yield bar
    finally:
        timer.cancel()
        bar.hide()


class Bar:
    """One piece of work on the display; made by `track`."""

    def __init__(self, display: ProgressDisplay, description: str, total: Optional[float]) -> None:
        self._display = display
        self._description = description
        self._total = total
        self._done = 0.0
        self._text = ""
        self._task: Any = None
        self._over = False

    def advance(self, steps: float = 1, text: str = "") -> None:
        """Say that so many more steps are done, and what else is worth a look."""
        self._done += steps
        self._text = text
        if self._task is not None:
            self._display.update(self._task, completed=self._done, text=text)

    def show(self) -> None:
        """Draw it, if it is not over."""
        with self._display.lock:
            if not self._over:
                self._task = self._display.add(
                    self._description, self._total, self._done, self._text
                )
                # What was said while the display was made is not to be lost.
                self._display.update(self._task, completed=self._done, text=self._text)

    def hide(self) -> None:
        """Take it off the display."""
        with self._display.lock:
            self._over = True
            if self._task is not None:
                self._display.remove(self._task)
                self._task = None


class ProgressDisplay:
    """What is drawn: one line for each piece of work that is under way.

    A terminal that is gone takes no program with it: then nothing is drawn any more.

    Attributes:
        setting: what the user wants; see `progress`.
        lock: held while lines come and go: pieces of work may be of several threads.
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
        except (OSError, ValueError):  # a stream that is broken, or closed
            self.setting = False
            self._forget()

    def leave(self) -> None:
        """The program ends, and perhaps with a line of some thread: the cursor is to come back."""
        with self._drawing():
            if self._progress is not None:
                self._progress.stop()
                self._progress = None

    def after_fork(self) -> None:
        """In a child process: the lines are its parent's, and so are threads that hold locks."""
        self.lock = threading.RLock()
        self._forget()

    def _forget(self) -> None:
        """Without a word to the terminal."""
        if self._progress is not None:
            sys.stdout, sys.stderr = self._streams
            self._progress = None

    def wanted(self) -> bool:
        """Whether anything is to be drawn."""
        if self.setting is not None:
            return self.setting
        if _logger.level > logging.INFO:
            return False
        if _in_notebook():
            return importlib.util.find_spec("ipywidgets") is not None
        return bool(sys.stderr and sys.stderr.isatty())

    def add(self, description: str, total: Optional[float], done: float, text: str) -> Any:
        """Draw one more line; return what stands for it."""
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
                # Where it is drawn above the lines; a file must get what was printed to it.
                redirect_stdout=bool(sys.stdout and sys.stdout.isatty()),
            )
            with self._drawing():
                self._progress.start()
        with self._drawing():
            if self._progress is not None:
                return self._progress.add_task(description, total=total, completed=done, text=text)
        return None

    def update(self, task: Any, **fields: Any) -> None:
        """Change a line."""
        with self.lock, self._drawing():
            if self._progress is not None:
                self._progress.update(task, **fields)

    def remove(self, task: Any) -> None:
        """Take a line away, and with the last one the display."""
        with self._drawing():
            if self._progress is not None:
                self._progress.remove_task(task)
                if not self._progress.tasks:
                    self._progress.stop()
                    self._progress = None


def _in_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return type(running).__name__ == "ZMQInteractiveShell"


_display = ProgressDisplay()
atexit.register(_display.leave)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_display.after_fork)

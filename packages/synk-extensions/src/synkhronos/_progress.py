"""Progress of long work: rich's bars on terminals, elsewhere a line for what takes seconds."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, Optional

from synk_core import InputTypeError, InputValueError

DELAY_S = 0.7
"""Seconds until a bar is drawn; shorter work has none."""

LINE_S = 5.0
"""Seconds until a line says that work is under way, where no bar is drawn."""


def progress(on: Optional[bool] = None) -> None:
    """Switch progress bars on or off for this process.

    Args:
        on: True shows them on any output, False never. None, the default, shows them on terminals,
            and elsewhere a line of text for what takes more than five seconds; unless the level of
            the logger ``"synkhronos"`` is above ``logging.INFO``. SYNKHRONOS_PROGRESS, 0 or 1 in
            the environment, is another default.

    Raises:
        InputTypeError: `on` has another value.
    """
    if on not in (True, False, None):
        raise InputTypeError(f"progress(): got {on!r}, expected True, False or None")
    _display.setting = on


@contextlib.contextmanager
def track(description: str, total: Optional[float] = None) -> Iterator[Bar]:
    """Show the progress of the block.

    Args:
        description: a few words.
        total: number of steps; None shows only the elapsed time, or a line where there are no bars.

    Raises:
        InputValueError: the environment has another value than 0 and 1.
    """
    bar = Bar(description, total)
    style = _display.style()
    if style is None or (style == "line" and total is not None):
        yield bar
        return
    timer = threading.Timer(*((DELAY_S, bar.show) if style == "bar" else (LINE_S, bar.tell)))
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # no more threads: nothing is shown
        timer.start()
    try:
        yield bar
    finally:
        timer.cancel()
        if timer.is_alive():
            timer.join()  # it may be about to draw
        _display.draw("remove_task", bar.task)


class Bar:
    """One piece of work, created by `track`."""

    def __init__(self, description: str, total: Optional[float]) -> None:
        self._description = description
        self._fields: dict[str, Any] = {"total": total, "completed": 0.0, "text": ""}
        self.task: Any = None

    def advance(self, steps: float = 1, text: str = "") -> None:
        """Count finished steps, and set the text beside the bar."""
        self._fields.update(completed=self._fields["completed"] + steps, text=text)
        _display.draw("update", self.task, **self._fields)

    def show(self) -> None:
        """Draw the bar."""
        self.task = _display.draw("add_task", self._description, **self._fields)
        self.advance(0, self._fields["text"])  # what changed while the display started

    def tell(self) -> None:
        """Write a line."""
        with contextlib.suppress(Exception):  # no stream, closed, or a program's own
            sys.stderr.write(f"Synkhronos: {self._description}, for {LINE_S:.0f} s so far\n")
            sys.stderr.flush()


class _Display:
    """The bars under way. Nothing that goes wrong with them reaches the program."""

    def __init__(self) -> None:
        self.setting: Optional[bool] = None
        self.forget()

    def forget(self) -> None:
        """Drop the bars: in a forked child they, and threads that hold locks, are the parent's."""
        self._lock = threading.RLock()
        self._bars: Any = None
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            setattr(sys, name, getattr(stream, "rich_proxied_file", stream))

    def style(self) -> Optional[str]:
        """Return "bar", "line" or None: what to show for long work."""
        setting, given = self.setting, os.environ.get("SYNKHRONOS_PROGRESS", "").strip()
        if setting is None and given:
            if given not in ("0", "1"):
                raise InputValueError(f"SYNKHRONOS_PROGRESS: got {given!r}, expected 0 or 1")
            setting = given == "1"
        if setting is not None:
            return "bar" if setting else None
        if logging.getLogger("synkhronos").level > logging.INFO:
            return None
        return "bar" if _is_terminal(sys.stderr) else "line"

    def draw(self, act: str, *arguments: Any, **fields: Any) -> Any:
        """Call a method of rich's bars; they start with the first bar, and end with the last."""
        with self._lock, contextlib.suppress(Exception):  # no terminal any more, or a stand-in
            if self._bars is None and act == "add_task":
                self._bars = _started()
            task = getattr(self._bars, act)(*arguments, **fields)
            if not self._bars.tasks:
                self.stop()
            return task

    def stop(self) -> None:
        """Restore the cursor and the streams, also when a program ends while a thread draws."""
        bars, self._bars = self._bars, None
        with contextlib.suppress(Exception):
            bars.stop()


def _started() -> Any:
    from rich import progress as of_rich
    from rich.console import Console

    bars = of_rich.Progress(
        of_rich.TextColumn("{task.description}", markup=False),
        of_rich.BarColumn(bar_width=24),
        of_rich.MofNCompleteColumn(),
        of_rich.TimeElapsedColumn(),
        of_rich.TextColumn("{task.fields[text]}", markup=False),
        console=Console(stderr=True),
        transient=True,
        # Terminals only: drawn above the bars. A file gets its output unchanged.
        redirect_stdout=_is_terminal(sys.stdout),
    )
    bars.start()
    return bars


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except Exception:  # noqa: BLE001 - none, closed, or a program's own stream
        return False


_display = _Display()
atexit.register(_display.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_display.forget)

"""Progress of long work: rich's bars on terminals, elsewhere a line for what takes seconds."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, Callable, Optional

from synk_core import InputTypeError, InputValueError

DELAY_S, LINE_S = 0.7, 5.0
"""Seconds until a bar is drawn, and until a line is written; shorter work has none."""


class _Display:
    """Of this process: what `progress` has set, and rich's bars of the work that is under way."""

    setting: Optional[bool] = None
    bars: Any = None


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
    _Display.setting = on


@contextlib.contextmanager
def track(description: str, total: Optional[float] = None) -> Iterator[Callable[..., None]]:
    """Show the progress of the block: a bar, or a line if there are no bars and no `total`.

    Yields a function that counts finished steps, and sets the text beside the bar.
    """
    drawn, task = _are_drawn(), None
    fields: dict[str, Any] = {"total": total, "completed": 0.0, "text": ""}

    def show() -> None:
        nonlocal task
        with contextlib.suppress(Exception):  # no stream, or one that can do little
            if drawn:
                _Display.bars = _Display.bars or _started_bars()
                task = _Display.bars.add_task(description, **fields)
                _Display.bars.update(task, **fields)  # they may have changed meanwhile
            else:
                sys.stderr.write(f"Synkhronos: {description}, for {LINE_S:.0f} s so far\n")

    def advance(steps: float = 1, text: Any = "") -> None:
        fields.update(completed=fields["completed"] + steps, text=text)
        if task is not None:
            with contextlib.suppress(Exception):
                _Display.bars.update(task, **fields)

    timer = threading.Timer(DELAY_S if drawn else LINE_S, show)
    timer.daemon = True
    if drawn or (drawn is None and total is None):
        with contextlib.suppress(RuntimeError):  # no more threads: nothing is shown
            timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        if timer.is_alive():
            timer.join()  # it may be about to draw
        if task is not None:
            _end(task)


def _are_drawn() -> Optional[bool]:
    """Return whether there are bars; None for lines in their place."""
    if _Display.setting is not None:
        return _Display.setting
    given = os.environ.get("SYNKHRONOS_PROGRESS", "").strip()
    if given not in ("", "0", "1"):
        raise InputValueError(f"SYNKHRONOS_PROGRESS: got {given!r}, expected 0 or 1")
    if given or logging.getLogger("synkhronos").level > logging.INFO:
        return given == "1"
    with contextlib.suppress(Exception):  # no stream, closed, or a program's own
        return sys.stderr.isatty() or None
    return None


def _started_bars() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    bars = Progress(
        *("{task.description}", BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn()),
        "{task.fields[text]}",
        console=Console(stderr=True, markup=False, emoji=False, highlight=False),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # a file gets its output unchanged
    )
    bars.start()
    return bars


def _end(task: Any = None) -> None:
    """Remove a bar, at the program's end all; the display stops with the last one."""
    with contextlib.suppress(Exception):
        if task is not None:
            _Display.bars.remove_task(task)
        if task is None or not _Display.bars.tasks:
            _Display.bars.stop()
            _Display.bars = None


def _forget() -> None:
    """In a forked child, drop bars and streams: threads of the parent may hold their locks."""
    _Display.bars = None
    sys.stdout = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    sys.stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)


atexit.register(_end)
os.register_at_fork(after_in_child=_forget)

"""Run a benchmark from the command line: options, progress, and what is done with a result."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Callable

from .results import NOT_FINISHED, Result, Row, load, merged
from .rounds import OutOfTimeError
from .tables import Page


class Progress:
    """One line on stderr that replaces itself on a terminal, and is left out elsewhere.

    It is also where the run notices that it is to end: an exception that a signal handler
    raises may be lost, if it comes while Python runs a finalizer.
    """

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self.ended_by = 0

    def end_on(self, number: int) -> None:
        """Have this signal raise KeyboardInterrupt, now and at the next line."""
        signal.signal(number, self._end)

    def _end(self, number: int, _frame: Any) -> None:
        self.ended_by = number
        raise KeyboardInterrupt

    def __call__(self, text: str) -> None:
        """Show this in place of what was there."""
        if self.ended_by:
            raise KeyboardInterrupt
        self._replace(text[:100])

    def line(self, text: str) -> None:
        """Show a line that stays."""
        self._replace("")
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def _replace(self, text: str) -> None:
        if self._shown:
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()


def parser(doc: str, only: Iterable[str], quick: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have.

    Args:
        doc: of the program.
        only: what ``--only`` takes.
        quick: what ``--quick`` does.
    """
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(only)
    shown = ", ".join(repr(name) if " " in name else name for name in names)

    def known(name: str) -> str:
        if name not in names:
            raise argparse.ArgumentTypeError(f"there is no {name}; it takes {shown}")
        return name

    add = made.add_argument
    add("--quick", action="store_true", help=quick)
    add("--only", nargs="+", metavar="NAME", type=known, default=[], help=shown)
    add("--json", type=Path, metavar="FILE", help="write all samples")
    add("--markdown", type=Path, metavar="FILE", help="write a page")
    add("--read", type=Path, metavar="FILE", help="show what --json wrote, measuring nothing")
    return made


def run(
    options: argparse.Namespace,
    measure: Callable[[Progress], Result],
    page: Callable[[Result], Page],
    draw: Callable[[Result, Path], None] | None = None,
    order: Callable[[Row], Any] | None = None,
) -> int:
    """Measure (or read a file), show and write what was asked for; return the exit status.

    Args:
        options: of `parser`, and ``--plot`` and ``--update`` where `draw` and `order` are given.
        measure: makes a result. What it raises as ValueError is told without a traceback.
        page: shows it.
        draw: writes a picture of it.
        order: sorts the rows of several runs.
    """
    progress = Progress()
    progress.end_on(signal.SIGTERM)
    try:
        update = options.update if order else None
        old = load(update) if update and update.exists() else None
        result = load(options.read) if options.read else measure(progress)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        progress.line("interrupted; nothing was written")
        return 128 + (progress.ended_by or signal.SIGINT)
    complete = result.runs[-1].complete
    if order and update:
        result = merged(old, result, order) if old else result
        result.save(update)
    if options.json:
        result.save(options.json)
    picture = options.plot if draw else None
    if draw and picture:
        try:
            draw(result, picture)
        except ImportError:
            progress.line("no plot: pip install matplotlib")
        except ValueError as error:
            progress.line(f"no plot: {error}")
    shown = page(result)
    if options.markdown:
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        link = picture and os.path.relpath(picture, options.markdown.parent)
        options.markdown.write_text(shown.markdown(link), encoding="utf-8")
    sys.stdout.write(shown.plain())
    return 0 if complete else 1


def measure_parts(
    parts: Mapping[str, Callable[[], list[Row]]],
    left_out: dict[str, str],
    progress: Progress,
    limit_s: int = 0,
) -> list[Row]:
    """Measure one part after the other; one that hangs or breaks is left out, and says why."""
    rows: list[Row] = []
    for name, measure in parts.items():
        begin = time.monotonic()
        try:
            with _time_limit(limit_s):
                rows += measure()
        except Exception as error:  # noqa: BLE001 - one part that breaks must not end the run
            left_out[f"{NOT_FINISHED}{name}"] = why = f"{type(error).__name__}: {error}"
            progress.line(f"{name}: not measured: {why}")
        else:
            progress.line(f"{name}: {time.monotonic() - begin:.1f} s")
    return rows


@contextlib.contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """End the block with `OutOfTimeError` if it takes longer, whatever it waits for; 0: never."""

    def ring(_number: int, _frame: Any) -> None:
        raise OutOfTimeError(f"not done after {seconds} s")

    if not seconds:
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)

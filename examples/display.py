"""Progress bars and the table of results; plain lines when the output is no terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


class Result(NamedTuple):
    model: str
    accuracy: float  # on the validation rows
    serial_speed: float  # examples per second, plain Theano in one process
    parallel_speed: float  # examples per second, all processes
    difference: float  # largest, over all parameters, after the first epoch


class Epoch:
    """What the training loop reports to: rows done, loss, seconds spent in steps."""

    def __init__(self, bar: Progress, task: Any) -> None:
        self._bar, self._task = bar, task
        self._rows, self._sum_of_losses, self._seconds = 0, 0.0, 0.0

    def advance(self, rows: int, loss: float, seconds: float) -> None:
        """Count a step over ``rows`` examples that took ``seconds``."""
        self._rows += rows
        self._sum_of_losses += loss * rows
        self._seconds += seconds
        self._bar.update(self._task, advance=rows, loss=self.loss, speed=self.speed)

    @property
    def loss(self) -> float:
        """The mean loss over all examples so far."""
        return self._sum_of_losses / self._rows

    @property
    def speed(self) -> float:
        """Examples per second so far."""
        return self._rows / self._seconds


class Display:
    """Where the program speaks."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)

    def say(self, line: str) -> None:
        """Print a line."""
        self._console.print(line, soft_wrap=True)

    @contextmanager
    def epoch(self, label: str, rows: int) -> Iterator[Epoch]:
        """Show the progress of one epoch over ``rows`` examples."""
        live = self._console.is_terminal
        bar = Progress(
            TextColumn("  {task.description}"),
            BarColumn(bar_width=24),
            TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:6.0f} examples/s"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not live,
        )
        with bar:
            epoch = Epoch(bar, bar.add_task(label, total=rows, loss=float("nan"), speed=0.0))
            yield epoch
        if not live:
            self.say(f"  {label}: loss {epoch.loss:.4f}, {epoch.speed:.0f} examples/s")

    def table(self, results: list[Result], processes: int) -> None:
        """Print the results, a line per model."""
        table = Table(box=box.SIMPLE_HEAD)
        for title in (
            "model",
            "accuracy",
            "examples/s\nplain Theano",
            f"examples/s\n{processes} process{'es' if processes > 1 else ''}",
            "speed-up",
            "largest\ndifference",
        ):
            table.add_column(title, justify="left" if title == "model" else "right")
        for result in results:
            table.add_row(
                result.model,
                f"{result.accuracy:.1%}",
                f"{result.serial_speed:.0f}",
                f"{result.parallel_speed:.0f}",
                f"{result.parallel_speed / result.serial_speed:.2f} x",
                f"{result.difference:.1e}",
            )
        self._console.print(table)

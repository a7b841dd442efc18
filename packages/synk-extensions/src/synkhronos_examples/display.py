"""Progress bars and the table of results; plain lines if the output is not a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from synkhronos.engine import TITLE


class Result(NamedTuple):
    model: str
    accuracy: float  # on the validation rows
    plain_speeds: dict[str, float]  # examples per second, of a plain function by number of threads
    parallel_speed: float  # examples per second, all processes
    difference: float  # largest, over all parameters, after the first epoch

    @property
    def speed_up(self) -> float:
        """Relative to a plain function with its fastest number of threads."""
        return self.parallel_speed / max(self.plain_speeds.values())


class Training:
    """Collect rows, loss and seconds of each step from a training loop."""

    def __init__(self, label: str, epochs: int, bar: Progress, say: Callable[[str], None]) -> None:
        self._label, self._epochs, self._bar, self._say = label, epochs, bar, say
        self._epoch, self._rows, self._sum_of_losses = 1, 0, 0.0
        self._speeds: list[float] = []
        self._task = bar.add_task(f"{label}, epoch 1 of {epochs}", total=None, state="")

    def start_epoch(self, number: int, rows: int) -> None:
        """Begin epoch ``number``, from 1, over ``rows`` examples."""
        self._epoch, self._rows, self._sum_of_losses = number, 0, 0.0
        description = f"{self._label}, epoch {number} of {self._epochs}"
        self._bar.update(self._task, description=description, total=rows * self._epochs)

    def step(self, rows: int, loss: float, seconds: float) -> None:
        """Count a step over ``rows`` examples that took ``seconds``."""
        self._rows += rows
        self._sum_of_losses += loss * rows
        self._speeds.append(rows / seconds)
        self._bar.update(self._task, advance=rows, state=self._state())

    def end_epoch(self) -> None:
        """Leave a line behind where there is no bar."""
        if self._bar.disable:
            self._say(f"  {self._label}, epoch {self._epoch} of {self._epochs}: {self._state()}")

    @property
    def speed(self) -> float:
        """Examples per second: the median over all steps."""
        return median(self._speeds)

    def _state(self) -> str:
        mean_loss = self._sum_of_losses / self._rows
        return f"loss {mean_loss:.4f}, {self.speed:.0f} examples/s"


class Display:
    """Where the program speaks."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)

    def say(self, line: str) -> None:
        """Print a line."""
        self._console.print(line, soft_wrap=True)

    @contextmanager
    def training(self, label: str, epochs: int) -> Iterator[Training]:
        """Show the progress of a training of so many epochs."""
        bar = Progress(
            TextColumn("  {task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[state]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        with bar:
            yield Training(label, epochs, bar, self.say)

    def table(self, results: list[Result], processes: int) -> None:
        """Print the results, a line per model."""
        table = Table(box=box.SIMPLE_HEAD)
        for title in (
            "model",
            "accuracy",
            *(f"plain\n{threads}" for threads in results[0].plain_speeds),
            f"Synkhronos\n{processes} process{'es' if processes > 1 else ''}",
            "speed-up",
            "largest\ndifference",
        ):
            table.add_column(title, justify="left" if title == "model" else "right")
        for result in results:
            table.add_row(
                result.model,
                f"{result.accuracy:.1%}",
                *(f"{speed:.0f}" for speed in result.plain_speeds.values()),
                f"{result.parallel_speed:.0f}",
                f"{result.speed_up:.2f} x",
                f"{result.difference:.1e}",
            )
        self._console.print(table)
        self.say(
            "In examples per second, measured in turns. The speed-up is relative to plain "
            f"{TITLE} in its own process, with the faster number of threads."
        )
        for result in results:
            if result.speed_up < 1:
                self.say(
                    f"{result.model}: plain {TITLE} is faster here. A step computes too little "
                    "for so many processes; try larger batches (--batch-size) or networks."
                )

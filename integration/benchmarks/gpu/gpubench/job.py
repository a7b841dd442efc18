"""The process that measures: ``python -m gpubench.job KIND SETTINGS FOLDER``."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synk_benchmarks.results import row_of, write_row

PLAIN, PLAIN_TAKE = "plain Theano, x[idx]", "plain Theano, np.take(out=)"
OURS, OURS_AHEAD, BARE = "synkhronos", "synkhronos, steps()", "bare NCCL"
ROWS, ABOUT = "rows.jsonl", "about.jsonl"


@dataclass(frozen=True)
class Settings:
    """The settings of a job.

    `device` is "cuda" for the first `gpus` CUDA devices, "cpu" for processes, else the name of a
    device that all ranks share, such as "opencl0:0"; `network` is "resnet", "vgg", or "". A tiny
    network is for trying the program, and no result to quote.
    """

    device: str
    gpus: int
    steps: int
    rounds: int
    images: int
    tiny: bool
    network: str

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    def devices(self) -> dict[str, Any]:
        if self.device == "cpu":
            return {"n_parallel": self.gpus, "use_gpu": False}
        if self.cuda:
            return {"devices": [f"cuda{rank}" for rank in range(self.gpus)]}
        return {"devices": [self.device] * self.gpus}


class Report:
    """What a job tells: rows and facts, into files of a folder."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder = folder
        self._gpus = settings.gpus

    def row(self, part: str, what: str, contender: str, rounds: Any, **more: Any) -> None:
        samples = rounds if isinstance(rounds, (list, tuple)) else [rounds]
        label = f"{what}, {self._gpus} GPU{'s' if self._gpus > 1 else ''}"
        row = row_of(part, label, {contender: [*map(float, samples)]}, ranks=self._gpus, **more)
        write_row(self._folder / ROWS, row)

    def about(self, name: str, value: object) -> None:
        """Write something to know about the run; the last of a name counts."""
        with (self._folder / ABOUT).open("a", encoding="utf-8") as file:
            file.write(json.dumps({name: str(value)}) + "\n")


def main(kind: str, settings: str, folder: str) -> None:
    # Theano 1.0.5 comes to life by it, also where no .pth file sees to that. Plain Theano needs it
    # too, and uses nothing else of it.
    importlib.import_module("synk_theano")
    job = importlib.import_module(f"gpubench.{kind}")
    read = Settings(**json.loads(settings))
    job.main(read, Report(Path(folder), read))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The contents of a checkpoint: collected from a training, compared with one, and restored.

Restored on as many processes as it was saved on, everything is as it was on each rank. On another
number, values that are equal on all ranks are restored as they were; for the others:

- local values: floats become the average over the saved ranks, all else rank 0's value;
- random states: rank r continues the stream of rank r; a rank that did not exist when it was saved
  keeps its present stream. If all ranks draw the same, all continue the stream of rank 0.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Callable

import numpy as np

from synk_core import whole
from synkhronos import _default

from ._batches import BatchMaker, BatchSampler
from ._checkpoint_files import CheckpointError, number_in, read_file, refusing
from ._ranks import AllRanks, OneProcess, RankVariables, is_float, is_state
from ._state import TrainingState, storage_of


@dataclass
class TrainingProgress:
    """How far a training has come. Loading a checkpoint replaces it as a whole."""

    sums: list[float]  # for each output of the step: value times rows, summed over ``batch``
    shuffle: Any = None  # the generator's state before it shuffled the present epoch's rows
    epoch: int = 0
    step: int = 0
    batch: int = 0  # finished batches of the present epoch, of ``sum_rows`` rows
    sum_rows: int = 0
    best: float = math.inf  # score of an epoch
    seconds: float = 0.0  # up to the end of the last run or checkpoint
    records: list[dict[str, Any]] = field(default_factory=list)

    def add(self, values: Sequence[float], rows: int) -> None:
        """Count a step."""
        self.sums = [total + rows * value for total, value in zip(self.sums, values)]
        self.sum_rows += rows
        self.batch += 1
        self.step += 1

    def end_epoch(self) -> list[float]:
        """Count an epoch, and return the means over its rows."""
        means = [total / self.sum_rows for total in self.sums]
        self.sums, self.sum_rows = [0.0] * len(self.sums), 0
        self.epoch += 1
        self.batch, self.shuffle = 0, None
        return means


class CheckpointContents:
    """Collect and restore everything that a checkpoint keeps: all of it or nothing.

    For a training to continue, the ``settings`` have to be the same. ``stateful`` are schedule,
    callbacks and a rule of `sync`.
    """

    def __init__(
        self,
        variables: SharedVariables,
        sampler: BatchMaker | BatchSampler,
        settings: dict[str, Any],
        stateful: Sequence[Any],
    ) -> None:
        self._variables, self._sampler = variables, sampler
        self._settings, self.stateful = settings, stateful

    def collect(self, progress: TrainingProgress) -> dict[str, Any]:
        """Return the contents of a checkpoint."""
        shuffle = progress.shuffle or self._sampler.get_state()
        parts = []
        for item in self.stateful:
            required = bool(getattr(item, "required", True))
            kind = type(item).__name__
            parts.append({"kind": kind, "state": item.state(), "required": required})
        return {
            "progress": {**asdict(progress), "shuffle": shuffle},
            "settings": self._settings,
            "sampler": self._sampler.settings,
            "callbacks": parts,
            "variables": self._variables.read(),
        }

    def load(self, path: Path, use: Callable[[TrainingProgress], None]) -> None:
        """Read a file, restore everything, and `use` the progress: all of it, or nothing."""
        content, here = read_file(path), self._variables.read()
        with refusing(f"{path}: a part is missing or of the wrong type", "; it is damaged"):
            progress = _progress_of(content["progress"], len(self._settings["train_columns"]))
            callbacks = self._callbacks_of(content["callbacks"])
            refusal = self._sampler.refusal(progress.shuffle)
            sampler = self._sampler.settings if progress.batch else {}  # written within an epoch
            misfits = [
                *_differences(content["settings"], self._settings),
                *_differences(content["sampler"], sampler),
                *self._variables.misfits(content["variables"], here),
                *([refusal] if refusal else []),
                *(
                    f"schedule, callback or sync: {part['kind']} in the checkpoint, none here"
                    for item, part in callbacks
                    if item is None and part["required"]
                ),
            ]
        if misfits:
            raise CheckpointError(f"{path} does not fit this training: " + "; ".join(misfits))
        set_variables = self._variables.setting(content["variables"], here)
        shuffle = self._sampler.get_state()
        done: list[Any] = []  # objects that may have loaded a state, and their states of before

        def act() -> None:
            for item, part in callbacks:
                with refusing(f"{path} does not fit: {part['kind']} refused its state"):
                    if item is not None:
                        done.append((item, copy.deepcopy(item.state())))
                        item.load_state(part["state"])
            self._sampler.set_state(progress.shuffle)
            set_variables()  # last of what may fail
            use(progress)

        def undo() -> None:
            self._sampler.set_state(shuffle)
            for item, state in done:
                item.load_state(state)

        whole(act, undo)

    def _callbacks_of(self, parts: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Return pairs of an object, or None, and its part: those of one class in their order."""
        waiting, found = list(self.stateful), []
        for part in parts:
            kinds = [type(item).__name__ for item in waiting]
            known = part["kind"] in kinds
            found.append((waiting.pop(kinds.index(part["kind"])) if known else None, part))
        return found


class SharedVariables:
    """Read and set the shared variables of a training on all ranks.

    A checkpoint has a list of values for each: one if it is equal on all ranks, else one per rank.
    """

    def __init__(self, ranks: RankVariables, state: TrainingState, rate: Any) -> None:
        self._ranks = ranks
        known = {storage_of(variable) for variable in (*state.params, *state.optimizer)}
        self._kinds: dict[str, Sequence[Any]] = {
            "learning_rate": [] if rate is None or storage_of(rate) in known else [rate],
            "centre": state.centre,
            "params": state.params,
            "optimizer": state.optimizer,
            "local": state.local,
            "random": state.random,
        }
        self._own = {"local"}  # kinds of which each rank has its own values
        if state.takes_local_steps:
            self._own |= {"params", "optimizer"}

    def read(self) -> dict[str, Any]:
        """Return all values, for a checkpoint: of one moment, on all ranks."""
        ranks, acts = self._ranks, dict[str, list[Any]]()
        for kind, listed in self._kinds.items():
            if kind == "random":
                acts[kind] = [*map(ranks.get_states, listed)]
            else:
                of = range(ranks.size) if kind in self._own else [ranks.master]
                acts[kind] = [ranks.get(rank, listed) for rank in of]
        results = iter(ranks.perform([act for listed in acts.values() for act in listed]))
        content: dict[str, Any] = {"ranks": ranks.size}
        for kind, listed in self._kinds.items():
            found = [next(results) for _ in acts[kind]]
            pairs = zip(listed, found if kind == "random" else zip(*found))  # by variable
            content[kind] = [{"name": of.name, "values": list(values)} for of, values in pairs]
        return content

    def misfits(self, content: dict[str, Any], current: dict[str, Any]) -> Iterator[str]:
        """Yield a sentence for each difference from the present variables, as `read` has them."""
        size = number_in(content, "ranks", least=1, most=1 << 16)
        for kind in self._kinds:
            there, here = (", ".join(map(_described, part[kind])) for part in (content, current))
            if there != here:
                yield f"{kind}: {there or 'none'} in the checkpoint, {here or 'none'} here"
            counts = {len(entry["values"]) for entry in content[kind]}
            if not counts <= ({size} if kind == "random" else {1, size}):
                yield f"{kind}: not a value for each of {size} ranks"
        if not all(is_state(value) for entry in content["random"] for value in entry["values"]):
            yield "random: a state that no generator can have"

    def setting(self, content: dict[str, Any], current: dict[str, Any]) -> Callable[[], Any]:
        """Return a function that sets all values in one order; `misfits` has found none.

        After the runtime is closed it sets those of this process.
        """
        ranks, saved_ranks = self._ranks, content["ranks"]
        acts: list[Any] = []
        here: list[Any] = []
        place = min(ranks.master, saved_ranks - 1)
        for kind, listed in self._kinds.items():
            saved = [entry["values"] for entry in content[kind]]
            here.append((listed, [*map(partial(_value_of, place), listed, saved)]))
            if kind == "random":
                states = [entry["values"] for entry in current[kind]]
                acts += self._set_random(saved, saved_ranks, states)
                continue
            is_own = kind in self._own and saved_ranks == ranks.size
            for rank in range(ranks.size) if is_own else [None]:
                values = [*map(partial(_value_of, rank), listed, saved)]
                acts.append(ranks.set(rank, listed, values))

        def set_all() -> None:
            if isinstance(ranks, AllRanks) and not _default.is_open():
                OneProcess().perform(here)
            else:
                ranks.perform(acts)

        return set_all

    def _set_random(self, saved: list[Any], saved_ranks: int, current: list[Any]) -> list[Any]:
        ranks = self._ranks
        # The ranks drew the same then, and must not now: only one of them continues the stream.
        distinct = 1 if saved_ranks > 1 and all(map(_all_equal, saved)) else saved_ranks
        news = [
            [*values[: min(distinct, ranks.size)], *here[distinct:]]
            for values, here in zip(saved, current)
        ]
        if ranks.size > 1 and all(map(_all_equal, current)):
            news = [[values[0]] * ranks.size for values in saved]
        pairs = zip(self._kinds["random"], news)
        return [act for pair in pairs for act in ranks.set_states(*pair)]


def _progress_of(saved: dict[str, Any], outputs: int) -> TrainingProgress:
    """Return the progress; raise any exception if a part is missing, wrong, or contradicts one."""
    progress = TrainingProgress(**saved)
    for name in ("epoch", "step", "batch", "sum_rows"):
        number_in(saved, name)
    number_in(saved, "seconds", float)
    number_in(saved, "best", float, -math.inf, math.inf)
    if [type(total) for total in progress.sums] != [float] * outputs:
        raise ValueError(f"sums is {progress.sums!r:.80}; expected {outputs} floats")
    for record in progress.records:
        number_in(record, "seconds", float)
        for name, value in record.items():
            if name.startswith(("train_", "valid_", "learning_rate")) and value is not None:
                float(value + 0)
    epochs = [record["epoch"] for record in progress.records]
    whole_epochs = len(epochs) == progress.epoch and epochs == [*range(1, len(epochs) + 1)]
    if not whole_epochs or (progress.sum_rows > 0) != (progress.batch > 0):
        raise ValueError("epoch, records, batch and sum_rows contradict each other")
    return progress


def _differences(saved: dict[str, Any], here: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {saved.get(name)!r} in the checkpoint, {value!r} here"
        for name, value in here.items()
        if saved.get(name) != value
    ]


def _value_of(rank: int | None, variable: Any, values: Sequence[Any]) -> Any:
    """Return a rank's value, or that of all ranks: the mean of floats, else rank 0's."""
    if rank is None and len(values) > 1 and is_float(variable):
        return np.mean(values, axis=0, dtype="float64").astype(values[0].dtype)
    return values[rank or 0] if len(values) > 1 else values[0]


def _described(entry: dict[str, Any]) -> str:
    """Return a variable's name, and the dtypes and shapes of its values, each once."""
    kinds = {f"{value.dtype}{tuple(value.shape)}" for value in entry["values"]}
    return " ".join([entry["name"] or "unnamed", *sorted(kinds)])


def _all_equal(values: Sequence[Any]) -> bool:
    return all(np.array_equal(values[0], value) for value in values[1:])

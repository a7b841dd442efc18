"""Values of a training's shared variables: read from all ranks, checked, and set again.

Loaded on as many processes as it was saved on, everything is as it was in each rank. On another
number, what is equal in all ranks still is as it was; for the rest there is one rule each:

- local values: floats get the average over the ranks that were saved, others rank 0's value;
- random states: rank r continues the stream of rank r; a rank that was not there when it was saved
  keeps the stream that it has. Where all ranks draw the same, all continue the stream of rank 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ._ranks import Ranks, is_float
from ._state import TrainingState, storage_of


class Snapshot:
    """Reads and sets the shared variables of a training, in all ranks.

    Args:
        ranks: How to reach them.
        state: What a step changes.
        rate: The shared variable of the learning rate, or None.
    """

    def __init__(self, ranks: Ranks, state: TrainingState, rate: Any) -> None:
        self._ranks = ranks
        self._random = list(state.random)
        known = {storage_of(variable) for variable in (*state.params, *state.optimizer)}
        self._kinds: dict[str, list[Any]] = {
            "params": list(state.params),
            "optimizer": list(state.optimizer),
            "learning_rate": [] if rate is None or storage_of(rate) in known else [rate],
        }
        self._local = list(state.local)

    def read(self) -> dict[str, Any]:
        """All values, for a checkpoint."""
        ranks = self._ranks
        content: dict[str, Any] = {"ranks": ranks.size}
        for kind, variables in self._kinds.items():
            values = ranks.read(ranks.master, variables)
            content[kind] = [_entry(v, value=value) for v, value in zip(variables, values)]
        by_rank = [ranks.read(rank, self._local) for rank in range(ranks.size)]
        content["local"] = [
            _entry(variable, values=[values[i] for values in by_rank])
            for i, variable in enumerate(self._local)
        ]
        states = ranks.read_states(self._random)
        content["random"] = [_entry(v, values=values) for v, values in zip(self._random, states)]
        return content

    def misfits(self, content: dict[str, Any]) -> Iterator[str]:
        """What does not fit the variables that there are, one sentence each."""
        ranks = self._ranks
        current = {
            kind: ranks.read(ranks.master, variables) for kind, variables in self._kinds.items()
        }
        current["local"] = ranks.read(ranks.master, self._local)
        current["random"] = [states[ranks.master] for states in ranks.read_states(self._random)]
        variables = {**self._kinds, "local": self._local, "random": self._random}
        for kind, values in current.items():
            saved = content[kind]
            if len(saved) != len(values):
                yield (
                    f"{kind}: {len(saved)} variables in the checkpoint "
                    f"({', '.join(str(entry['name']) for entry in saved)}), {len(values)} here "
                    f"({', '.join(str(variable.name) for variable in variables[kind])})"
                )
                continue
            for i, (variable, value, entry) in enumerate(zip(variables[kind], values, saved)):
                arrays = entry["values"] if "values" in entry else [entry["value"]]
                here = _told(variable.name, value)
                for array in arrays:
                    there = _told(entry["name"], array)
                    if there != here:
                        yield f"{kind}[{i}]: {there} in the checkpoint, {here} here"
                        break
                if "values" in entry and len(arrays) != content["ranks"]:
                    yield f"{kind}[{i}]: {len(arrays)} values for {content['ranks']} ranks"

    def write(self, content: dict[str, Any]) -> None:
        """Set all values; they have been found to fit."""
        for kind, variables in self._kinds.items():
            self._ranks.write_all(variables, [entry["value"] for entry in content[kind]])
        self._write_local([entry["values"] for entry in content["local"]], content["ranks"])
        self._write_random([entry["values"] for entry in content["random"]], content["ranks"])

    def _write_local(self, saved: Sequence[Sequence[Any]], saved_ranks: int) -> None:
        ranks = self._ranks
        if saved_ranks == ranks.size:
            for rank in range(ranks.size):
                ranks.write(rank, self._local, [values[rank] for values in saved])
            return
        common = [
            np.mean(values, axis=0, dtype="float64").astype(values[0].dtype)
            if is_float(variable)
            else values[0]
            for variable, values in zip(self._local, saved)
        ]
        ranks.write_all(self._local, common)

    def _write_random(self, saved: Sequence[Sequence[Any]], saved_ranks: int) -> None:
        ranks = self._ranks
        if not self._random:
            return
        current = ranks.read_states(self._random)
        if ranks.size > 1 and all(map(_all_equal, current)):
            ranks.write_states(self._random, [[values[0]] * ranks.size for values in saved])
            return
        # Ranks that drew the same then, and are not to now: one of them continues the stream.
        distinct = 1 if saved_ranks > 1 and all(map(_all_equal, saved)) else saved_ranks
        ranks.write_states(
            self._random,
            [
                [*values[: min(distinct, ranks.size)], *here[distinct:]]
                for values, here in zip(saved, current)
            ],
        )


def _entry(variable: Any, **values: Any) -> dict[str, Any]:
    return {"name": variable.name, **values}


def _told(name: str | None, value: Any) -> str:
    return f"{name or 'unnamed'} {value.dtype}{tuple(value.shape)}"


def _all_equal(values: Sequence[Any]) -> bool:
    return all(np.array_equal(values[0], value) for value in values[1:])

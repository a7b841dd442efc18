"""The values of shared variables on all ranks: read, set and restore them."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from synk_core.engine import Apply, Op

from .shared import value_of
from .values import is_array

Values = Dict[int, np.ndarray]
"""Arrays by the position of their variable in `RankValues.variables`."""


class CopyValue(Op):
    """A deep copy of a value of any type."""

    __props__ = ()

    def make_node(self, value: Any) -> Apply:
        return Apply(self, [value], [value.type()])

    def perform(self, _node: Any, inputs: Any, outputs: Any, _params: Any = None) -> None:
        outputs[0][0] = copy.deepcopy(inputs[0])


class RankValues:
    """The current values of shared variables on all ranks.

    Arrays are fetched into the master. Collectives do not take other values, such as the states of
    random streams: a function copies them on each rank.

    Args:
        copiers: holds the functions that copy, for the next time.

    Attributes:
        variables: the variables that hold arrays.
        saved: their values, by rank.
    """

    def __init__(self, runtime: Any, shared: Sequence[Any], copiers: Dict[str, Any]) -> None:
        distinct = list({id(v.container.storage): v for v in shared}.values())
        self._runtime = runtime
        self.variables = [v for v in distinct if is_array(value_of(v))]
        self._others = [v for v in distinct if not is_array(value_of(v))]
        self._masters = [copy.deepcopy(value_of(variable)) for variable in self._others]
        self.saved: List[Values] = [
            self.fetch(rank, range(len(self.variables))) for rank in range(runtime.size)
        ]
        self._put_back: Any = None
        if self._others and runtime.size > 1:
            if not copiers:
                copiers.update(self._make_copiers())
            copiers["keep"]()
            self._put_back = copiers["put back"]

    def fetch(self, rank: int, places: Sequence[int]) -> Values:
        """Return copies of one rank's values of the variables at `places`."""
        listed = [self.variables[place] for place in places]
        if not listed:
            return {}
        if rank == self._runtime.master:
            return {place: v.get_value() for place, v in zip(places, listed)}
        values = self._runtime.collectives.get_value(rank, listed)
        return {place: np.array(value) for place, value in zip(places, values)}

    def give(self, rank: int, values: Values) -> None:
        """Set one rank's variables to copies of `values`."""
        if not values:
            return
        listed = [self.variables[place] for place in values]
        if rank == self._runtime.master:
            for variable, value in zip(listed, values.values()):
                variable.set_value(value)
        else:
            self._runtime.collectives.set_value(rank, listed, list(values.values()))

    def restore(self) -> None:
        """Restore every rank's values in one order; only the master's, if the runtime is closed."""
        runtime, delayed = self._runtime, self._runtime.delayed
        master = self.saved[runtime.master]
        for variable, value in zip(self._others, self._masters):
            variable.set_value(value)
        if runtime.closed:
            self.give(runtime.master, master)
            return
        acts = [delayed.broadcast(self.variables, list(master.values()))] if master else []
        for rank, values in enumerate(self.saved):
            own = [place for place in master if not equal_bits(values[place], master[place])]
            if own:
                listed = [self.variables[place] for place in own]
                acts.append(delayed.set_value(rank, listed, [values[place] for place in own]))
        if self._put_back is not None:
            acts.append(self._put_back.delayed())
        runtime.step(*acts)

    def _make_copiers(self) -> Dict[str, Any]:
        keeps, returns = [], []
        for variable, value in zip(self._others, self._masters):
            kept = type(variable)(
                name=f"kept {variable.name}", type=variable.type, value=value, strict=False
            )
            keeps.append((kept, CopyValue()(variable)))
            returns.append((variable, CopyValue()(kept)))
        # Without default updates: a state must not advance by being copied.
        settings: Dict[str, Any] = {"no_default_updates": True, "mode": "FAST_COMPILE"}
        return {
            name: self._runtime.function([], updates=updates, name=f"{name} states", **settings)
            for name, updates in (("keep", keeps), ("put back", returns))
        }


def equal_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two arrays have the same dtype, shape and bits, NaNs included."""
    same: Tuple[bool, ...] = (a.dtype == b.dtype, a.shape == b.shape)
    return all(same) and a.tobytes() == b.tobytes()


def disturbed(value: Any) -> Any:
    """Return floats with a relative change of one epsilon up or down; other values unchanged.

    Whole numbers do not change: they may be labels, flags or masks, which a graph compares.
    """
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or not value.size:
        return value
    signs = np.random.RandomState(value.size % 2**32).choice([-1, 1], size=value.shape)
    with np.errstate(all="ignore"):
        changed = value * (1 + signs * np.finfo(value.dtype).eps)
        return np.where(np.trunc(value) == value, value, changed).astype(value.dtype)

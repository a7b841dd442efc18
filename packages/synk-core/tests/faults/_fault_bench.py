"""What the faults strike: a runtime, and acts on it, each with a known result and known changes."""

from __future__ import annotations

from typing import Any, Dict, List, Set

import _fault_inflict as inflict
import numpy as np
from _features import UNPROVED

from synk_core import Runtime
from synk_testing.engine import T, as_op, engine

Values = Dict[str, List[List[float]]]
COLUMNS = 3


class Bench:
    """An open runtime, what is built in it, and data; collectives move a vector of this length."""

    def __init__(self, runtime: Runtime, rows_per_rank: int = 6, length: int = 4) -> None:
        self.runtime, self._length = runtime, length
        size = runtime.size
        self.rows = np.arange(size * rows_per_rank * COLUMNS, dtype=float).reshape(-1, COLUMNS)
        x = T.dmatrix("x")
        self.w = engine.shared(np.zeros(COLUMNS), "w")
        self.v = engine.shared(np.zeros(self._length), "v")
        self.f = self._function(
            [x],
            [(x.sum(axis=0), "sum"), (x * 2, "gather")],
            updates=[(self.w, self.w + 1)],
            name="f",
        )
        # Without outputs; all rows are above -1.
        self.quiet = self._function([x], updates=[(self.w, self.w + (x.min() > -1))], name="quiet")

        @as_op([T.dmatrix], [T.dmatrix])
        def lay(orders: np.ndarray) -> np.ndarray:
            for order in orders:
                if order.any():
                    inflict.arm(order)
            return orders

        self._lay = self._function([x], (lay(x), "gather"), name="lay")
        self.data = runtime.data(self.rows)

    def _function(self, *arguments: Any, **more: Any) -> Any:
        # Nothing is compiled: that takes the longest.
        return self.runtime.function(*arguments, **more, mode="FAST_COMPILE", **UNPROVED)

    def arm(self, rank: int, place: inflict.Place, deed: str, argument: float) -> None:
        """Make a worker do something to itself in the next order."""
        orders = np.zeros((self.runtime.size, 5))
        orders[rank] = *place, inflict.NAMES.index(deed), argument
        self._lay(orders)

    def reset(self) -> Values:
        """Restore all as it is before every act; return the variables' values."""
        collectives = self.runtime.collectives
        collectives.broadcast([self.w, self.v])
        self.growing = self.runtime.data(self.rows)
        self.quiet(self.growing)
        collectives.broadcast(self.w, np.arange(COLUMNS, dtype=float))
        for rank in range(self.runtime.size):
            collectives.set_value(rank, self.v, np.full(self._length, rank + 1.0))
        return self.before()

    def before(self) -> Values:
        ranks = range(self.runtime.size)
        return {
            "w": [list(map(float, range(COLUMNS))) for _ in ranks],
            "v": [[rank + 1.0] * self._length for rank in ranks],
        }

    def values(self) -> Values:
        """Return the values of every rank; of a closed runtime, the master's."""
        if self.runtime.closed:
            return {"w": [self.w.get_value().tolist()], "v": [self.v.get_value().tolist()]}
        gather = self.runtime.collectives.gather
        return {"w": gather(self.w).tolist(), "v": gather(self.v).tolist()}

    # Acts: each returns whether its result is right, and gives the name of a state.

    def call(self, data: Any = None, rows: Any = None, **how: Any) -> bool:
        rows = self.rows if rows is None else rows
        return self._is_right(self.f(self.data if data is None else data, **how), rows)

    def _is_right(self, results: Any, rows: np.ndarray) -> bool:
        summed, doubled = results
        return bool(np.array_equal(summed, rows.sum(axis=0)) and np.array_equal(doubled, rows * 2))

    def copy(self) -> bool:
        order = np.random.RandomState(1).permutation(len(self.rows))
        return self.call(rows=self.rows[order], batch=order)

    def slice(self) -> bool:
        return self.call(num_slices=3)

    def end(self) -> bool:
        return self.quiet(self.data) in (None, [])

    def distribute(self) -> bool:
        x = T.dmatrix("x")
        fresh = engine.shared(np.ones(()), "fresh")
        g = self._function([x], (x.sum() * fresh, "sum"), updates=[(fresh, fresh + 1)], name="g")
        self.runtime.distribute()
        return bool(g(self.data) == self.rows.sum())

    def grow(self) -> bool:
        more = np.concatenate([self.rows] * 40)
        self.growing.set_value(more)
        return self.call(self.growing, more)

    def all_reduce(self) -> bool:
        return self.runtime.collectives.all_reduce(self.v, "sum") is None

    def gather(self) -> bool:
        return self.runtime.collectives.gather(self.v).tolist() == self.before()["v"]

    def step(self) -> bool:
        first, _, third = self.runtime.step(
            self.f.delayed(self.data),
            self.runtime.delayed.all_reduce(self.v, "sum"),
            self.f.delayed(self.data),
        )
        return self._is_right(first, self.rows) and self._is_right(third, self.rows)

    def close(self) -> bool:
        self.runtime.close()
        return self.runtime.closed

    def after(self, act: str) -> Values:
        values, size = self.before(), self.runtime.size
        calls = {"step": 2, "distribute": 0, "gather": 0, "all_reduce": 0, "close": 0}.get(act, 1)
        values["w"] = [[w + calls for w in row] for row in values["w"]]
        if act in {"all_reduce", "step"}:
            values["v"] = [[size * (size + 1) / 2] * self._length for _ in range(size)]
        return values

    def verdict(self, act: str) -> Set[str]:
        """Return whether ranks have the values "before" this act, "after" it, or both: "same"."""
        told, ranks = set(), slice(None)
        if self.runtime.closed:
            ranks = slice(self.runtime.master, self.runtime.master + 1)
        before, after = self.before(), self.after(act)
        for name, value in self.values().items():
            old, new = before[name][ranks], after[name][ranks]
            if value == old == new:
                told.add("same")
            elif value in (old, new):
                told.add("before" if value == old else "after")
            else:
                told.add(f"{name}: {value}, neither {old} nor {new}")
        return told

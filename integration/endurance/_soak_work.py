"""Random work on one runtime: every call is proved, and collectives are checked against NumPy."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np
import theano
import theano.tensor as T

from synk_core import Data, Runtime, WorkerFailed

WIDTH = 7
ROWS = 600
GROWN_ROWS = 20_000
"""At most, of a `Data`: 1 MiB."""

MOST_DATA = 3

MARK = 1e9

COLLECTIVES = ("broadcast", "values", "all_reduce", "reduce", "in_place", "scatter", "set")
REDUCE = {"sum": np.sum, "avg": np.mean, "max": np.max, "min": np.min, "prod": np.prod}


class Touchy(theano.Op):
    """The identity, unknown to the check; it raises if `MARK` is among its values."""

    __props__ = ()

    def make_node(self, x: Any) -> Any:
        return theano.Apply(self, [x], [x.type()])

    def perform(self, _node: Any, inputs: Any, outputs: Any) -> None:
        if inputs[0].size and inputs[0].max() == MARK:
            raise ArithmeticError("cannot stand this row")
        outputs[0][0] = inputs[0].copy()


class Life:
    """A runtime from its start to `close()`; `rng` decides what it does."""

    def __init__(
        self, size: int, master: int, backend: str, rng: np.random.Generator, folder: Path
    ) -> None:
        self.rng = rng
        self._folder = folder
        self.runtime = runtime = Runtime(size, False, master, backend=backend, proof_every=1)
        self.size = size
        x, y = T.dmatrix("x"), T.dvector("y")
        start, rows = rng.normal(size=WIDTH), rng.normal(size=(40, WIDTH))
        self._s, self._d = theano.shared(start, name="s"), theano.shared(rows, name="d")
        self._u = theano.shared(0.0, name="u")
        self.data: list[tuple[Data, np.ndarray]] = []
        runtime.let_drift([self._s])
        t, z, d = Touchy()(x), Touchy()(x * y), Touchy()(self._d)
        reduced = [(z.sum(0), "sum"), (z.mean(0), "avg"), (z.max(0), "max"), (z.min(0), "min")]
        self._plain = runtime.function(
            [x], [*reduced, (z, "gather")], bcast_inputs=[y], name="plain"
        )
        self._update = runtime.function(
            [x], (t.sum(), "sum"), updates=[(self._s, 0.5 * self._s + t.mean(0))], name="update"
        )
        self._sliced = runtime.function(
            [], [(d.sum(0), "sum"), (d.max(0), "max")], sliceable_shareds=[self._d], name="sliced"
        )
        self._touchy = runtime.function(
            [x], (t.sum(), "sum"), updates=[(self._u, self._u + 1)], name="touchy"
        )
        runtime.distribute()

    def act(self) -> str:
        """Do something, and return what it was; raise if a result is wrong."""
        names, weights = zip(*ACTS.items())
        name = str(self.rng.choice(names, p=np.array(weights) / sum(weights)))
        getattr(self, name)()
        return name

    def close(self) -> float:
        began = time.monotonic()
        self.runtime.close()
        return time.monotonic() - began

    def _rows(self, n: int) -> Any:
        """Return a `batch` of any kind that selects at least one of `n` rows."""
        rng = self.rng
        k = int(rng.integers(1, n + 1))
        kinds: list[Callable[[], Any]] = [
            lambda: slice(int(rng.integers(0, k)), k),
            lambda: rng.integers(0, n, size=k),
            lambda: [int(i) for i in rng.integers(0, n, size=k)],
            lambda: np.arange(n) % k == 0,
        ]
        return kinds[rng.integers(len(kinds))]()

    def _matrix(self, most: int = ROWS) -> np.ndarray:
        return self.rng.normal(size=(int(self.rng.integers(1, most)), WIDTH))

    def _slices(self) -> int:
        return int(self.rng.choice([1, 1, 1, 2, 3, 5]))

    def call(self) -> None:
        x = self._matrix()
        self._call_plain(x, x)

    def _call_plain(self, given: Any, model: np.ndarray) -> None:
        y, batch = self.rng.normal(size=WIDTH), self._rows(len(model))
        subset = None if self.rng.random() < 0.7 else [4, int(self.rng.integers(4))]
        got = self._plain(given, y, batch=batch, num_slices=self._slices(), output_subset=subset)
        # What was proved are the rows of this call.
        close(got[-1 if subset is None else 0], model[batch] * y)

    def update(self) -> None:
        x, before = self._matrix(), self.runtime.collectives.gather(self._s)
        self._update(x, num_slices=self._slices())
        parts = np.split(x, np.cumsum(self._update.rows)[:-1])
        expected = [0.5 * s + p.mean(0) if len(p) else s for s, p in zip(before, parts)]
        close(self.runtime.collectives.gather(self._s), expected)

    def batch_s(self) -> None:
        lengths = self.runtime.collectives.get_lengths(self._d)
        self._sliced(batch_s=[self._rows(n) for n in lengths], num_slices=self._slices())

    def step(self) -> None:
        x, delayed = self._matrix(), self.runtime.delayed
        acts = [self._update.delayed(x), delayed.all_reduce(self._s, "avg", weights=self._update)]
        before = self.runtime.collectives.gather(self._s)
        self.runtime.step(*acts)
        mean = np.average(before, axis=0, weights=self._update.rows) / 2 + x.mean(0)
        close(self.runtime.collectives.gather(self._s), [mean] * self.size)

    def data_changes(self) -> None:
        """Create, grow, shrink, empty, write or drop a `Data`, and compute with it."""
        rng = self.rng
        if len(self.data) < MOST_DATA:
            value = self._matrix(GROWN_ROWS)
            memory = np.zeros((GROWN_ROWS, WIDTH))
            memory[: len(value)] = value
            self.data.append((self.runtime.data(value), memory))
        place = int(rng.integers(len(self.data)))
        # The model is of all rows that there is memory for, those included that were cut off.
        data, memory = self.data.pop(place)
        rows, allocated = len(data), data.alloc_size
        what = rng.choice(["grow", "shrink", "set", "write", "free", "drop"])
        if what == "drop":
            return
        if what in ("grow", "shrink"):
            lengths = (rows, GROWN_ROWS) if what == "grow" else (1, rows + 1)
            length = int(rng.integers(*lengths)) if lengths[0] < lengths[1] else rows
            data.set_length(length, oversize=float(rng.choice([1, 1.5])))
            if data.alloc_size != allocated:
                memory[rows:] = 0
        elif what == "write":
            row = int(rng.integers(rows))
            data[row] = memory[row] = rng.normal(size=WIDTH)
        else:
            if what == "free":
                data.free_memory()
            value = self._matrix(GROWN_ROWS)
            data.set_value(value)
            if data.alloc_size != allocated or what == "free":
                memory[:] = 0
            memory[: len(value)] = value
        self.data.append((data, memory))
        model = memory[: len(data)]
        np.testing.assert_array_equal(data.data, model)
        self._call_plain(data, model)

    def collective(self) -> None:
        rng, collectives, s = self.rng, self.runtime.collectives, self._s
        op, what = str(rng.choice(list(REDUCE))), rng.choice(COLLECTIVES)
        rank, master = int(rng.integers(self.size)), self.runtime.master
        value, expected = rng.normal(size=WIDTH), list(collectives.gather(s))
        reduced = REDUCE[op](expected, axis=0)
        if what == "broadcast":
            collectives.broadcast(s)
            expected = [expected[master]] * self.size
        elif what == "values":
            collectives.broadcast(s, value)
            expected = [value] * self.size
        elif what == "all_reduce":
            collectives.all_reduce(s, op)
            expected = [reduced] * self.size
        elif what == "reduce":
            close(collectives.reduce(s, op, in_place=False), reduced)
        elif what == "in_place":
            collectives.reduce(s, op)
            expected[master] = reduced
        elif what == "scatter":
            values = rng.normal(size=(int(rng.integers(self.size, ROWS)), WIDTH))
            collectives.scatter(self._d, values)
            close(collectives.gather(self._d, nd_up=0), values)
        else:
            collectives.set_value(rank, s, value)
            close(collectives.get_value(rank, s), value)
            expected[rank] = value
        close(collectives.gather(s), expected)

    def distribute(self) -> None:
        x = T.dmatrix("x")
        start = self.rng.normal(size=int(self.rng.integers(1, 5000)))
        v = theano.shared(start, name="new")
        f = self.runtime.function(
            [x], (x.mean() + v.sum(), "avg"), updates=[(v, v * 2)], name="new"
        )
        if self.rng.random() < 0.5:
            self.runtime.distribute()
        rows = self._matrix()[: self.size]
        rows = np.resize(rows, (self.size, WIDTH))
        close(f(rows), rows.mean() + start.sum())
        close(self.runtime.collectives.gather(v), [start * 2] * self.size)

    def timeline(self) -> None:
        path = self._folder / "timeline.json"
        with self.runtime.timeline(path):
            self.call()
            self.collective()
        spans = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        assert {span["pid"] for span in spans} == set(range(self.size))
        path.unlink()

    def failure(self) -> None:
        """Have one rank raise: the error names it, and no rank has changed."""
        x = np.abs(self._matrix()) + 1.0
        row = int(self.rng.integers(len(x)))
        bounds = np.cumsum([len(part) for part in np.array_split(x, self.size)])
        rank = int(np.searchsorted(bounds, row, side="right"))
        self._touchy(x, num_slices=self._slices())
        before = self.runtime.collectives.gather(self._u)
        x[row] = MARK
        try:
            self._touchy(x, num_slices=self._slices())
        except WorkerFailed as error:
            raised = (error.rank, type(error.__cause__))
        except ArithmeticError as error:
            raised = (self.runtime.master, type(error))
        else:
            raised = (None, None)
        assert raised == (rank, ArithmeticError)
        np.testing.assert_array_equal(self.runtime.collectives.gather(self._u), before)


ACTS = {
    "call": 30,
    "update": 20,
    "batch_s": 10,
    "step": 10,
    "collective": 30,
    "data_changes": 20,
    "failure": 3,
    "distribute": 5,
    "timeline": 1,
}


def close(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(got, np.asarray(expected), rtol=1e-8, atol=1e-9)

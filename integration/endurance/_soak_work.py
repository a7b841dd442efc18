"""Random work on one runtime, every result of which is checked against NumPy."""

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
"""At most, of what is computed."""

GROWN_ROWS = 20_000
"""At most, of a `Data`: 1 MiB."""

MOST_DATA = 3

MARK = 1e9

COLLECTIVES = (
    *("broadcast", "values", "all_reduce", "reduce", "in_place", "scatter", "set", "get"),
    "look",
)
REDUCE = {"sum": np.sum, "avg": np.mean, "max": np.max, "min": np.min, "prod": np.prod}


class Touchy(theano.Op):
    """The identity; it raises if `MARK` is among its values."""

    __props__ = ()

    def make_node(self, x: Any) -> Any:
        return theano.Apply(self, [x], [x.type()])

    def perform(self, _node: Any, inputs: Any, outputs: Any) -> None:
        if inputs[0].size and inputs[0].max() == MARK:
            raise ArithmeticError("cannot stand this row")
        outputs[0][0] = inputs[0].copy()


class Life:
    """A runtime from its start to `close()`, and the values of all ranks as NumPy computes them.

    Args:
        size, master, backend: of the runtime.
        rng: decides what is done.
        folder: for timelines.
    """

    def __init__(
        self, size: int, master: int, backend: str, rng: np.random.Generator, folder: Path
    ) -> None:
        self.rng = rng
        self._folder = folder
        self.runtime = runtime = Runtime(size, False, master, backend=backend)
        x, y = T.dmatrix("x"), T.dvector("y")
        s0, d0 = rng.normal(size=WIDTH), rng.normal(size=(40, WIDTH))
        self._s, self._c = theano.shared(s0, name="s"), theano.shared(np.int64(0), name="c")
        self._u, self._d = theano.shared(0.0, name="u"), theano.shared(d0, name="d")
        # The values of each rank.
        self.s = [s0.copy() for _ in range(size)]
        self.c = [0] * size
        self.d = [d0.copy() for _ in range(size)]
        self.data: list[tuple[Data, np.ndarray]] = []
        z = x * y
        reduced = [(z.sum(0), "sum"), (z.mean(0), "avg"), (z.max(0), "max"), (z.min(0), "min")]
        self._plain = runtime.function(
            [x], [*reduced, (z, "gather")], bcast_inputs=[y], name="plain"
        )
        self._update = runtime.function(
            [x],
            (x.dot(self._s).sum(), "sum"),
            updates=[(self._s, 0.5 * self._s + x.mean(0)), (self._c, self._c + 1, "last")],
            name="update",
        )
        self._sliced = runtime.function(
            [],
            [(self._d.sum(0), "sum"), (self._d.max(0), "max")],
            sliceable_shareds=[self._d],
            name="sliced",
        )
        t = Touchy()(x)
        self._touchy = runtime.function(
            [x], (t.sum(), "sum"), updates=[(self._u, self._u + t.sum())], name="touchy"
        )
        runtime.distribute()

    @property
    def size(self) -> int:
        return self.runtime.size

    def act(self) -> str:
        """Do something; return what it was.

        Raises:
            AssertionError: NumPy has other results.
        """
        names, weights = zip(*ACTS.items())
        name = str(self.rng.choice(names, p=np.array(weights) / sum(weights)))
        getattr(self, name)()
        return name

    def close(self) -> float:
        """End it; return the seconds that took."""
        began = time.monotonic()
        self.runtime.close()
        return time.monotonic() - began

    # ---- calls ---------------------------------------------------------------------------------

    def _rows(self, n: int) -> Any:
        """Return a `batch` of any kind that selects at least one of `n` rows."""
        rng = self.rng
        k = int(rng.integers(1, n + 1))
        kinds: list[Callable[[], Any]] = [
            lambda: None,
            lambda: k,
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
        x, y = self._matrix(), self.rng.normal(size=WIDTH)
        self._check_plain(x, x, y)

    def _check_plain(self, given: Any, x: np.ndarray, y: np.ndarray) -> None:
        batch = self._rows(len(x))
        subset = None if self.rng.random() < 0.7 else [int(self.rng.integers(5))]
        got = self._plain(given, y, batch=batch, num_slices=self._slices(), output_subset=subset)
        z = chosen(x, batch) * y
        expected = [z.sum(0), z.mean(0), z.max(0), z.min(0), z]
        close(got, expected if subset is None else [expected[i] for i in subset])

    def update(self) -> None:
        x = self._matrix()
        batch = self._rows(len(x))
        got = self._update(x, batch=batch, num_slices=self._slices())
        close(got, self._updated(chosen(x, batch)))

    def _updated(self, x: np.ndarray) -> float:
        """Apply an update, by the rows of each rank, to the model; return the call's result."""
        total, stop = 0.0, 0
        for rank, rows in enumerate(self._update.rows or ()):
            part, stop = x[stop : stop + rows], stop + rows
            if rows:
                total += part.dot(self.s[rank]).sum()
                self.s[rank] = 0.5 * self.s[rank] + part.mean(0)
            self.c[rank] += 1  # no row goes into it
        assert stop == len(x)
        return total

    def batch_s(self) -> None:
        per_rank = [self._rows(len(d)) for d in self.d]
        # An int for each rank would be read as a list of rows.
        per_rank = [slice(0, b) if isinstance(b, int) else b for b in per_rank]
        per_rank = [slice(None) if b is None else b for b in per_rank]
        got = self._sliced(batch_s=per_rank, num_slices=self._slices())
        parts = [chosen(d, b) for d, b in zip(self.d, per_rank)]
        close(got, [sum(p.sum(0) for p in parts), np.max([p.max(0) for p in parts], axis=0)])

    def step(self) -> None:
        x = self._matrix()
        delayed = self.runtime.delayed
        acts = [self._update.delayed(x), delayed.all_reduce(self._s, "avg", weights=self._update)]
        total, _ = self.runtime.step(*acts)
        close(total, self._updated(x))
        rows = np.array(self._update.rows, float)
        mean = sum(n * s for n, s in zip(rows, self.s)) / rows.sum()
        self.s = [mean.copy() for _ in self.s]
        close(self.runtime.collectives.gather(self._s), self.s)

    def verify(self) -> None:
        x = self._matrix(60)
        self._plain.verify(x, self.rng.normal(size=WIDTH)).raise_if_wrong()
        report = self._update.verify(x)
        assert not report.wrong, str(report)

    # ---- arrays in shared memory ---------------------------------------------------------------

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
        self._check_plain(data, model, rng.normal(size=WIDTH))

    # ---- collectives ---------------------------------------------------------------------------

    def collective(self) -> None:
        rng, collectives, s = self.rng, self.runtime.collectives, self._s
        op = str(rng.choice(list(REDUCE)))
        rank = int(rng.integers(self.size))
        value = rng.normal(size=WIDTH)
        what = rng.choice(COLLECTIVES)
        if what == "broadcast":
            collectives.broadcast(s)
            self.s = [self.s[self.runtime.master].copy() for _ in self.s]
        elif what == "values":
            collectives.broadcast(s, value)
            self.s = [value.copy() for _ in self.s]
        elif what == "all_reduce":
            collectives.all_reduce(s, op)
            self.s = [REDUCE[op](self.s, axis=0) for _ in self.s]
        elif what == "reduce":
            close(collectives.reduce(s, op, in_place=False), REDUCE[op](self.s, axis=0))
        elif what == "in_place":
            collectives.reduce(s, op)
            self.s[self.runtime.master] = REDUCE[op](self.s, axis=0)
        elif what == "scatter":
            values = rng.normal(size=(int(rng.integers(self.size, ROWS)), WIDTH))
            collectives.scatter(self._d, values)
            self.d = np.array_split(values, self.size)
            assert collectives.get_lengths(self._d) == tuple(map(len, self.d))
        elif what == "set":
            collectives.set_value(rank, s, value)
            self.s[rank] = value
        elif what == "get":
            close(collectives.get_value(rank, s), self.s[rank])
        else:
            digests = collectives.get_digests(self._u)
            assert len(set(digests)) == 1, "a call that failed has changed some ranks"
            close(collectives.gather(self._d, nd_up=0), np.concatenate(self.d))
            close(collectives.gather(self._c), self.c)
        close(collectives.gather(s), self.s)

    # ---- what comes and goes -------------------------------------------------------------------

    def distribute(self) -> None:
        """Use a new function and a new variable once, and drop them."""
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

    # ---- failures ------------------------------------------------------------------------------

    def failure(self) -> None:
        """Have one rank raise: the error names it, and no rank has changed."""
        x = np.abs(self._matrix()) + 1.0
        row = int(self.rng.integers(len(x)))
        bounds = np.cumsum([len(part) for part in np.array_split(x, self.size)])
        rank = int(np.searchsorted(bounds, row, side="right"))
        close(self._touchy(x, num_slices=self._slices()), x.sum())
        self.runtime.collectives.broadcast(self._u, np.asarray(self.rng.normal()))
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
    "verify": 0.5,
}
"""Methods of `Life`, and how often they come."""


def chosen(x: np.ndarray, batch: Any) -> np.ndarray:
    """Return the rows that a `batch` selects, as NumPy does."""
    if batch is None:
        return x
    return x[:batch] if isinstance(batch, int) else x[batch]


def close(got: Any, expected: Any) -> None:
    """
    Raises:
        AssertionError: they differ by more than rounding.
    """
    if isinstance(got, (list, tuple)):
        assert len(got) == len(expected)
        for a, b in zip(got, expected):
            close(a, b)
    else:
        np.testing.assert_allclose(got, np.asarray(expected), rtol=1e-8, atol=1e-9)

"""Values that nobody expects, and the house in which they are tried.

After every attempt, whatever came of it, everything in the `House` is as NumPy says it should be.
With ``SYNK_TESTS=all`` each run draws other examples, many times as many, and shrinks those that
fail.
"""

from __future__ import annotations

import datetime as dt
import decimal
import gc
import os
import warnings
from fractions import Fraction
from typing import Any, Callable, List, Tuple

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from synk_core.exceptions import NotSharedVariable, SynkError, WorkerFailed
from synk_testing.engine import T, engine

LONGER = os.environ.get("SYNK_TESTS") == "all"
CASES = 2000 if LONGER else 40
LONGEST_MESSAGE = 1000


def fuzzing(examples: int) -> Any:
    return settings(
        deadline=None,
        database=None,
        print_blob=True,
        derandomize=not LONGER,
        max_examples=max(1, examples * CASES // 200),
        phases=list(Phase) if LONGER else [Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


class Boom(Exception):
    pass


HOOKS = ["__array__", "__array_interface__", "__bool__", "__eq__", "__float__", "__fspath__"]
HOOKS += ["__getitem__", "__hash__", "__index__", "__int__", "__iter__", "__len__"]
HOOKS += ["dtype", "ndim", "shape"]


def raising(hooks: Tuple[str, ...], base: type = object) -> Any:
    """An object that raises `Boom` where one of these is asked for."""

    def explode(self: Any, *_: Any, **__: Any) -> Any:
        raise Boom("an object of the user's")

    body = {
        name: explode
        if name.startswith("__") and name != "__array_interface__"
        else property(explode)
        for name in hooks
    }
    if "__eq__" in body and "__hash__" not in body:
        body["__hash__"] = object.__hash__
    kind = type("Raising", (base,), body)
    return kind([1.0, 2.0]) if base is list else kind()


class Fibbing:
    """Says that it is an array, and gives something else."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.given


class Subclass(np.ndarray):
    pass


def _endless_list() -> Any:
    endless: List[Any] = []
    endless.append(endless)
    return endless


ODD = [None, True, False, np.True_, ..., NotImplemented, int, len, np]
# Numbers, and what is like one.
ODD += [0, -1, 1, 2, 2**31, 2**63, 2**64 - 1, -(2**63) - 1, 10**30, 0.5, 1e308, 1j]
ODD += [float("nan"), float("inf"), -float("inf"), Fraction(1, 3), decimal.Decimal("1.5")]
ODD += [np.float16("nan"), np.datetime64("2020-01-01"), np.int8(-1), np.uint64(2**64 - 1)]
ODD += [dt.date(2020, 1, 1), "", "abc", "\0", "x" * 5000, b"abc"]
ODD += [{}, {"a": 1}, set(), {1, 2}, range(3), range(10**12), range(10**12, 0, -1)]
ODD += [slice(None), slice(0, 2), slice(0, 0.5), slice(0, 2, 0), slice(0, 10**30), slice(0, "a")]
ODD += [[], (), [[]], [[1], [1, 2]], [None], [True, False], [True, 2], [1.5, "a"], ["a", "b"]]
ODD += [[[0, 1], [2]], [2**70], [list(range(2000))], list(range(5000))]
# Variables that nobody knows, and arrays that are none.
ODD += [T.matrix("stray"), engine.shared(np.zeros(2), name="stray")]
ODD += [engine.shared([1, 2], name="generic")]
ODD += [Fibbing(5), Fibbing("abc"), Fibbing(np.array(["a"], object))]

MAKERS: List[Callable[[], Any]] = [
    _endless_list,
    object,
    lambda: (i for i in range(3)),
    lambda: iter([1.0, 2.0]),
    lambda: memoryview(b"abcd"),
    lambda: bytearray(8),
]

DTYPES = ["?", "i1", "u1", "i8", "u8", "f2", "f4", "f8", "g", "c8", "c16", ">f8", ">i4"]
DTYPES += ["S3", "U2", "S0", "O", "M8[s]", "m8[s]", "V3"]
STRUCTURED = np.dtype([("a", "f8"), ("b", "i4")])
SHAPES = [(4, 3), (3,), (), (0,), (0, 3), (1, 3), (5, 3), (7, 1), (4, 3, 2), (1,) * 10, (2, 0)]
LAYOUTS = ["plain", "strided", "read-only", "masked", "matrix", "unaligned", "subclass"]


@st.composite
def arrays(draw: Any, dtypes: Any = (*DTYPES, STRUCTURED), shapes: Any = SHAPES) -> Any:
    """Arrays of odd dtypes, shapes and layouts, with numbers that are none in them."""
    dtype, shape = np.dtype(draw(st.sampled_from(dtypes))), draw(st.sampled_from(shapes))
    count = int(np.prod(shape))
    numbers = np.arange(count) % 5 - 1
    if dtype.kind in "fc" and count and draw(st.integers(0, 3)) == 0:
        numbers = numbers.astype(float)
        numbers[0] = draw(st.sampled_from([np.nan, np.inf, -np.inf, 1e300]))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if dtype.kind in "SUOV":
            values = np.zeros(shape, dtype)
        else:
            values = numbers.astype(dtype).reshape(shape)
    return laid_out(values, draw(st.sampled_from(LAYOUTS)))


def laid_out(values: np.ndarray, layout: str) -> np.ndarray:
    """The same values in another layout, where that is possible."""
    if layout == "strided" and values.ndim:
        return np.repeat(values, 2, axis=0)[::2]
    if layout == "read-only":
        values = values.copy()
        values.setflags(write=False)
    if layout == "masked" and values.ndim and values.size and values.dtype.names is None:
        mask = np.zeros(values.shape, bool)
        mask.flat[0] = True
        return np.ma.array(values, mask=mask)
    if layout == "matrix" and values.ndim == 2:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.matrix(values)
    if layout == "unaligned" and values.size and values.nbytes and values.dtype.kind != "O":
        raw = np.zeros(values.nbytes + 1, np.uint8)[1:]
        shifted = raw.view(values.dtype).reshape(values.shape)
        shifted[...] = values
        return shifted
    return values.view(Subclass) if layout == "subclass" else values


@st.composite
def anything(draw: Any) -> Any:
    kind = draw(st.integers(0, 7))
    if kind <= 2:
        return draw(st.sampled_from(ODD))
    if kind == 3:
        return draw(st.sampled_from(MAKERS))()
    if kind == 4:
        hooks = draw(st.lists(st.sampled_from(HOOKS), min_size=1, max_size=3, unique=True))
        listish = draw(st.integers(0, 3)) == 0
        return raising(tuple(hooks), list if listish and "__hash__" not in hooks else object)
    if kind == 5:
        nested = draw(st.lists(st.sampled_from(ODD), max_size=3))
        return tuple(nested) if draw(st.booleans()) else nested
    return draw(arrays())


def mostly(good: Any, wrong: Any = None) -> Any:
    wrong = anything() if wrong is None else wrong
    return st.integers(0, 2).flatmap(lambda i: good if i else wrong)


SHARED = ("/dev/shm/synk.", "/memfd:synk-shm")


def mapped(pid: object) -> int:
    with open(f"/proc/{pid}/maps") as maps:
        return sum(any(name in line for name in SHARED) for line in maps)


class House:
    """A runtime, what is in it, and what must be true of it after each attempt."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        x, y = T.dmatrix("x"), T.dscalar("y")
        self.witness = runtime.function(
            [x],
            [(x.sum(axis=0), "sum"), (x, "gather")],
            bcast_inputs=[y],
            on_unused_input="ignore",
            name="witness",
            mode="FAST_COMPILE",
        )
        self._held = [np.arange(3.0), np.ones((2, 3), "float32"), np.arange(3), np.array(7.0)]
        names = ["vector", "matrix", "counts", "scalar"]
        self.variables = [engine.shared(held, name=n) for held, n in zip(self._held, names)]
        self.vector = self.variables[0]
        self.restore()
        self._turn = 0
        self.check()
        self._segments = self._count_segments()
        self._descriptors = self._count_descriptors()

    def restore(self) -> None:
        self.runtime.collectives.broadcast(self.variables, self._held)

    @staticmethod
    def _count_descriptors() -> int:
        names = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
        return len([name for name in names if not name.startswith(SHARED)])

    def attempt(self, act: Callable[[], Any], also: Tuple[type, ...] = ()) -> Tuple[bool, Any]:
        """Return whether it came to a result, and the result, or an error that is right."""
        serial = self.runtime._lifecycle.rank.serial
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return True, act()
            except MemoryError as error:  # the honest answer to a value that no machine can hold
                return False, error
            except Boom as error:
                assert self.runtime._lifecycle.rank.serial == serial, "sent, and then it raised"
                return False, error
            except SynkError as error:
                self._judge(error)
                return False, error
            except also as error:
                return False, error

    def _judge(self, error: BaseException) -> None:
        text = str(error)
        assert text.strip(), f"{type(error).__name__} without a word"
        if not isinstance(error, (WorkerFailed, NotSharedVariable)):
            assert len(text) <= LONGEST_MESSAGE, f"{len(text)} characters: {text[:300]} ..."

    def check(self, unchanged: bool = True) -> None:
        """Assert that the runtime works, and every rank holds what it held, or set that anew."""
        assert not self.runtime.closed, "closed by a wrong argument"
        self._turn += 1
        rows = np.arange(12.0).reshape(4, 3)[: self._turn % 5] + self._turn
        total, gathered = self.witness(rows, 1.0)
        np.testing.assert_array_equal(gathered, rows)
        np.testing.assert_array_equal(total, rows.sum(axis=0))
        if not unchanged:
            self.restore()
        held = self.runtime.collectives.gather(self.variables)
        for variable, found, expected in zip(self.variables, held, self._held):
            for rank, value in enumerate(found):
                np.testing.assert_array_equal(value, expected, err_msg=f"{variable} of rank {rank}")

    @staticmethod
    def _count_segments() -> int:
        gc.collect()
        return mapped("self")

    def check_memory(self, segments: int) -> None:
        """Assert that the runtime has only so many segments more than at first."""
        self.check()
        more = self._count_segments() - self._segments
        assert more <= segments, f"{more} segments more than at first"
        assert self._count_descriptors() <= self._descriptors
        for pid in self.runtime.worker_pids:
            assert mapped(pid) <= segments + 10

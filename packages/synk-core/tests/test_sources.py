"""Inputs in files: a call reads the rows that it needs, and computes as if they were in memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from _ops import FAST

from synk_core import BatchError, InputTypeError, RowSource
from synk_core._wire import arrays as arrays_module
from synk_testing.engine import T
from synk_testing.files import KINDS, StandIn, in_file

ROWS = 50
BATCHES = [
    *(10, slice(3, 20), slice(40, 3, -4), [31, 4, 4, 17, 49, 31, 0], [-1, -50, 3]),
    *(np.arange(ROWS) % 3 == 1, [], None),
]


@pytest.fixture(scope="module")
def values():
    return np.random.RandomState(1).rand(ROWS, 3).astype("float32")


@pytest.fixture(params=KINDS)
def source(request, values, tmp_path):
    return in_file(request.param, values, tmp_path)


@pytest.fixture(scope="module")
def gather(pair):
    x, k = T.fmatrix("x"), T.lvector("k")
    return pair.function([x, k], [(x * 2, "gather"), (k, "gather")], name="f", **FAST)


def rows_of(array, batch):
    if batch is None or isinstance(batch, (int, slice)):
        return array[batch if isinstance(batch, slice) else slice(batch)]
    return array[np.array(batch, None if len(batch) else int)]


def test_a_call_reads_the_rows_that_numpy_would_take(gather, values, source):
    for batch in BATCHES:
        labels = np.arange(ROWS)
        for _ in range(2):  # the second time by the plan of the first
            x, k = gather(source, labels, batch=batch)
            np.testing.assert_array_equal(x, 2 * rows_of(values, batch))
            np.testing.assert_array_equal(k, rows_of(labels, batch))


@pytest.fixture
def threads(monkeypatch):
    in_pieces, noted = arrays_module.copy_in_pieces, []

    def copy_in_pieces(pool, count, *arrays):
        noted.append(count)
        in_pieces(pool, count, *arrays)

    monkeypatch.setattr(arrays_module, "copy_in_pieces", copy_in_pieces)
    monkeypatch.setattr(arrays_module, "available_cores", lambda: 3)
    monkeypatch.setattr(arrays_module, "NEW_THREADS_PIECE", 12)
    return noted


@pytest.mark.parametrize("kind", ["memory map", "fortran"])
def test_a_call_copies_many_rows_by_several_threads(gather, threads, tmp_path, values, kind):
    fortran = np.asfortranarray(values)
    array = fortran if kind == "fortran" else in_file(kind, values, tmp_path)
    for batch in BATCHES:
        labels = np.arange(ROWS, dtype="int8")
        expected = rows_of(values, batch)
        gather(array, labels, batch=batch)
        threads.clear()  # of what was distributed
        np.testing.assert_array_equal(gather(array, labels, batch=batch)[0], 2 * expected)
        assert 3 in threads if len(expected) else not threads


AT_EXIT = """
x = T.fmatrix("x")
runtime = Runtime(1)
f = runtime.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
f(np.ones((2, 2), "float32"))
atexit.register(lambda: print(f(np.ones((1 << 10, 1 << 14), "float32"))))
"""


def test_a_call_at_the_end_of_the_program_takes_large_arrays_too(run_script):
    status, out, err = run_script(AT_EXIT)
    assert (status, float(out)) == (0, 1 << 24), err


def test_a_memory_map_in_another_layout_is_not_copied_whole(tmp_path):
    values = np.random.RandomState(1).rand(5000, 50).astype("float32")
    array = in_file("memory map", np.asfortranarray(values), tmp_path)[:, :20]
    target = np.full((3, 20), np.nan)
    rows = RowSource(array).rows([31, 4, 31])
    tracemalloc.start()
    rows.read(target)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(target, values[[31, 4, 31], :20])
    assert peak < array.nbytes / 10


def test_no_other_rows_are_read(gather, values):
    source = StandIn(values)
    gather(source, np.arange(ROWS), batch=[31, 4, 4, 17])
    gather(source, np.arange(ROWS), batch=slice(2, 9), num_slices=2)
    assert source.read == [3, 7]


def test_rows_travel_in_the_dtype_of_the_file(pair):
    pixels = np.arange(60, dtype="uint8").reshape(20, 3)
    x = T.fmatrix("x")
    mean = pair.function([x], x.mean(), **FAST)
    np.testing.assert_allclose(mean(StandIn(pixels), batch=[19, 2]), pixels[[19, 2]].mean())
    np.testing.assert_allclose(mean(pixels, batch=[19, 2]), pixels[[19, 2]].mean())


def test_an_unfit_source_is_refused_before_anything_is_read(gather, values):
    for wrong, text in (
        (values.astype("float64"), "got dtype float64, expected float32"),
        (values[:, 0], r"got 1 dimensions \(shape \(50,\)\), expected 2"),
    ):
        source = StandIn(wrong)
        with pytest.raises(InputTypeError, match=text):
            gather(source, np.arange(ROWS))
        assert not source.read
    source = StandIn(values)
    with pytest.raises(BatchError, match="got index 50"):
        gather(source, np.arange(ROWS), batch=[3, 50])
    assert not source.read


def test_a_source_that_gives_other_rows_or_fails_is_reported_and_the_function_works_on(
    gather, values
):
    class Short(StandIn):
        def __getitem__(self, rows):
            return super().__getitem__(rows)[1:]

    class Broken(StandIn):
        def __getitem__(self, rows):
            raise OSError("cannot read the chunk")

    for kind, error, text in (
        (Short, InputTypeError, r"got shape \(2, 3\) for 3 rows, expected \(3, 3\)"),
        (Broken, OSError, "cannot read the chunk"),
    ):
        with pytest.raises(error, match=text):
            gather(kind(values), np.arange(ROWS), batch=[5, 1, 2])
        x, _ = gather(StandIn(values), np.arange(ROWS), batch=[5, 1, 2])
        np.testing.assert_array_equal(x, 2 * values[[5, 1, 2]])


def test_a_broadcast_source_is_read_as_a_whole(pair, values):
    x, k = T.fmatrix("x"), T.fvector("k")
    f = pair.function([k], [(k + x.sum(), "gather")], bcast_inputs=[x], **FAST)
    file = type("File", (StandIn,), {"__array__": lambda self, *_, **__: self._array})
    (got,) = f(values[:, 0], file(values), batch=2)
    np.testing.assert_allclose(got, values[:2, 0] + values.sum(), rtol=1e-6)


def test_an_array_in_memory_is_no_source(pair, values, tmp_path):
    mapped = in_file("memory map", values, tmp_path)
    assert RowSource.of(mapped) is not None
    in_memory = [mapped + 1, np.asarray(mapped), pair.data(values), values[0, 0], values.tolist()]
    for value in [*in_memory, T.fmatrix(), None, "text"]:
        assert RowSource.of(value) is None
    for attribute in ("iloc", "gpudata", "nnz"):  # of Pandas, pygpu and SciPy's sparse matrices
        other = StandIn(values)
        assert RowSource.of(other) is not None
        setattr(other, attribute, None)
        assert RowSource.of(other) is None


def test_a_source_shows_its_array(values, tmp_path):
    mapped = in_file("memory map", values, tmp_path)
    assert repr(RowSource.of(mapped)) == "<memmap float32 shape=(50, 3)>"
    source = RowSource.of(StandIn(values))
    assert (len(source), source.ndim, source.shape) == (50, 2, (50, 3))
    assert RowSource.of(source) is source
    np.testing.assert_array_equal(source, values)

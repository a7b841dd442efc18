"""Index batches select each row once, in any size, in an order that a seed repeats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synkhronos.extensions.batches import index_batches


@given(
    num_rows=st.integers(0, 60),
    batch_size=st.integers(1, 70),
    seed=st.none() | st.integers(0, 5),
    drop_last=st.booleans(),
)
def test_every_row_once_in_batches_of_the_size(num_rows, batch_size, seed, drop_last):
    rng = None if seed is None else np.random.default_rng(seed)
    batches = list(index_batches(num_rows, batch_size, rng, drop_last=drop_last))
    rows = [int(row) for batch in batches for row in batch]
    assert all(batch.dtype == np.int64 and batch.ndim == 1 for batch in batches)
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert len(set(rows)) == len(rows)
    left_out = num_rows % batch_size if drop_last else 0
    assert len(rows) == num_rows - left_out
    assert set(rows) <= set(range(num_rows))
    if seed is None:
        assert rows == list(range(len(rows)))


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState])
def test_a_seed_repeats_the_order_and_epochs_differ(make):
    first, again = make(3), make(3)
    epochs = [np.concatenate(list(index_batches(50, 8, first))) for _ in range(2)]
    repeats = [np.concatenate(list(index_batches(50, 8, again))) for _ in range(2)]
    np.testing.assert_array_equal(epochs, repeats)
    assert not np.array_equal(epochs[0], epochs[1])


@pytest.mark.parametrize("num_rows, batch_size", [(10, 0), (10, -1), (-1, 5)])
def test_wrong_sizes_are_refused_at_the_call(num_rows, batch_size):
    with pytest.raises(ValueError, match="expected"):
        index_batches(num_rows, batch_size)


def test_a_seed_in_the_place_of_a_generator_is_refused_at_the_call():
    with pytest.raises(TypeError, match=r"rng is 3; expected a generator such as.*default_rng"):
        index_batches(10, 5, 3)

"""A few of the random graphs that a nightly run draws by the thousand."""

from __future__ import annotations

from collections import Counter

import numpy as np
from exactness.random_graphs import outcome


def test_no_random_graph_gives_a_wrong_number_without_a_word():
    counts = Counter()
    for number in range(20):
        result, program = outcome(np.random.RandomState([1, number]), 3)
        assert not result.isupper(), program
        counts[result] += 1
    assert counts["right"] > 3
    assert counts["warned of"] + counts["refused"] > 3

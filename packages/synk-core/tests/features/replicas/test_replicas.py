"""Variables on which the ranks may not agree are refused, or warned of."""

from __future__ import annotations

import numpy as np
import pytest
from _features import UNPROVED
from _ops import FAST, picky

from synk_core import Runtime
from synk_core.exceptions import ReplicasDiffer, ReplicaWarning, SynkError, WorkerFailed
from synk_testing.engine import STREAMS, T, engine

x = T.dvector("x")

pytestmark = pytest.mark.c_code


@pytest.fixture(scope="module")
def loose():
    with Runtime(2, atomic=False) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def loose_and_identical():
    with Runtime(2, atomic=False, random_streams="identical") as runtime:
        yield runtime


def ranks_of(runtime, *variables):
    return [runtime.collectives.gather(v).tolist() for v in variables]


@pytest.mark.usefixtures("unproved")
def test_without_atomic_calls_variables_that_may_differ_are_refused_until_broadcast(loose):
    s = engine.shared(np.zeros(()), name="steps")
    other = engine.shared(np.zeros(()), name="other")
    f = loose.function([x], (picky(x).sum(), "sum"), updates=[(s, s + 1)], **FAST)
    g = loose.function([x], (x.sum() + 0 * other, "sum"), **FAST)
    f(np.zeros(2))
    with pytest.raises(WorkerFailed, match=r"may\s+differ now. Use broadcast\(\)"):
        f(np.array([0.0, 200.0]))
    assert sorted(ranks_of(loose, s)[0]) == [1.0, 2.0]  # a look is allowed
    for refused in (
        lambda: f(np.zeros(2)),
        lambda: loose.collectives.all_reduce(s),
        lambda: loose.step(g.delayed(np.zeros(2)), f.delayed(np.zeros(2))),
    ):
        with pytest.raises(ReplicasDiffer, match=r"'steps'.*broadcast\(\)") as caught:
            refused()
        assert isinstance(caught.value, SynkError)
    assert g(np.ones(2)) == 2.0
    assert sorted(ranks_of(loose, s)[0]) == [1.0, 2.0]
    many = engine.shared(np.zeros(()), name="many")
    h = loose.function([x], (picky(x).sum(), "sum"), updates=[(many, many + 1)], **FAST)
    with pytest.raises(WorkerFailed):
        h(np.array([0.0, 200.0]))
    with pytest.raises(ReplicasDiffer, match="'many'"):
        loose.step(loose.delayed.broadcast(s), h.delayed(np.zeros(2)))
    with pytest.raises(ReplicasDiffer, match="'steps'"):
        f(np.zeros(2))
    loose.step(loose.delayed.broadcast([s, many]), h.delayed(np.zeros(2)))
    assert f(np.ones(2)) == 2.0
    assert len(set(ranks_of(loose, s)[0])) == 1


@pytest.mark.usefixtures("unproved")
@pytest.mark.parametrize("kind", STREAMS)
def test_without_atomic_calls_streams_that_may_differ_are_refused_if_they_are_to_be_the_same(
    loose, loose_and_identical, kind
):
    def drawing():
        return [x], [(STREAMS[kind](3).uniform(size=picky(x)[:1].shape), "gather")]

    good, bad = np.zeros(2), np.array([0.0, 200.0])
    f = loose_and_identical.function(*drawing(), **FAST)
    first = f(good)[0]
    assert first[0] == first[1]
    with pytest.raises(WorkerFailed, match="not this"):
        f(bad)
    with pytest.raises(ReplicasDiffer, match=r"seed\(n\)"):
        f(good)
    loose_and_identical.seed(3)
    again = f(good)[0]
    assert again[0] == again[1]
    f = loose.function(*drawing(), **FAST)
    with pytest.raises(WorkerFailed, match="not this"):
        f(bad)
    drawn = f(good)[0]  # they are each rank's own, whatever was drawn
    assert drawn[0] != drawn[1]


@pytest.mark.feature("proof")
def test_a_value_set_in_the_master_alone_is_warned_of(trio):
    rate = engine.shared(1.0)
    f = trio.function([x], (x * rate, "gather"), name="scaled", **UNPROVED, **FAST)
    trio.distribute()
    rate.name = "rate"
    rate.set_value(2.0)
    with pytest.warns(ReplicaWarning, match="'rate' has been given a value in the master only"):
        assert f(np.ones(3)).tolist() == [2.0, 1.0, 1.0]
    for change in (
        lambda: trio.collectives.broadcast(rate),
        lambda: (rate.set_value(3.0), trio.collectives.broadcast(rate)),
        lambda: trio.collectives.broadcast(rate, 4.0),
        lambda: trio.collectives.set_value(0, rate, 5.0),
        lambda: trio.collectives.all_reduce(rate),
        lambda: f.verify(np.ones(4)),
        lambda: rate.set_value(rate.get_value()),
    ):
        change()
        f(np.ones(3))
    rate.set_value(7.0)
    with pytest.warns(ReplicaWarning):
        f(np.ones(3))

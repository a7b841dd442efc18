"""Ctrl-C, once and twice, at work and in collectives; and what a failure leaves of variables."""

from __future__ import annotations

import json

import pytest
from _program import run_program, told_by

SOON_S = 15

# Rows above 0 make the last rank slow, on the host, with the device's work before and after it;
# above 1 it does so in one long C call. Rows below 0 do the same in the master.
SLOW = """
import cloudpickle
cloudpickle.register_pickle_by_value(sys.modules["__main__"])
# Whoever started this may have had it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
MASTER = os.getpid()

@as_op([T.fmatrix], [T.fmatrix])
def slow(array):
    if not array.size or not array.any():
        return array
    if (os.getpid() == MASTER) == (array.min() < 0):
        if array.max() > 1:
            sum(range(3_000_000_000))
        time.sleep(30)
    return array

fork(**json.loads(os.environ.get("MORE", "{}")))
x = T.fmatrix("x")
w = theano.shared(np.arange(500_000, dtype="float32"), name="w")
g = theano.shared(np.zeros(500_000, "float32"), name="g")
f = synk.function([x], (slow(x * 1).sum(), "sum"), updates=[(g, w * 2 + x.sum())], name="slow")
h = synk.function([], updates=[(w, w - 0.5 * g)], name="move")
good = np.zeros((2 * N, 3), "float32")

def bad(value, place):
    rows = good.copy()
    rows[place] = value
    return rows

def once(rows):
    synk.step(f.delayed(rows), synk.delayed.all_reduce(g), h)

def strike(*after_s):
    def run():
        for seconds in after_s:
            time.sleep(seconds)
            os.kill(MASTER, signal.SIGINT)
    threading.Thread(target=run).start()

def held():
    # The same on all ranks, in one number each.
    found = []
    for variable in (w, g):
        values = synk.gather(variable)
        assert all(np.array_equal(values[0], value) for value in values)
        found.append(float(values[0, 1]))
    return found

once(good)
"""


def test_ctrl_c_gives_everything_back_and_all_goes_on(device_set):
    """In a step: a worker computes while the others wait for it, the master does, both do."""
    told = told_by(device_set, SLOW)("""
before, results = held(), []
both = bad(0.5, -1)
both[0] = -1
for rows in [bad(-1, 0)] + [bad(0.5, -1), both] * (N > 1):
    strike(1.0)
    results.append(attempt(once, rows))
    results[-1]["held"] = held()
once(good)
tell(before=before, results=results, after=held(), pids=len(workers()))
""")
    for result in told["results"]:
        assert result["error"] == "KeyboardInterrupt", told
        assert result["seconds"] < SOON_S, told
        assert result["held"] == told["before"], told
    # w - 0.5 * 2 * w, from 1.
    assert told["before"] == [0.0, 2.0]
    assert told["after"] == [0.0, 0.0]
    assert told["pids"] == device_set.ranks - 1


@pytest.mark.parametrize("strikes", [1, 2])
def test_ctrl_c_ends_what_does_not_listen(several, strikes):
    """A worker that is in one long C call: after two seconds all is closed, at once by a second."""
    told = told_by(several, SLOW)(f"""
strike(*[1.0, 0.3][:{strikes}])
result = attempt(once, bad(2, -1))
tell(result=result, after=attempt(once, good), left=len(workers()))
""")
    assert told["result"]["error"] == "KeyboardInterrupt", told
    assert told["result"]["seconds"] < SOON_S, told
    assert told["after"]["error"] == "Closed", told
    assert told["left"] == 0


def test_ctrl_c_at_any_moment_leaves_the_ranks_equal(several):
    """Steps one after the other, interrupted again and again: each is done on all ranks or none."""
    told = told_by(several, SLOW)("""
count = theano.shared(np.zeros(3, "float32"), name="count")
rising = synk.function([], updates=[(count, count + 1), (w, w + 1)])
steps = [0]

def endless():
    while True:
        synk.step(rising, synk.delayed.all_reduce([count, w]))
        steps[0] += 1

synk.broadcast(w, np.zeros(500_000, "float32"))
errors, off = [], []
for k in range(12):
    strike(0.05 + 0.037 * k)
    errors.append(attempt(endless)["error"])
    counts, values = synk.gather(count), synk.gather(w)
    assert (counts == counts[0, 0]).all() and (values == values[0, 0]).all(), (counts, values)
    assert values[0, 0] == counts[0, 0], (counts, values)
    # The step that was interrupted may have been done.
    off.append(float(counts[0, 0]) - steps[0])
    steps[0] = int(counts[0, 0])
tell(errors=errors, off=off, steps=steps[0], pids=len(workers()))
""")
    assert told["errors"] == ["KeyboardInterrupt"] * 12, told
    assert set(told["off"]) <= {0.0, 1.0}, told
    assert told["steps"] > 0
    assert told["pids"] == several.ranks - 1


def test_a_worker_that_is_stopped_is_named_with_what_it_did(several, limit_s):
    told = told_by(several, SLOW, MORE=json.dumps({"timeout_s": limit_s}))("""
def stop():
    time.sleep(1)
    os.kill(workers()[-1], signal.SIGSTOP)

threading.Thread(target=stop).start()
result = attempt(once, bad(0.5, -1))
tell(result=result, left=len(workers()))
""")
    last = several.ranks - 1
    result = told["result"]
    assert result["error"] == "WorkerStalled", told
    assert (result["rank"], result["doing"]) == (last, "computing function 'slow'"), told
    assert "stopped" in result["text"], told
    assert result["seconds"] < limit_s + SOON_S
    assert told["left"] == 0


def test_a_master_that_is_killed_in_the_midst_of_steps(several):
    """Nobody is left, whatever they waited for on their devices (`run_program` looks)."""
    ended = run_program(several, SLOW)("""
threading.Timer(1.5, os.kill, (MASTER, signal.SIGKILL)).start()
while True:
    once(good)
""")
    assert ended.status == -9, str(ended)

"""Ctrl-C at work and in collectives. Workers that do not listen are ended as on any device."""

from __future__ import annotations

from _program import told_by

SOON_S = 15

# Rows above 0 make the last rank slow, on the host, with the device's work before and after it.
# Rows below 0 do the same in the master.
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
        time.sleep(30)
    return array

fork()
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
    found = []
    for variable in (w, g):
        values = synk.gather(variable)
        assert all(np.array_equal(values[0], value) for value in values)
        found.append(float(values[0, 1]))
    return found

once(good)
"""


def test_ctrl_c_restores_all_values_and_work_continues(device_set):
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
    assert told["before"] == [0.0, 2.0]
    assert told["after"] == [0.0, 0.0]
    assert told["pids"] == device_set.ranks - 1

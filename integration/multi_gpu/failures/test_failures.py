"""A rank that raises, dies, stops or runs out of memory is an error in the master, soon."""

from __future__ import annotations

import json

import pytest
from _program import run_program, told_by

SOON_S = 15

# Rows above 0 make `act` happen; with the device's work before and after it.
BAD = """
ME = os.getpid()

def misbehaving(act):
    @as_op([T.fmatrix], [T.fmatrix])
    def behave(array):
        if array.max(initial=0) > 0 and os.getpid() != MASTER:
            act()
        return array
    x = T.fmatrix("x")
    return x, behave(x * 1) * 2

MASTER = ME
good = np.zeros((2 * N, 3), "float32")
bad = good.copy()
bad[-1] = 1
fork(**json.loads(os.environ.get("MORE", "{}")))
s = theano.shared(np.zeros(500_000, "float32"), name="s")
import cloudpickle
cloudpickle.register_pickle_by_value(sys.modules["__main__"])
"""


KILLED_AT = {
    "computing": """
x, y = misbehaving(lambda: os.kill(os.getpid(), signal.SIGKILL))
f = synk.function([x], (y.sum(), "sum"))
f(good)
result = attempt(f, bad)
""",
    # The others have sent theirs, and wait for the sum.
    "while the others wait inside a collective": """
x, y = misbehaving(lambda: (time.sleep(1.5), os.kill(os.getpid(), signal.SIGKILL)))
f = synk.function([x], updates=[(s, s + y.sum())])
f(good)
synk.all_reduce(s)
result = attempt(synk.step, f.delayed(bad), synk.delayed.all_reduce(s), synk.delayed.gather(s))
""",
    "in the midst of many collectives": """
synk.all_reduce(s)
threading.Timer(0.5, os.kill, (workers()[-1], signal.SIGKILL)).start()
def endless():
    end = time.monotonic() + 60
    while time.monotonic() < end:
        synk.all_reduce(s, op="avg")
result = attempt(endless)
""",
}


@pytest.mark.parametrize("when", KILLED_AT)
def test_a_worker_that_is_killed(several, when):
    told = told_by(several, BAD + KILLED_AT[when])("""
after = attempt(synk.all_reduce, s)
left = len(workers())
synk.close()
fork()
x = T.fmatrix("x")
t = theano.shared(np.ones(3, "float32"), name="t")
again = float(synk.function([x], (x.sum() + t.sum(), "sum"))(good))
synk.all_reduce(t, op="sum")
tell(result=result, after=after, left=left, again=again, t=float(t.get_value()[0]))
""")
    assert told["result"]["error"] == "WorkerDied", told
    assert told["result"]["signal"] == "SIGKILL", told
    assert told["result"]["seconds"] < SOON_S
    assert told["after"]["error"] == "Closed", told
    assert told["left"] == 0
    assert told["again"] == 3 * several.ranks
    assert told["t"] == several.ranks


def test_a_worker_that_stops_is_given_up_after_the_time_that_was_set(several, limit_s):
    told = told_by(several, BAD, MORE=json.dumps({"timeout_s": limit_s}))("""
x, y = misbehaving(lambda: None)
f = synk.function([x], (y.sum(), "sum"))
f(good)
synk.all_reduce(s)
pid = workers()[-1]
os.kill(pid, signal.SIGSTOP)
result = attempt(synk.all_reduce, s)
tell(result=result, after=attempt(f, good), left=len(workers()))
""")
    assert told["result"]["error"] is not None, told
    assert {"TimeoutError", "SynkError"} & set(told["result"]["kinds"]), told
    assert told["result"]["seconds"] < limit_s + SOON_S
    assert told["after"]["error"] == "Closed", told
    assert told["left"] == 0


def test_a_worker_that_runs_out_of_device_memory(device_set):
    if device_set.kind != "cuda":
        pytest.skip("only a GPU's memory is small enough to be used up")
    told = told_by(device_set)("""
fork()
k = T.ivector("k")
# A million squared, in one piece: more than any device has.
v = theano.shared(np.ones(1_000_000, "float32"), name="v")
some = v[: T.cast(k.max(), "int64")]
f = synk.function([k], (T.tanh(T.outer(some, some)).sum(), "sum"), name="hungry", proof=False)
good = np.full(2 * N, 10, "int32")
bad = good.copy()
bad[-1] = 1_000_000
f(good)
result = attempt(f, bad)
again = attempt(f, good)
tell(result=result, again=again)
""")
    assert told["result"]["error"] is not None, told
    assert "memory" in told["result"]["text"].lower(), told
    assert told["result"]["rank"] == (device_set.ranks - 1 or None), told
    assert told["result"]["seconds"] < SOON_S
    assert told["again"]["error"] is None, told


@pytest.mark.parametrize("end", ["os._exit(3)", "1 / 0"])
def test_whatever_ends_the_master_ends_the_workers(device_set, end):
    """`run_program` fails if any process of the program is left."""
    ended = run_program(device_set, BAD)(f"""
x, y = misbehaving(lambda: None)
f = synk.function([x], (y.sum(), "sum"))
f(good)
synk.all_reduce(s)
tell(pids=len(workers()))
{end}
""")
    assert ended.status != 0, str(ended)
    assert ended.told["pids"] == device_set.ranks - 1, str(ended)


def test_a_master_that_is_killed_while_workers_wait_for_it(several):
    ended = run_program(several, BAD)("""
@as_op([T.fmatrix], [T.fmatrix])
def slow(array):
    if os.getpid() == MASTER and array.max(initial=0) > 0:
        time.sleep(60)
    return array
x = T.fmatrix("x")
f = synk.function([x], updates=[(s, s + slow(x).sum())])
f(good)
synk.all_reduce(s)
threading.Timer(1, os.kill, (MASTER, signal.SIGKILL)).start()
synk.step(f.delayed(good + 1), synk.delayed.all_reduce(s))
""")
    assert ended.status == -9, str(ended)
    assert ended.seconds < 60

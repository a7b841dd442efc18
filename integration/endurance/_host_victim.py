"""Work at random on all ranks of a launcher, until it is over or a rank is killed.

    synkhronos run _host_victim.py SEED

Prints facts as JSON: what it does, and the exception that ended it.
"""

import json
import random
import re
import sys
import time


def say(**facts):
    print("@" + json.dumps(facts), flush=True)


say(state="importing")

import numpy as np  # noqa: E402 - the first line is to come early
import theano  # noqa: E402
import theano.tensor as T  # noqa: E402

import synkhronos as synk  # noqa: E402

rng = random.Random(int(sys.argv[1]))
rows = np.arange(300.0).reshape(100, 3)
RUNTIMES, WORK_S = 2, 0.8


def work():
    say(state="starting")
    synk.fork(use_gpu=False, verbose=False, timeout_s=15)
    x = T.dmatrix("x")
    w = theano.shared(np.zeros(3), "w")
    step = synk.function([x], x.mean(), updates=[(w, w + x.sum(axis=0))])
    data = synk.data(rows)

    def write():
        data[rng.randrange(100)] = rng.random()

    def grow():
        data.set_value(np.tile(rows, (rng.randrange(1, 50), 1)))

    acts = {
        "calling": lambda: step(data),
        "calling with a batch": lambda: step(data, batch=[rng.randrange(100) for _ in range(9)]),
        "calling with slices": lambda: step(data, num_slices=3),
        "in a step": lambda: synk.step(step.delayed(rows), synk.delayed.all_reduce(w, "avg")),
        "reducing": lambda: synk.all_reduce(w, "avg"),
        "distributing": lambda: synk.function([x], x.sum())(data),
        "writing": write,
        "growing": grow,
        "idle": lambda: time.sleep(0.2),
    }
    end = time.monotonic() + WORK_S
    while time.monotonic() < end:
        state = rng.choice(list(acts))
        say(state=state)
        acts[state]()
    say(state="closing")
    synk.close()
    say(state="between")
    time.sleep(0.2)


try:
    for _ in range(RUNTIMES):
        work()
except Exception as error:
    rank = getattr(error, "rank", None)
    named = re.search(r"rank (\d+)", str(error))
    if rank is None and named:
        rank = int(named.group(1))
    say(error=[type(error).__name__, str(error)[:300], rank])
    raise
say(state="over")

"""Failures amid steps whose gradient is replayed as a CUDA graph; and ten thousand such steps."""

from __future__ import annotations

import os

import pytest
from _program import told_by
from _sets import NOISE_MIB

SOON_S = 15
GROWTH_MIB = 16
"""Of a process's memory on the host, over eight thousand steps."""

TRAIN = """
import cloudpickle, gc, subprocess
cloudpickle.register_pickle_by_value(sys.modules["__main__"])
signal.signal(signal.SIGINT, signal.default_int_handler)
MASTER = os.getpid()

def build():
    global w, g, count, gradient, move, rows, picky
    fork(graphs="always")
    rng = np.random.RandomState(0)
    x = T.fmatrix("x")
    w = theano.shared((0.05 * rng.standard_normal((256, 256))).astype("float32"), name="w")
    g = theano.shared(np.zeros((256, 256), "float32"), name="g")
    count = theano.shared(np.zeros(3, "float32"), name="count")
    loss = T.sqr(T.tanh(x.dot(w)).dot(w) - x).mean()
    gradient = synk.function([x], loss, updates=[(g, T.grad(loss, w))], name="gradient")
    move = synk.function([], updates=[(w, w - np.float32(0.1) * g), (count, count + 1)])
    rows = synk.data(rng.random_sample((64 * N, 256)).astype("float32"))

    @as_op([T.fmatrix], [T.fmatrix])
    def refuse(array):
        if array.max() > 0 and (N == 1 or os.getpid() != MASTER):
            raise ValueError("cannot stand it")
        return array

    picky = synk.function([x], (refuse(x * 1).sum(), "sum"), updates=[(g, g * 0)], name="picky")
    for _ in range(6):
        step()
    assert is_replayed(), synk.stats()["gradient"].graph

def step(*more):
    acts = gradient.delayed(rows), synk.delayed.all_reduce(g, "avg"), move, *more
    return float(synk.step(*acts)[0])

def is_replayed():
    return synk.stats()["gradient"].graph == "replayed"

def held():
    values, counts = synk.gather(w), synk.gather(count)
    assert all(np.array_equal(values[0], value) for value in values)
    assert (counts == counts[0, 0]).all(), counts
    return values[0], float(counts[0, 0])

def strike(after_s):
    def run():
        time.sleep(after_s)
        os.kill(MASTER, signal.SIGINT)
    threading.Thread(target=run).start()

build()
"""


@pytest.fixture
def gpus(device_set):
    if device_set.kind != "cuda":
        pytest.skip("only CUDA devices replay functions")
    return device_set


def test_a_rank_that_raises_after_the_gradient_undoes_it_and_replays_go_on(gpus):
    told = told_by(gpus, TRAIN)("""
bad = np.ones((2 * N, 256), "float32")
results = []
for _ in range(3):
    values, number = held()
    results.append(attempt(step, picky.delayed(bad)))
    after, same = held()
    assert np.array_equal(values, after) and number == same
before = step()
for _ in range(50):
    last = step()
tell(results=results, before=before, last=last, number=held()[1], replayed=is_replayed())
""")
    for result in told["results"]:
        expected = "ValueError" if gpus.ranks == 1 else "WorkerFailed"
        assert result["error"] == expected, told
        assert result["seconds"] < SOON_S
    assert told["last"] < told["before"], "it does not learn any more"
    assert told["number"] == 6 + 51
    assert told["replayed"]


def test_a_worker_that_is_killed_amid_replays(gpus, several):
    told = told_by(gpus, TRAIN)("""
steps = [6]
def endless():
    while True:
        step()
        steps[0] += 1
threading.Timer(0.7, os.kill, (workers()[-1], signal.SIGKILL)).start()
result = attempt(endless)
own = count.get_value().tolist()
left = len(workers())
synk.close()
build()
tell(result=result, own=own, steps=steps[0], left=left, again=held()[1], replayed=is_replayed())
""")
    assert told["result"]["error"] == "WorkerDied", told
    assert told["result"]["seconds"] < SOON_S
    assert told["own"] == [told["steps"]] * 3, told
    assert (told["left"], told["again"], told["replayed"]) == (0, 6, True), told


def test_ctrl_c_amid_replays_leaves_the_ranks_equal(gpus):
    told = told_by(gpus, TRAIN)("""
steps = [6]
def endless():
    while True:
        step()
        steps[0] += 1
errors, off = [], []
for k in range(12):
    strike(0.05 + 0.037 * k)
    errors.append(attempt(endless)["error"])
    number = held()[1]
    # The step that was interrupted may have been done.
    off.append(number - steps[0])
    steps[0] = int(number)
step()
tell(errors=errors, off=off, replayed=is_replayed(), pids=len(workers()))
""")
    assert told["errors"] == ["KeyboardInterrupt"] * 12, told
    assert set(told["off"]) <= {0.0, 1.0}, told
    assert told["replayed"], told
    assert told["pids"] == gpus.ranks - 1


def test_memory_that_runs_out_amid_replays(gpus):
    """NCCL takes memory for the first collective of each kind, so each kind was used before."""
    if "SYNK_DEVICE_ALONE" not in os.environ:
        pytest.skip("it takes all memory of the GPU: only where nothing else runs (--jobs 1)")
    told = told_by(gpus, TRAIN)("""
import pygpu
from theano.gpuarray.type import get_context
held()
context, taken, size = get_context(None), [], 1 << 32
while size >= 1 << 10:
    try:
        taken.append(pygpu.empty((size,), dtype="uint8", context=context))
    except Exception:
        size >>= 1
number, results, kept = float(count.get_value()[0]), [], []
for _ in range(8):
    kept += [variable.container.storage[0] for variable in (w, g, count)]
    results.append(attempt(step))
failed = sum(result["error"] is not None for result in results)
del taken, kept
gc.collect()
counted = held()[1]
last = [step() for _ in range(10)]
tell(results=results, failed=failed, number=number, counted=counted, last=last, end=held()[1])
""")
    for result in told["results"]:
        if result["error"] is not None:
            assert "memory" in result["text"].lower(), result
    assert told["counted"] == told["number"] + 8 - told["failed"], told
    assert told["end"] == told["counted"] + 10
    assert told["last"][-1] < told["last"][0], told


def test_ten_thousand_replayed_steps_take_no_memory(gpus):
    told = told_by(gpus, TRAIN, timeout_s=170)("""
def memory():
    gc.collect()
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    used = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    gpu = [int(line) for line in used.split()] if "SYNK_DEVICE_ALONE" in os.environ else []
    pids = [MASTER, *workers()]
    host = [int(open(f"/proc/{pid}/statm").read().split()[1]) * 4096 / 2**20 for pid in pids]
    return gpu, host

for _ in range(2000):
    step()
first, began = memory(), time.monotonic()
for _ in range(8000):
    last = step()
seconds = time.monotonic() - began
tell(first=first, last=memory(), loss=last, number=held()[1], replayed=is_replayed(),
     ms=1000 * seconds / 8000)
""")
    assert told["replayed"], told
    assert told["number"] == 10_006, told
    (gpu, host), (gpu_after, host_after) = told["first"], told["last"]
    assert all(after <= before + NOISE_MIB for before, after in zip(gpu, gpu_after)), told
    for before, after in zip(host, host_after):
        assert after - before < GROWTH_MIB, told

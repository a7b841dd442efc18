"""Arrays travel through joblib and its loky as handles, once that is asked for."""

from __future__ import annotations

import pytest

import synk_shm as shm

joblib = pytest.importorskip("joblib")

WORK = """
import joblib
from joblib.externals.loky import get_reusable_executor

def fill(a, i):
    a[i] = i + 1
    return shm.is_shared(a), type(a).__name__

def make(n):
    return shm.full(n, n)

def attempt(a):
    try:
        a[0] = 5
    except ValueError:
        return "read-only"
    return float(a[0])

def total(n):
    return float(shm.ones(n).sum())

def run(backend, function, *arguments):
    calls = [joblib.delayed(function)(*each) for each in arguments]
    return joblib.Parallel(2, backend=backend)(calls)

if __name__ == "__main__":
    main(*sys.argv[1:])
    get_reusable_executor().shutdown(wait=True)
"""


@pytest.fixture
def jobs(script):
    def run(code: str, *arguments: object) -> None:
        before, after = WORK.split("if __name__")
        script.run(f"{before}{code}\nif __name__{after}", *arguments)

    return run


@pytest.mark.parametrize("backend", ["loky", "multiprocessing", "threading"])
def test_arrays_are_the_same_memory(jobs, backend):
    jobs(
        """
def main(backend):
    shm.register_joblib()
    shm.register_joblib()  # once more does no harm
    for n in (10, 300_000):
        a = shm.zeros(n)
        assert run(backend, fill, (a[1:], 0), (a[1:], 1)) == [(True, "ndarray")] * 2
        assert a[:4].tolist() == [0, 1, 2, 0]
        fixed = shm.attach(shm.handle(a), readonly=True)
        assert run(backend, attempt, (fixed,), (fixed,)) == ["read-only"] * 2
        made = run(backend, make, (2,), (3,))
        assert [b.tolist() for b in made] == [[2, 2], [3, 3, 3]]
        assert all(shm.is_shared(b) for b in made)
        del made, fixed
        gc.collect()
        if backend != "multiprocessing":  # which kills its workers, as leaving `with Pool()` does
            get_reusable_executor().shutdown(wait=True)
            assert mine() == [shm.segment(a).name]
""",
        backend,
    )


OTHERS = """
def main(backend):
    shm.register_joblib()
    kept = shm.zeros(3)
    for n, expected in ((10, 5.0), (300_000, "read-only")):
        x = np.zeros(n)
        assert run(backend, attempt, (x,), (x,)) == [expected] * 2
        assert not x.any()
"""
# Arguments go by handle; what the workers of loky return is copied.
EXECUTOR = """
def main(_):
    shm.register_joblib()
    a = shm.zeros(10)
    executor = get_reusable_executor(2)
    assert executor.submit(fill, a, 4).result(60) == (True, "ndarray")
    assert a[4] == 5
    made = executor.submit(make, 3).result(60)
    assert made.tolist() == [3, 3, 3] and not shm.is_shared(made)
"""
# A worker of loky has no sentinel of its parent; it leaves nothing, and prints nothing.
WORKERS = """
def main(backend):
    assert run(backend, total, (3,), (4,)) == [3, 4]
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("backend", "code"),
    [("loky", OTHERS), ("multiprocessing", OTHERS), ("loky", EXECUTOR), ("loky", WORKERS)],
    ids=["loky", "multiprocessing", "executor", "workers"],
)
def test_other_arrays_other_executors_and_workers(jobs, backend, code):
    jobs(code, backend)


@pytest.mark.parametrize("missing", ["joblib.pool", "joblib.executor"])
def test_a_joblib_of_another_make_is_refused(monkeypatch, missing):
    from joblib import executor, pool

    makers = {module.__name__: module.get_memmapping_reducers for module in (executor, pool)}
    monkeypatch.delattr(f"{missing}.get_memmapping_reducers")
    with pytest.raises(ImportError, match="reducers in another way"):
        shm.register_joblib()
    for module in (executor, pool):
        if module.__name__ != missing:
            assert module.get_memmapping_reducers is makers[module.__name__]

"""The choice of a BLAS: right numbers, private folders, many processes at once."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from synk_theano_compat._toolchain import blas
from synk_theano_compat._toolchain.compiler import find_compiler

COMPILER = find_compiler(None)

pytestmark = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="needs Linux and a C++ compiler"
)

NUMBERS = """
import theano, theano.tensor as T, numpy as np
rng = np.random.RandomState(1)
for dtype, digits in DTYPES:
    def check(got, expected):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, expected, rtol=digits, atol=10 * digits)
    def ops(f):
        return {type(node.op).__name__ for node in f.maker.fgraph.toposort()}
    a, b = T.matrix(dtype=dtype), T.matrix(dtype=dtype)
    v, w = T.vector(dtype=dtype), T.vector(dtype=dtype)
    A, B = rng.randn(40, 30).astype(dtype), rng.randn(30, 20).astype(dtype)
    V, W = rng.randn(30).astype(dtype), rng.randn(40).astype(dtype)
    dot = theano.function([a, b], T.dot(a, b))
    for x, y in ((A, B), (A[::2], B[:, ::3]), (A[:, ::-1], B[::-1]), (B.T, A.T), (A[:1], B)):
        check(dot(x, y), x.dot(y))
    z = theano.shared(np.ones((40, 20), dtype))
    f = theano.function([a, b], updates=[(z, np.asarray(0.5, dtype) * z + 2 * T.dot(a, b))])
    assert "Gemm" in ops(f)
    f(A, B)
    check(z.get_value(), 0.5 + 2 * A.dot(B))
    f = theano.function([a, v], T.dot(a, v))
    for x in (A, A[::2], A[:, ::-1], np.asfortranarray(A)):
        check(f(x, V), x.dot(V))
    check(f(A[:, :0], V[:0]), np.zeros(40, dtype))
    r = theano.shared(np.ones((40, 30), dtype))
    f = theano.function([v, w], updates=[(r, r + T.outer(w, v))])
    f(V, W)
    check(r.get_value(), 1 + np.outer(W, V))
    check(theano.function([v, w], T.dot(v, w[:30]))(V, W), V.dot(W[:30]))
    s, t = T.tensor3(dtype=dtype), T.tensor3(dtype=dtype)
    S, U = rng.randn(5, 6, 7).astype(dtype), rng.randn(5, 7, 4).astype(dtype)
    f = theano.function([s, t], T.batched_dot(s, t))
    check(f(S, U), S @ U)
    check(f(S[::2], U[::2]), S[::2] @ U[::2])
    x, k = T.tensor4(dtype=dtype), T.tensor4(dtype=dtype)
    X, K = rng.randn(2, 3, 6, 6).astype(dtype), rng.randn(4, 3, 3, 3).astype(dtype)
    conv = T.nnet.conv2d(x, k, filter_flip=False)
    expected = sum(
        np.einsum("bcij,oc->boij", X[:, :, i : i + 4, j : j + 4], K[:, :, i, j])
        for i in range(3) for j in range(3)
    )
    check(theano.function([x, k], conv)(X, K), expected)
print(theano.config.blas.ldflags)
"""


@pytest.mark.parametrize(("flags", "ldflags"), [("", "-L"), ("blas.ldflags=", "")])
@pytest.mark.parametrize("dtype", [("float64", 1e-12), ("float32", 1e-5)], ids=lambda of: of[0])
def test_numbers(run, flags: str, ldflags: str, dtype: tuple[str, float]):
    found = run(f"DTYPES = [{dtype}]\n{NUMBERS}", flags=flags).stdout.strip()
    assert found[:2] == ldflags, "no BLAS found, although SciPy's wheels bring one"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "synk-theano"


def chosen() -> blas.Choice:
    choice = blas.choose(COMPILER)
    assert choice.ldflags
    return choice


def test_folder_is_private_and_found_again(cache: Path, monkeypatch: pytest.MonkeyPatch):
    choice = chosen()
    (folder,) = cache.iterdir()
    assert f"-L{folder} " in choice.ldflags
    assert os.stat(folder).st_mode & 0o777 == os.stat(cache).st_mode & 0o777 == 0o700
    monkeypatch.setattr(blas, "_probe", None)  # would fail if it were called again
    assert chosen() == choice


@pytest.mark.parametrize("damage", ["retarget", "remove", "open", "symlink"])
def test_damaged_folder_is_made_anew(cache: Path, tmp_path: Path, damage: str):
    choice = chosen()
    (folder,) = cache.iterdir()
    link = next(folder.glob("lib*blas.so"))
    if damage in ("retarget", "remove"):
        link.unlink()
    if damage == "retarget":
        link.symlink_to("/lib/evil.so")
    if damage == "open":
        folder.chmod(0o777)
    if damage == "symlink":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    assert chosen() == choice
    assert list(cache.iterdir()) == [folder]
    assert not folder.is_symlink()
    assert os.stat(folder).st_mode & 0o777 == 0o700
    assert os.readlink(link) == choice.library


def test_many_processes_make_one_folder(cache: Path, spawn):
    code = f"from synk_theano_compat._toolchain.blas import choose\nprint(choose({COMPILER!r}))"
    started = [spawn(code, env={"XDG_CACHE_HOME": str(cache.parent)}) for _ in range(3)]
    answers = {process.finish().out for process in started}
    assert len(answers) == 1
    assert f"-L{cache}" in answers.pop()
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("name", ["with blank", "with,comma", "with'quote"])
def test_cache_path_that_theano_would_split(tmp_path: Path, monkeypatch, name: str):
    plain = tmp_path / "plain"
    plain.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(plain))
    monkeypatch.setattr(tempfile, "tempdir", str(plain))
    assert f"-L{plain}" in chosen().ldflags
    assert not (tmp_path / name).exists()


def test_cache_of_somebody_else_is_not_used(cache: Path, tmp_path: Path, monkeypatch):
    cache.mkdir()
    cache.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert f"-L{tmp_path / 'synk-theano-'}" in chosen().ldflags


WRONG = """
extern "C" {
#define NOTHING(name) void name(...) {}
NOTHING(sgemm_) NOTHING(dgemm_) NOTHING(dgemv_) NOTHING(sger_)
float sdot_(...) { return 17; }
double ddot_(...) { return 17; }
}
"""


BAD = [b"", b"not a library", WRONG.replace("{}", "{ __builtin_trap(); }")]


@pytest.mark.parametrize(
    "content", [WRONG, *(pytest.param(bad, marks=pytest.mark.nightly) for bad in BAD)]
)
def test_next_candidate_is_taken(cache: Path, tmp_path: Path, monkeypatch, build, content):
    bad = tmp_path / "libblas.so"
    bad.write_bytes(content) if isinstance(content, bytes) else build(bad, content)
    candidates, good = [(bad, "bad")], list(blas._candidates(COMPILER))
    monkeypatch.setattr(blas, "_candidates", lambda _: iter(candidates))
    assert blas.choose(COMPILER) == blas.NUMPY
    assert list(cache.iterdir()) == []
    candidates += good
    assert chosen().library == str(good[0][0])


def test_find_compiler(tmp_path: Path):
    assert blas.choose(None) == blas.NO_COMPILER
    assert find_compiler("") is None
    assert find_compiler(str(tmp_path / "none")) is None
    assert find_compiler(COMPILER) == COMPILER
    assert shutil.which("g++") is None or find_compiler(None) == shutil.which("g++")

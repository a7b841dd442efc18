"""What Theano compiles in tests is compiled with the headers that were compiled before."""

from __future__ import annotations

import pytest

from synk_testing import hard_limit, quick_flags, run

_limit = hard_limit(120)

PROGRAM = """
import theano
theano.function([], theano.shared(1.0) + 1)()
"""


@pytest.mark.nightly
def test_headers_are_compiled_once(tmp_path, monkeypatch):
    monkeypatch.delenv("CPATH", raising=False)
    flags = quick_flags(tmp_path)
    if flags == "-O0":
        pytest.skip("needs Theano, g++ and a processor of the family x86-64")
    (made,) = tmp_path.glob("*/*.gch")
    when = made.stat().st_mtime_ns
    assert quick_flags(tmp_path) == flags
    assert made.stat().st_mtime_ns == when
    settings = ["linker=cvm", f"gcc.cxxflags={flags} -H", "cmodule.compilation_warning=True"]
    settings.append(f"base_compiledir={tmp_path / 'theano'}")
    status, out, err = run(PROGRAM, environment={"THEANO_FLAGS": ",".join(settings)})
    assert status == 0, err
    # What g++ says of each header; "!" is for one that was compiled before and is used.
    assert f"! {made}" in out

"""One group of ranks for all tests of a file, and graphs that are computed without a compiler."""

from __future__ import annotations

import os
from typing import Iterator

import pytest

import synkhronos as synk
from synk_testing.engine import IS_THEANO, engine

OPTIMIZER = "fast_run" if os.environ.get("SYNK_TESTS") == "all" else "fast_compile"


@pytest.fixture(scope="module", autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """In place of the fixture for tests that start their own: 3 ranks, or as many as asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.config, "linker", "py")
        if IS_THEANO:
            # What it puts in place of convolutions is C code alone.
            mode = engine.Mode("py", OPTIMIZER).excluding(
                "fusion", "conv_opts", "AbstractConvCheck"
            )
            patch.setattr(engine.compile.mode, "instantiated_default_mode", mode)
        synk.fork(getattr(request, "param", 3), use_gpu=False, verbose=False)
        yield
        synk.close()

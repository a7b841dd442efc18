"""The graph engine under test: Theano below Python 3.12, PyTensor from there on.

A test that runs on both builds its graphs by the names from here, which mean the same in both.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any, Container

import pytest

NAME = "theano" if sys.version_info < (3, 12) else "pytensor"
IS_THEANO = NAME == "theano"


def _of(place: str = "") -> Any:
    return importlib.import_module(NAME + place)


engine = _of()
T = _of(".tensor")
as_op = _of(".compile.ops").as_op if IS_THEANO else engine.wrap_py
ifelse = _of(".ifelse" if IS_THEANO else ".conditional.op").ifelse

change_flags = engine.change_flags if IS_THEANO else engine.config.change_flags
softmax = T.nnet.softmax if IS_THEANO else partial(_of(".tensor.special").softmax, axis=-1)

STREAMS = (
    {
        "numpy": _of(".tensor.shared_randomstreams").RandomStreams,
        "mrg": _of(".sandbox.rng_mrg").MRG_RandomStreams,
    }
    if IS_THEANO
    else {"numpy": _of(".tensor.random.utils").RandomStream}
)
"""Classes of random streams: one takes a seed, and draws by `uniform(size=)` and the like."""

PROGRAM = f"import numpy as np, {NAME} as engine, {NAME}.tensor as T\n"


def theano_only(reason: str) -> pytest.MarkDecorator:
    """Return the mark of a test of what PyTensor does not have."""
    return pytest.mark.skipif(not IS_THEANO, reason=f"Theano only: {reason}")


def is_left_out(path: Path, by_day: Container[str]) -> bool:
    """Return whether a file of tests is left out on this engine; on Theano, none is.

    On PyTensor, Theano's and Lasagne's are, and by day those that are not in `by_day`.
    """
    if IS_THEANO or path.suffix != ".py":
        return False
    text = path.read_text(encoding="utf-8")
    if re.search(r"^(import|from) (theano|lasagne)\b", text, re.MULTILINE):
        return True
    return os.environ.get("SYNK_TESTS") != "all" and path.stem.removeprefix("test_") not in by_day

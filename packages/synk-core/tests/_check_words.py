"""What the two engines name differently, or one of them lacks, in graphs for `check`."""

from __future__ import annotations

from typing import Any

from synk_testing.engine import IS_THEANO, T, change_flags, engine


def in_python() -> Any:
    """Have the graphs inside of operations computed in Python, too, as they are."""
    flags = {"mode": "FAST_COMPILE", "linker": "py"}
    return change_flags(**flags, **({} if IS_THEANO else {"cxx": ""}))


if IS_THEANO:
    io_toposort = engine.gof.graph.io_toposort
    softmax, log_softmax = T.nnet.softmax, T.nnet.logsoftmax
    det, batched_dot = T.nlinalg.det, T.batched_dot
    categorical_crossentropy = T.nnet.categorical_crossentropy

else:
    io_toposort = engine.graph.traversal.io_toposort
    det, batched_dot = T.linalg.det, T.matmul

    def softmax(z: Any, axis: Any = -1) -> Any:
        return T.special.softmax(z, axis=axis)

    def log_softmax(z: Any, axis: Any = -1) -> Any:
        return T.special.log_softmax(z, axis=axis)

    def categorical_crossentropy(probability: Any, labels: Any) -> Any:
        return -T.log(probability)[T.arange(labels.shape[0]), labels]

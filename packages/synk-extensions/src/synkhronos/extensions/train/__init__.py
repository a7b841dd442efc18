"""Training: one callable that takes an exact data-parallel step, and the loop around it.

:func:`make_train_function` builds the step, :func:`make_train_function_theano` the same in plain
Theano.
"""

from __future__ import annotations

from ._serial import SerialTrainFunction
from ._state import TrainingState
from ._step import TrainFunction, make_train_function, make_train_function_theano

__all__ = [
    "SerialTrainFunction",
    "TrainFunction",
    "TrainingState",
    "make_train_function",
    "make_train_function_theano",
]

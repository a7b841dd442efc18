"""Training: one callable that takes an exact data-parallel step, and a loop around it.

:func:`make_train_function` builds the step, :func:`make_train_function_theano` the same in plain
Theano. :class:`Trainer` adds epochs, validation, schedules, early stopping, checkpoints and a log
to either. It is optional: you can write your own loop.
"""

from __future__ import annotations

from ._callbacks import Callback, EarlyStopping, MLflow, TensorBoard, WandB
from ._checkpoint_files import CheckpointError, Checkpoints
from ._history import History
from ._learning_rate import (
    RateRange,
    ReduceOnPlateau,
    cosine,
    exponential,
    find_learning_rate,
    step_decay,
    warm_up,
)
from ._serial import SerialTrainFunction
from ._state import TrainingState
from ._step import TrainFunction, make_train_function, make_train_function_theano
from ._trainer import Trainer

__all__ = [
    "Callback",
    "CheckpointError",
    "Checkpoints",
    "EarlyStopping",
    "History",
    "MLflow",
    "RateRange",
    "ReduceOnPlateau",
    "SerialTrainFunction",
    "TensorBoard",
    "TrainFunction",
    "Trainer",
    "TrainingState",
    "WandB",
    "cosine",
    "exponential",
    "find_learning_rate",
    "make_train_function",
    "make_train_function_theano",
    "step_decay",
    "warm_up",
]

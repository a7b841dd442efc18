"""Training: one callable that takes an exact data-parallel step, and a loop around it.

:func:`make_train_function` builds the step, :func:`make_train_function_theano` the same in plain
Theano. :class:`Trainer` adds epochs, validation, schedules, early stopping, checkpoints and a log,
for either of them. Nothing needs the Trainer: loops of your own work as well.
"""

from __future__ import annotations

# The loop around it.
from ._callbacks import Callback, EarlyStopping
from ._checkpoint_file import CheckpointError
from ._checkpoints import Checkpoints
from ._history import History
from ._schedules import ReduceOnPlateau, cosine, exponential, step_decay, warm_up

# The step.
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
    "ReduceOnPlateau",
    "SerialTrainFunction",
    "TrainFunction",
    "Trainer",
    "TrainingState",
    "cosine",
    "exponential",
    "make_train_function",
    "make_train_function_theano",
    "step_decay",
    "warm_up",
]

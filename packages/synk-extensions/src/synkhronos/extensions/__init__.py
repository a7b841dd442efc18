"""Tools for deep learning on top of the collectives.

:mod:`synkhronos.extensions.updates`: update rules in two halves, with one flat gradient between.
:mod:`synkhronos.extensions.train`: one callable that takes an exact data-parallel step, and a
Trainer.
:mod:`synkhronos.extensions.sync`: local steps, combined every few steps as in Platoon.
:mod:`synkhronos.extensions.batches`: shuffled index batches from one shared data set.
:mod:`synkhronos.extensions.lasagne`: batch normalisation over the rows of all ranks.
:mod:`synkhronos.extensions.nn`: convolutions, layers and losses for PyTensor.
:mod:`synkhronos.extensions.plots`: plots of scaling and of trainings.
:mod:`synkhronos.extensions.pymc`: log probability, NUTS and MAP of PyMC models.
"""

from __future__ import annotations

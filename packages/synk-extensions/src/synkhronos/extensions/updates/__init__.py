"""First-order update rules, split for data parallelism.

Each rule takes a loss (or the gradients) and the parameters, and returns a
:class:`SplitUpdates`, which unpacks into three::

    grad_updates, param_updates, flat_grad = adam(loss, params, learning_rate=1e-3)

1. ``grad_updates`` write the raw gradient of all parameters into one flat shared vector;
2. ``param_updates`` move the parameters, and the state of the rule, by what that vector holds;
3. ``flat_grad`` is the vector. Average it over the ranks between 1 and 2, with *one* collective
   for the whole model::

       f_grad = synk.function([x, y], loss, updates=grad_updates)
       f_step = synk.function([], updates=param_updates)
       ...
       loss_value = f_grad(x_data, y_data)
       synk.all_reduce(flat_grad, op="avg", weights=f_grad)
       f_step()

:func:`synkhronos.extensions.train.make_train_function` makes one callable of these lines.

Since every rank then holds the same gradient and the rules are deterministic, parameters that
were equal before the step are equal after it, in all ranks, with no further communication.

Every rule takes ``lr`` for ``learning_rate``, as in release 1.0. All numbers a rule takes
(learning rate, momentum, betas, epsilon) may also be Theano scalars, for instance a shared
variable that a schedule sets (in all ranks: :func:`synkhronos.broadcast`).
"""

from __future__ import annotations

# adaptive step sizes
from synkhronos.extensions.updates._adaptive import adadelta, adagrad, adam, adamax, rmsprop

# steps along the gradient
from synkhronos.extensions.updates._first_order import (
    momentum,
    nesterov_momentum,
    sgd,
    sgd_nonflat,
)

# what a rule returns
from synkhronos.extensions.updates._flatten import SplitUpdates

__all__ = [
    "SplitUpdates",
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "momentum",
    "nesterov_momentum",
    "rmsprop",
    "sgd",
    "sgd_nonflat",
]

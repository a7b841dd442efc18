"""First-order update rules, split for data parallelism.

Each rule takes a loss (or the gradients) and the parameters, and returns a
:class:`SplitUpdates`, which unpacks into three::

    grad_updates, param_updates, flat_grad = adam(loss, params, learning_rate=1e-3)

1. ``grad_updates`` write the raw gradient of all parameters into one flat shared vector;
2. ``param_updates`` move the parameters, and the state of the rule, by the values of that vector;
3. ``flat_grad`` is the vector. Average it over the ranks between 1 and 2, with *one* collective
   for the whole model::

       f_grad = synk.function([x, y], loss, updates=grad_updates)
       f_step = synk.function([], updates=param_updates)
       ...
       loss_value = f_grad(x_data, y_data)
       synk.all_reduce(flat_grad, op="avg", weights=f_grad)
       f_step()

:func:`synkhronos.extensions.train.make_train_function` makes one callable of these lines. Every
rank then holds the same gradient, so parameters that were equal before the step are equal after it.

Every rule takes ``lr`` for ``learning_rate``, as in release 1.0. All numbers a rule takes
(learning rate, momentum, betas, epsilon) may also be Theano scalars, for instance a shared
variable that a schedule sets (in all ranks: :func:`synkhronos.broadcast`).

Options for any rule are wrappers, which take a rule and return one of the same interface::

    rule = updates.clip_by_global_norm(
        updates.norm_constraint(updates.weight_decay(updates.adam, 1e-4), max_norm=3.0),
        max_norm=1.0,
    )
    train = make_train_function(loss, params, [x, y], rule, learning_rate=1e-3)

The gradient passes them from the outside in, and the new parameters from the inside out. Here it
is clipped, the decay is added to it, adam makes its step, and the norms are constrained.

- :func:`clip_by_global_norm`, :func:`clip_by_value` and :func:`weight_decay` change the gradient
  before the rule.
- :func:`decoupled_weight_decay`, :func:`norm_constraint` and :func:`value_constraint` change the
  parameters after it, and :func:`moving_average` keeps averages of them.

All of this happens in ``param_updates``, with the average over the ranks, and is therefore the same
as in one process with the whole batch. ``flat_grad`` keeps the average.
"""

from __future__ import annotations

# adaptive step sizes
from synkhronos.extensions.updates._adaptive import (
    adadelta,
    adagrad,
    adam,
    adamax,
    amsgrad,
    rmsprop,
)

# steps along the gradient
from synkhronos.extensions.updates._first_order import (
    apply_momentum,
    apply_nesterov_momentum,
    momentum,
    nesterov_momentum,
    sgd,
    sgd_nonflat,
)

# the result of a rule, and helpers to write your own
from synkhronos.extensions.updates._flatten import (
    SplitUpdates,
    flat_unflat_grads,
    flatten_vars,
    nonflat_grads,
    unflatten_vars,
    vars_flat_size,
)

# the gradient before a rule gets it, and the parameters after a rule has moved them
from synkhronos.extensions.updates._wrappers import (
    clip_by_global_norm,
    clip_by_value,
    decoupled_weight_decay,
    moving_average,
    norm_constraint,
    value_constraint,
    weight_decay,
)

__all__ = [
    "SplitUpdates",
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "amsgrad",
    "apply_momentum",
    "apply_nesterov_momentum",
    "clip_by_global_norm",
    "clip_by_value",
    "decoupled_weight_decay",
    "flat_unflat_grads",
    "flatten_vars",
    "momentum",
    "moving_average",
    "nesterov_momentum",
    "nonflat_grads",
    "norm_constraint",
    "rmsprop",
    "sgd",
    "sgd_nonflat",
    "unflatten_vars",
    "value_constraint",
    "vars_flat_size",
    "weight_decay",
]

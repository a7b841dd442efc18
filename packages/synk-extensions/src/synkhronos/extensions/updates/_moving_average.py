"""A wrapper that keeps averages of the parameters over the steps of a rule."""

from __future__ import annotations

from typing import Any

from synk_core.engine import Variable, shared_like
from synkhronos.extensions.updates._arguments import label, scalar
from synkhronos.extensions.updates._flatten import SplitUpdates
from synkhronos.extensions.updates._wrapping import (
    UpdateRule,
    check_choice,
    check_number,
    chosen,
    wrap,
)


def moving_average(rule: UpdateRule, decay: Any = 0.999, params: Any = None) -> UpdateRule:
    r"""After the step of ``rule``, move an average of each parameter towards its new value.

    .. math:: a \leftarrow \beta\, a + (1 - \beta)\, \theta

    It begins at the parameter's value when the rule is called, so it needs no correction. The steps
    are those of ``rule``. The averages often generalise better than the last parameters; they
    are shared variables named "average(W)", equal on all ranks, and part of checkpoints. The new
    rule has them as a dict ``averages`` from each parameter to its average, those of the last call.
    Validate and save by them::

        rule = updates.moving_average(updates.adam, 0.999)
        train = make_train_function(loss, params, [x, y], rule, learning_rate=1e-3)
        validate = synk.function([x, y], loss, givens=rule.averages)
        save_weights("averages.npz", {p.name: a for p, a in rule.averages.items()})

    Make it the outermost wrapper of those that change the parameters after the rule, such as
    :func:`norm_constraint`: it averages the values that it gets. If you set the parameters
    otherwise, such as by ``load_weights()``, set the averages as well. With a rule of
    :mod:`synkhronos.extensions.sync`, each rank averages its own parameters.

    Args:
        rule: As for :func:`weight_decay`.
        decay: :math:`\beta`, a number from 0 to below 1, or a Theano scalar. The average is about
            that of the last :math:`1 / (1 - \beta)` steps.
        params: Which parameters, as for :func:`weight_decay`.

    Returns:
        A rule with the arguments and results of ``rule``, and the dict ``averages``.

    Raises:
        As :func:`weight_decay`.

    Source: B. T. Polyak and A. B. Juditsky, "Acceleration of stochastic approximation by
    averaging", SIAM Journal on Control and Optimization 30 (1992), with exponential weights.
    """
    name = "moving_average"
    check_number(decay, f"{name}: decay", least=0)
    if not isinstance(decay, Variable) and decay >= 1:
        raise ValueError(f"{name}: decay is {decay!r}; expected a number below 1")
    choice = check_choice(params, name)
    averages: dict[Any, Any] = {}

    def change(parts: SplitUpdates, all_params: list[Any], _rate: Any) -> SplitUpdates:
        averages.clear()
        moves = []
        values = dict(parts.param_updates)
        for index, param in enumerate(chosen(all_params, choice, name)):
            start = param.get_value()
            average = shared_like(param, start, f"average({label(param, index)})")
            averages[param] = average
            beta = scalar(decay, str(param.dtype), "decay")
            one = scalar(1, str(param.dtype), "one")
            moves.append((average, beta * average + (one - beta) * values[param]))
        return parts._replace(param_updates=[*parts.param_updates, *moves])

    changed: Any = wrap(rule, name, change)
    changed.averages = averages
    return changed

r"""Training in which the ranks' parameters drift apart, and are combined every few steps.

:func:`~synkhronos.extensions.train.make_train_function` averages gradients, so that all ranks take
the same step. Here each rank takes its own steps, with its own rows, and communicates only every
``every`` steps, by a rule: :func:`average`, :func:`easgd` or :func:`downpour`. These are the
algorithms of Platoon, with one difference: no rank runs ahead. All take the same number of steps,
and a rule combines all of them at once, so that a training is deterministic.

Give the rule to ``make_train_function``::

    rule = sync.easgd(params, every=10)
    train = make_train_function(loss, params, [x, y], updates.momentum, 0.1, sync=rule)

Or take the steps by any functions of your own, such as one with the updates of
``lasagne.updates``, in the place of ``synkhronos.step``::

    train = synk.function([x, y], loss, updates=lasagne.updates.adam(loss, params))
    (loss_value,) = rule.step(train.delayed(x_data, y_data, batch=rows))

Every rank counts equally in a rule, however many rows it had. A rank without rows in a step keeps
its parameters in that step, if one function has both the rows and the updates.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import synkhronos as synk
from synk_core import Function, brief_traceback, flat_updates, whole
from synkhronos import _default
from synkhronos.extensions.updates._arguments import check_params, scalar
from synkhronos.extensions.updates._flatten import zeros_like

__all__ = ["SyncRule", "average", "downpour", "easgd"]

SHARE_OF_MEAN = 0.9
"""The paper's beta: the part of the way that a centre goes to the replicas' mean."""


class SyncRule:
    """A rule that combines the ranks' parameters every few steps; made by the functions below.

    It belongs to the runtime in which it was made. Its first step gives all ranks the master's
    parameters, and declares that they drift from then on: proofs accept it.

    Attributes:
        name: The function that made it.
        params: The parameters that it combines.
        every: Number of steps from one synchronisation to the next.
        steps: Number of steps since the last one.
        centre: Shared variables of the shapes and dtypes of ``params``, equal on all ranks; empty
            for :func:`average`. Before the first step they are zero.
    """

    def __init__(
        self,
        name: str,
        params: Sequence[Any],
        every: int,
        acts: Sequence[Any],
        centre: Sequence[Any] = (),
        settling: Sequence[Any] = (),
    ) -> None:
        self.name, self.every = name, every
        self.params, self.centre = list(params), list(centre)
        self._acts, self._settling, self.steps = tuple(acts), tuple(settling), 0
        self._has_begun = self._is_declared = False

    @brief_traceback
    def step(self, *acts: Any) -> list[Any]:
        """Perform a step, and synchronise if it is time to; blocks until all ranks are done.

        All is one order to the ranks, as in ``synkhronos.step``: if any part fails on any rank,
        nothing has changed on any, and the step does not count (after ``fork(atomic=False)``, the
        parts before it have been performed).

        Args:
            *acts: The calls and collectives that make a step, as for ``synkhronos.step``.

        Returns:
            A list of their results.
        """
        if not acts:
            raise TypeError("step() got nothing to do; expected a step's calls: f.delayed(...)")
        begin, is_due = self._beginning(), self.steps + 1 >= self.every
        last = self._acts if is_due else ()
        results = self._perform([*begin, *acts, *last], 0 if is_due else self.steps + 1)
        return results[len(begin) : len(begin) + len(acts)]

    @brief_traceback
    def settle(self) -> None:
        """Give all ranks the common parameters: for validation, for a file, and at the end.

        It synchronises first if steps were taken since the last time. With :func:`easgd` the ranks
        then get the centre; with the other rules they are equal already. Training may continue
        from there. Blocks until all ranks are done.
        """
        if not self._has_begun:
            return
        self._perform([*(self._acts if self.steps else ()), *self._settling], 0)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has to keep besides the variables."""
        return {"rule": self.name, "begun": self._has_begun, "steps": self.steps}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned; raise ValueError if that was another rule."""
        if state["rule"] != self.name:
            raise ValueError(f"got the state of sync.{state['rule']}(), expected {self.name}()")
        self._has_begun, self.steps = bool(state["begun"]), int(state["steps"])

    def _beginning(self) -> list[Any]:
        """Return the acts that the first step begins with."""
        if not self._is_declared:
            _default.default().let_drift([*self.params, *self.centre])
            self._is_declared = True
        if self._has_begun:
            return []
        values = [param.get_value() for param in self.params]
        acts = [synk.delayed.broadcast(self.params)]
        return [*acts, synk.delayed.broadcast(self.centre, values)] if self.centre else acts

    def _perform(self, acts: Sequence[Any], steps: int) -> list[Any]:
        """Perform acts, and count: both, or neither."""

        def act() -> list[Any]:
            results = synk.step(*acts)
            self._has_begun, self.steps = True, steps
            return results

        return whole(act)

    def __repr__(self) -> str:
        return (
            f"<sync.{self.name} of {len(self.params)} variables, every {self.every} steps, "
            f"{self.steps} since the last time>"
        )


def average(params: Any, every: int) -> SyncRule:
    r"""Replace all ranks' parameters by their mean, every so many steps.

    .. math:: x^i \leftarrow \frac{1}{p} \sum_{j=1}^{p} x^j

    Args:
        params: Shared variables of floating-point dtypes.
        every: Number of steps from one synchronisation to the next, at least 1.

    Raises:
        TypeError: A parameter is not a shared variable of floats; ``every`` is not an integer.
        ValueError: ``every`` is less than 1; no parameters, or one of them twice.
        NotForked: There is no runtime.

    Source: S. U. Stich, "Local SGD converges fast and communicates little", ICLR (2019), algorithm
    1. In Platoon: ``global_dynamics.AverageSGD`` and, of several steps,
    ``global_dynamics.Downpour(average=True)``.
    """
    params = _checked(params, every)
    return SyncRule("average", params, int(every), [synk.delayed.all_reduce(params, op="avg")])


def easgd(params: Any, every: int, alpha: float | None = None) -> SyncRule:
    r"""Pull the ranks' parameters to a centre, and the centre to them, every so many steps.

    .. math::
        x^i &\leftarrow x^i - \alpha\, (x^i - \tilde x) \\
        \tilde x &\leftarrow (1 - \beta)\, \tilde x + \beta\, \frac{1}{p} \sum_{j=1}^{p} x^j,
        \quad \beta = p\, \alpha

    Both read the values before. The ranks' parameters never become equal: use the centre, as
    :meth:`SyncRule.settle` does.

    Args:
        params, every: As for :func:`average`; ``every`` is the paper's :math:`\tau`.
        alpha: :math:`\alpha`, by default 0.9 divided by the number p of ranks, as in the paper's
            experiments. Each time, the distance from the centre to the mean is multiplied by
            :math:`1 - \alpha (p + 1)`, so alpha has to be between 0 and :math:`2 / (p + 1)`.

    Raises:
        As :func:`average`; TypeError, ValueError: ``alpha`` is not a number, or out of range.

    Source: S. Zhang, A. Choromanska and Y. LeCun, "Deep learning with Elastic Averaging SGD",
    NIPS (2015), equations 5 and 6, the synchronous algorithm. There the elastic force is part of
    a gradient step; here, as in Platoon (``global_dynamics.EASGD``), it acts after ``every`` steps.
    """
    params = _checked(params, every)
    size = _default.default().size
    pull: Any = SHARE_OF_MEAN / size if alpha is None else alpha
    if isinstance(pull, bool) or not isinstance(pull, numbers.Real):
        raise TypeError(f"alpha is {pull!r} of type {type(pull).__name__}; expected a number")
    if not 0 < float(pull) < 2 / (size + 1):
        raise ValueError(
            f"alpha is {pull!r}; on {size} ranks expected more than 0 and less than 2 / (ranks + "
            f"1) = {2 / (size + 1):.3g}, or the centre and the parameters would not approach each "
            f"other; {SHARE_OF_MEAN / size:.3g} is the default"
        )
    alpha, centre = float(pull), _centre(params)
    updates = []
    for param, middle in zip(params, centre):
        distance = param - middle
        updates += [
            (param, param - scalar(alpha, param.dtype, "alpha") * distance),
            # Its average over the ranks is the new centre.
            (middle, middle + scalar(size * alpha, param.dtype, "beta") * distance),
        ]
    acts = [_update(updates, "sync.easgd"), synk.delayed.all_reduce(centre, op="avg")]
    settling = [_update(list(zip(params, centre)), "sync.easgd: centre")]
    return SyncRule("easgd", params, int(every), acts, centre, settling)


def downpour(params: Any, every: int) -> SyncRule:
    r"""Add what all ranks have moved to the common parameters, every so many steps.

    .. math::
        \tilde x &\leftarrow \tilde x + \sum_{j=1}^{p} (x^j - \tilde x) \\
        x^i &\leftarrow \tilde x

    The ranks start again from the common parameters. Their steps add up, so p ranks move p times
    as far as one; divide the learning rate by p for the mean, or use :func:`average`.

    Args, and errors, are those of :func:`average`.

    Source: J. Dean et al., "Large scale distributed deep networks", NIPS (2012), section 4.1, with
    :math:`n_{push} = n_{fetch}`. There a server takes the steps whenever a worker has gradients.
    Here, as in Platoon's ``global_dynamics.Downpour``, the ranks take them, by any update rule, and
    what they have moved is added. Platoon's ``param_sync.ASGD`` is the asynchronous form of it.
    """
    params = _checked(params, every)
    centre = _centre(params)
    pairs = list(zip(params, centre))
    move = _update([(param, param - common) for param, common in pairs], "sync.downpour: moves")
    add = _update(
        [(target, common + param) for param, common in pairs for target in (param, common)],
        "sync.downpour: sum",
    )
    acts = [move, synk.delayed.all_reduce(params, op="sum"), add]
    return SyncRule("downpour", params, int(every), acts, centre)


def _update(updates: Sequence[Any], name: str) -> Function:
    return synk.function([], updates=flat_updates(updates), name=name)


def _centre(params: Sequence[Any]) -> list[Any]:
    return [zeros_like(param, i, "centre") for i, param in enumerate(params)]


def _checked(params: Any, every: Any) -> list[Any]:
    if isinstance(every, bool) or not isinstance(every, numbers.Integral):
        raise TypeError(f"every is {every!r}; expected a number of steps, an integer")
    if every < 1:
        raise ValueError(f"every is {every}; expected at least 1 step")
    return check_params(params)

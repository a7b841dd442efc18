"""An all_reduce of a device vector whose parts come about one after the other.

Each part is reduced on a stream of its own as soon as it is there, while the device computes the
next ones. MPI calls such communication partitioned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from synk_comm._core.calls import ON_DEVICES, CollectiveCall
from synk_comm._core.ops import ReduceOp

from .reduce import nccl_ops, positive
from .steps import DeviceSteps
from .terms import check_like, combined


class PartitionedReduction:
    """An all_reduce that all ranks have begun; see ``NcclCommunicator.partitioned_all_reduce``."""

    def __init__(
        self,
        steps: DeviceSteps,
        out: Any,
        op: ReduceOp,
        bounds: Sequence[tuple[int, int]],
        weight: float | None,
        timeout_s: float | None,
    ) -> None:
        deadline, name = steps.deadline(timeout_s), "partitioned_all_reduce"
        weight = positive(weight, op, name)
        result = steps.one(out, "out", written=True)
        _check_bounds(bounds, result.elements)
        kinds = tuple([(result.dtype, (stop - begin,)) for begin, stop in bounds])
        hows = [combined(kind, op) for kind in kinds]
        call = CollectiveCall(name + ON_DEVICES, op.value, -1, kinds, (), weight, many=True)
        self._steps = steps
        self._timeout_s = timeout_s
        self._given = 0
        self._held = [out]
        self._stack = contextlib.ExitStack()
        self._main = steps.stream_for([result])
        # An error now, not when the others rely on this rank.
        self._stream, self._event = steps.aside(self._main)
        with steps.guard:
            said = steps.host.agree(call, deadline)
            ops, _ = nccl_ops(steps, hows, op, said, self._stack)
        self._parts = [
            (result.part(begin, (stop - begin,)), (how.elements, how.type, nccl_op))
            for (begin, stop), how, nccl_op in zip(bounds, hows, ops)
        ]

    def ready(self, x: Any = None) -> None:
        """Enqueue the reduction of the next part.

        The work that the main stream has been given so far computes it.

        Args:
            x: the part, which must not change before ``wait``; None if it lies where its result is
                to lie.
        """
        steps, link = self._steps, self._steps.link
        target, how = self._parts[self._given]
        source = target
        if x is not None:
            source = steps.one(x, "x")
            check_like([source], [target])
            self._held.append(x)
        with steps.guard, link.driver.entered(link.device):
            link.driver.record(self._event, self._main)
            link.driver.wait_for(self._stream, self._event)
            self._given += 1
            call = ("all_reduce", source.pointer, target.pointer, *how)
            link.run([call], self._stream, steps.deadline(self._timeout_s))

    def wait(self) -> None:
        """Enqueue the reduction of the parts that are left; the main stream waits for all.

        A rank that fails to compute its parts must call this, too: the others' devices would wait
        for it for ever. The result is meaningless then, on all ranks.
        """
        while self._given < len(self._parts):
            self.ready()
        link = self._steps.link
        with self._steps.guard, link.driver.entered(link.device):
            link.driver.record(self._event, self._stream)
            link.driver.wait_for(self._main, self._event)
        self._stack.close()
        self._held.clear()


def _check_bounds(bounds: Sequence[tuple[int, int]], elements: int) -> None:
    """Raise ValueError unless each element is in one part, and no part is empty."""
    end = 0
    for begin, stop in sorted(bounds):
        if begin != end or stop <= begin:
            break
        end = stop
    else:
        if end == elements:
            return
    raise ValueError(
        f"bounds must be begin and end of parts that have something, and together the {elements} "
        f"elements of out, each once; got {list(bounds[:8])}"
    )

"""Collect the outputs of all ranks into the master's results."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from synk_theano._graph.devices.device import takes_reduction
from synk_theano._graph.values import (
    at_least_1d,
    concatenated,
    in_c_order,
    is_on_default_device,
    is_on_device,
)
from synk_theano.exceptions import InputValueError


def collect(comm: Any, master: int, op: Optional[str], value: Any, weight: float) -> Any:
    """Reduce or gather one output of all ranks that computed it into the master, through host
    memory."""
    if op is None:
        return value
    if value is not None:
        alone = comm.size == 1 and is_on_device(value)
        value = value if alone else np.asarray(value)
        value = at_least_1d(value) if op == "gather" else value
    if comm.size == 1:
        return value
    if op == "gather":
        parts = comm.gather(value, root=master)
        return None if parts is None else _joined(parts)
    if op == "avg":
        return comm.reduce(value, "avg", master, weight=weight)
    return comm.reduce(value, op, master)


def collect_on_device(
    comm: Any, master: int, ops: Sequence[Optional[str]], values: Sequence[Any], weight: float
) -> List[Any]:
    """Collect outputs, those with the same op in one message; every rank has computed.

    Arrays on the device stay there, and the call does not wait for the device.
    """
    results = list(values)
    together: Dict[str, List[int]] = {}
    for i, (op, value) in enumerate(zip(ops, values)):
        stays = op is not None and is_on_default_device(value)
        if stays and (op == "gather" or takes_reduction([value])):
            together.setdefault(str(op), []).append(i)
        else:
            results[i] = collect(comm, master, op, value, weight)
    for op, places in together.items():
        group = [in_c_order(values[i]) for i in places]
        if op == "gather":
            collected = comm.gather([at_least_1d(value) for value in group], master)
        else:
            options = {"weight": weight} if op == "avg" else {}
            collected = comm.reduce(group, op, master, **options)
        for i, result in zip(places, collected or [None] * len(places)):
            results[i] = _joined(result) if op == "gather" and result is not None else result
    return results


def _joined(parts: Sequence[Any]) -> Any:
    try:
        return concatenated([part for part in parts if part is not None])
    except ValueError:
        shapes = {rank: part.shape for rank, part in enumerate(parts) if part is not None}
        raise InputValueError(
            f"an output with op 'gather' has shapes that differ in more than their length: by "
            f"rank {shapes}"
        ) from None


def require_own_result(
    ops: Sequence[Optional[str]], counts: Sequence[int], master: int, doing: str
) -> None:
    """
    Raises:
        InputValueError: on every rank, if an output with op None, which is the master's own result,
            needs a row there.
    """
    total = sum(counts)
    if None in ops and total and not counts[master]:
        raise InputValueError(
            f"{doing} has an output with op None, which is the master's own result, but rank "
            f"{master}, the master, has none of {total} rows (by rank: {list(counts)}); use "
            f"batch_s= to give it some, or another op"
        )

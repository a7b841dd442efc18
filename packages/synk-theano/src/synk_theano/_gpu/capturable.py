"""Which compiled functions can be recorded as a CUDA graph, and in what form.

A graph repeats the work of the device, not that of the host. So the host's results must depend on
shapes alone, and no value may go to host memory amid the function. Values from there, such as a
learning rate, are computed before a launch, if only the device's results depend on them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import Any, List, Optional, Sequence, Set, Tuple

from synk_core.adapting import (
    FlatFunction,
    flatten,
    is_device_type,
    is_flat_able,
    needs_no_wrapper,
)

from .ends import SHAPES
from .parts import JoinedOp, PartOp
from .rewriting import Rewriting, argument

_ANYWHERE = frozenset(("Assert", "DeepCopyOp", "Rebroadcast", "SpecifyShape", "ViewOp"))

_ON_HOST = _ANYWHERE | frozenset(
    (
        *("Alloc", "AllocEmpty", "ARange", "CAReduce", "CAReduceDtype", "DimShuffle", "Elemwise"),
        *("GpuDnnConvDesc", "IncSubtensor", "Join", "MakeVector", "MaxAndArgmax", "Prod"),
        *("Reshape", "ScalarFromTensor", "Subtensor", "Sum", "TensorFromScalar"),
    )
)
"""Operations on host memory without a state or an effect of their own."""

_ON_DEVICE = _ANYWHERE | frozenset(
    (
        *("GPUA_mrg_uniform", "GpuAlloc", "GpuAllocEmpty", "GpuAveragePoolGrad"),
        *("GpuCAReduceCPY", "GpuCAReduceCuda", "GpuContiguous", "GpuCorr3dMM"),
        *("GpuCorr3dMM_gradInputs", "GpuCorr3dMM_gradWeights", "GpuCorrMM"),
        *("GpuCorrMM_gradInputs", "GpuCorrMM_gradWeights"),
        *("GpuCrossentropySoftmax1HotWithBiasDx", "GpuCrossentropySoftmaxArgmax1HotWithBias"),
        *("GpuDimShuffle", "GpuDnnBatchNorm", "GpuDnnBatchNormGrad", "GpuDnnBatchNormInference"),
        *("GpuDnnConv", "GpuDnnConvGradI", "GpuDnnConvGradW", "GpuDnnPool", "GpuDnnPoolGrad"),
        *("GpuDnnReduction", "GpuDnnSoftmax", "GpuDnnSoftmaxGrad", "GpuDot22", "GpuElemwise"),
        *("GpuGemm", "GpuGemmBatch", "GpuGemv", "GpuGer", "GpuIncSubtensor", "GpuJoin"),
        *("GpuMaxPoolGrad", "GpuPool", "GpuReshape", "GpuSoftmax"),
        *("GpuSoftmaxWithBias", "GpuSplit", "GpuSubtensor"),
    )
)
"""Operations that only enqueue work on the device."""


class NotCapturableError(Exception):
    """The text says why a function cannot be recorded."""


@dataclass(frozen=True)
class Pure:
    """A function of arrays alone: variables are arguments, and updates are results.

    Attributes:
        whole: the results on the device, outputs before new values, from the inputs and from all
            copies to the device, which the other two functions make from the inputs.
        hosted: copies and then results that depend on values in host memory, computed in each
            call; None if there are none.
        crossing: copies that depend on shapes alone; None if there are none.
        updated: the inputs, by number, whose new values are the last results.
        on_host: places of the results of `hosted`.
    """

    whole: FlatFunction
    hosted: Optional[FlatFunction]
    crossing: Optional[FlatFunction]
    updated: Tuple[int, ...]
    on_host: Tuple[int, ...]

    @property
    def targets(self) -> List[Optional[int]]:
        """Return for each result of `whole` the input whose new value it is; None for an output."""
        total = len(self.whole.outputs) + len(self.on_host)
        targets = [None] * (total - len(self.updated)) + list(self.updated)
        return [target for place, target in enumerate(targets) if place not in self.on_host]


def pure_form(function: Any) -> Pure:
    """Return a compiled function as it can be recorded; NotCapturableError if it cannot be."""
    if not is_flat_able(function) or not needs_no_wrapper(function):
        raise NotCapturableError(
            f"its mode ({type(function.maker).__name__}) does more than compute"
        )
    flat = flatten(function)
    reading = _Reading(flat)
    plain = replace(
        flat,
        inputs=tuple(argument(item.type) for item in flat.inputs),
        update_mapping={},
        returns=(False, False),
        trust_input=True,
    )
    on_host = [place for place, number in enumerate(flat.outputs) if not reading.device[number]]
    hosted = [*reading.valued_crossing, *(flat.outputs[place] for place in on_host)]
    return Pure(
        whole=_without(
            _part(plain, [n for n in flat.outputs if reading.device[n]]),
            [*reading.valued_crossing, *reading.crossing],
        ),
        hosted=_part(plain, hosted) if hosted else None,
        crossing=_part(plain, reading.crossing) if reading.crossing else None,
        updated=tuple(number for number, item in enumerate(flat.inputs) if item.has_update),
        on_host=tuple(on_host),
    )


def _part(flat: FlatFunction, outputs: Sequence[int]) -> FlatFunction:
    return replace(flat, outputs=tuple(outputs), borrowed_outputs=(True,) * len(outputs))


def _without(flat: FlatFunction, crossing: Sequence[int]) -> FlatFunction:
    """Return the function with these variables as further inputs."""
    types = flat.variable_types()
    new = Rewriting(flat, [types[number] for number in crossing])
    new.numbers.update(zip(crossing, count(len(flat.inputs))))
    for place, (_, _, made) in enumerate(flat.numbered_nodes()):
        if made.start not in new.numbers:
            new.keep(place, made)
    return new.result([new.numbers[number] for number in flat.outputs])


def _is_elsewhere(type_: Any) -> bool:
    return type_.context_name is not None


class _Reading:
    """The ways of values through one flat function, between host and device.

    Attributes:
        device: for each variable, whether it lies on the device.
        crossing: variables that are copied to the device, and depend on shapes alone.
        valued_crossing: those that depend on values in host memory.

    Raises:
        NotCapturableError: the host has work that a graph would not repeat.
    """

    def __init__(self, flat: FlatFunction) -> None:
        types = flat.variable_types()
        self.device = [is_device_type(type_) for type_ in types]
        self.crossing: List[int] = []
        self.valued_crossing: List[int] = []
        for type_, device in zip(types, self.device):
            if device and _is_elsewhere(type_):
                raise NotCapturableError("it computes on more than one device")
        # Host variables that depend on values: by number, the name of an input.
        self._valued = {
            number: item.name or item.settings["name"] or "an input"
            for number, item in enumerate(flat.inputs)
            if not self.device[number]
        }
        needed = _ancestors(flat, flat.outputs)
        for number, name in self._valued.items():
            if number in needed and flat.inputs[number].settings["mutable"]:
                # A call that fails half way could not be repeated.
                raise NotCapturableError(f"it may overwrite {name} in host memory")
        first = flat.first_made
        if not any(self.device[first:]):
            raise NotCapturableError("it computes nothing on the device")
        for op, sources, made in flat.numbered_nodes():
            if not needed.isdisjoint(made):
                self._see(op, sources, made)
        hosted = [n for n in flat.outputs if not self.device[n]] + self.valued_crossing
        crossing = {*self.crossing, *self.valued_crossing}
        if any(self.device[n] for n in _ancestors(flat, hosted) - crossing if n >= first):
            raise NotCapturableError("the host computes with what depends on the device")

    def _see(self, op: Any, sources: Sequence[int], made: range) -> None:
        name = type(op).__name__
        ours = type(op).__module__.startswith("theano.")
        on_device = [self.device[number] for number in made]
        values = [self._valued[source] for source in sources if source in self._valued]
        if (name in SHAPES and ours) or isinstance(op, (PartOp, JoinedOp)):
            return
        if not any(on_device):
            if any(self.device[source] for source in sources):
                raise NotCapturableError(f"{name} copies a value to host memory")
            if not ours or name not in _ON_HOST:
                raise NotCapturableError(f"{name} is computed by the host")
            if values:
                self._valued.update(dict.fromkeys(made, values[0]))
        elif name == "GpuFromHost" and ours:
            (self.valued_crossing if values else self.crossing).append(made[0])
        elif values:
            raise NotCapturableError(f"{name} depends on the value of {values[0]} in host memory")
        elif not all(on_device) or not ours or name not in _ON_DEVICE:
            raise NotCapturableError(f"{name} may do more than enqueue work on the device")


def _ancestors(flat: FlatFunction, outputs: Sequence[int]) -> Set[int]:
    """Return the numbers of these variables, and of those that they are computed from."""
    needed = set(outputs)
    for _, sources, made in reversed(flat.numbered_nodes()):
        if not needed.isdisjoint(made):
            needed.update(sources)
    return needed

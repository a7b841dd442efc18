"""The inputs of a call: put them in order, check them, and copy them where needed."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from synk_core._plan.conversion import NUMERIC, unmasked
from synk_core._plan.rows import Selection
from synk_core._text import clipped, shown
from synk_core._wire.arrays import copy_rows
from synk_core._wire.data import Data
from synk_core._wire.sources import RowSource
from synk_core.engine import upcast
from synk_core.exceptions import InputTypeError, InputValueError

from .spec import FunctionSpec


class Signature:
    """The inputs of a function, and the values that each takes."""

    def __init__(self, spec: FunctionSpec) -> None:
        self.variables = spec.variables
        self._names = [i.name or v.name for i, v in zip(spec.inputs, self.variables)]
        self.labels = [name or f"{i}" for i, name in enumerate(self._names)]
        self._row_axes = spec.row_axes
        self._name = f"function {spec.name!r}" if spec.name else "this function"
        self._dtypes = [np.dtype(v.dtype) for v in self.variables]
        self._ndims = [v.ndim for v in self.variables]
        self._broadcastable = [
            [axis for axis, is_one in enumerate(v.broadcastable) if is_one] for v in self.variables
        ]
        self._strict = [bool(getattr(declared, "strict", False)) for declared in spec.inputs]
        self._downcasts = [
            spec.kwargs.get("allow_input_downcast")
            if getattr(declared, "allow_downcast", None) is None
            else declared.allow_downcast
            for declared in spec.inputs
        ]

    def __str__(self) -> str:
        return ", ".join(self.labels)

    def ordered(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the inputs, also those in one dict by variables or names, in the order of the
        variables."""
        by_dict = len(args) == 1 and isinstance(args[0], dict)
        if not kwargs and len(args) == len(self.variables) and not by_dict:
            return args
        named = list(kwargs.items())
        if by_dict:
            named += args[0].items()
            args = ()
        given: Dict[int, Any] = dict(enumerate(args))
        for key, value in named:
            place = self._place(key)
            if place in given:
                how = "by position and by keyword" if place < len(args) else "twice"
                raise InputTypeError(f"{self._name} got input {str(key)!r} {how}")
            given[place] = value
        if sorted(given) != list(range(len(self.variables))):
            raise InputTypeError(
                f"{self._name} got {len(given)} inputs, expected {len(self.variables)}: "
                f"{str(self) or 'none'}"
            )
        return [given[place] for place in range(len(self.variables))]

    def _place(self, key: Any) -> int:
        for place, variable in enumerate(self.variables):
            if variable is key or (isinstance(key, str) and self._names[place] == key):
                return place
        raise InputTypeError(
            f"{self._name} got an unknown keyword {shown(key)}, expected one of its inputs "
            f"{[n for n in self._names if n]} (and, in a parallel call only, output_subset, "
            f"batch, batch_s, num_slices)"
        )

    def accepted(self, place: int, value: Any) -> Any:
        """Return the input as `Data`, or as an array or source of rows that the variable takes.

        A dtype that converts without loss stays as it is: each rank converts its own rows.
        """
        kind = type(value)
        if kind is not Data and kind is not np.ndarray:
            value = self._converted(place, value)
        shape, dtype = value.shape, value.dtype
        # Dimensions first: for a different kind of value, as one-hot labels, that error helps most.
        if len(shape) != self._ndims[place]:
            raise InputTypeError(
                f"{self.what(place)}: got {len(shape)} dimensions (shape {shape}), expected "
                f"{self._ndims[place]}"
            )
        if dtype != self._dtypes[place]:
            self._check_dtype(place, dtype)
        for axis in self._broadcastable[place]:
            if shape[axis] != 1:
                raise InputValueError(
                    f"{self.what(place)}: got shape {shape}, expected length 1 along axis "
                    f"{axis}, which is broadcastable"
                )
        return value

    def what(self, place: int) -> str:
        """Return an input in words, for errors."""
        return f"input {self.labels[place]} of {self._name}"

    def _converted(self, place: int, value: Any) -> Any:
        if isinstance(value, Data):
            return value
        if isinstance(value, np.ndarray):
            return unmasked(value, self.what(place))
        if self._strict[place]:
            raise InputTypeError(
                f"{self.what(place)}: got {type(value).__name__}, expected an ndarray or Data, "
                f"because it is declared strict"
            )
        source = RowSource.of(value) if place < len(self._row_axes) else None
        if source is not None:
            if self._row_axes[place]:
                raise InputTypeError(
                    f"{self.what(place)}: got {shown(value)}, of which rows are read along axis 0, "
                    f"but row_axis is {self._row_axes[place]}; pass numpy.asarray(...) of it"
                )
            return source
        try:
            variable, downcast = self.variables[place], self._downcasts[place]
            return np.asarray(variable.type.filter(value, allow_downcast=downcast))
        except (TypeError, ValueError, OverflowError) as error:
            raise InputTypeError(
                f"{self.what(place)}: got {shown(value)}, expected {variable.type}: "
                f"{clipped(error)}"
            ) from None

    def _check_dtype(self, place: int, dtype: np.dtype) -> None:
        variable, label = self.variables[place], self.labels[place]
        if dtype.kind not in NUMERIC:
            raise InputTypeError(
                f"{self.what(place)}: got dtype {dtype}, expected {variable.dtype}: numbers"
            )
        if self._strict[place]:
            raise InputTypeError(
                f"{self.what(place)}: got dtype {dtype}, expected {variable.dtype}, because it is "
                f"declared strict"
            )
        if not self._downcasts[place] and upcast(variable.dtype, dtype.name) != variable.dtype:
            raise InputTypeError(
                f"{self.what(place)}: got dtype {dtype}, expected {variable.dtype} or a dtype "
                f"that converts to it without loss; convert an array with "
                f".astype({variable.dtype!r}), make a Data with data(..., var={label}, "
                f"force_cast=True), or build the function with allow_input_downcast=True"
            )


class Copy:
    """Copies an input into shared memory, in every call with this plan: if it `selects`, only the
    selected rows, in their order. `axis` is that of the rows, in the target too."""

    def __init__(self, place: int, target: np.ndarray, selects: bool, axis: int = 0) -> None:
        self.place = place
        self._target = np.moveaxis(target, axis, 0) if axis else target
        self._selects = selects
        self._axis = axis

    def __call__(self, value: Any, selection: Optional[Selection]) -> None:
        """Copy `value`, or its selected rows: each row once. Blocks until a source is read."""
        if self._axis:
            value = np.moveaxis(value, self._axis, 0)
        if isinstance(value, RowSource) and selection is not None:
            value.read(selection, self._target)
        elif not self._target.ndim:
            self._target[...] = value
        else:
            rows = selection.rows if self._selects and selection is not None else slice(None)
            copy_rows(value, rows, self._target)


def tokens(values: Sequence[Any]) -> Tuple[Any, ...]:
    """Return a key of a call's checks and plan: equal tokens mean the same plan."""
    found: List[Any] = []
    for value in values:
        if type(value) is np.ndarray:
            found.append((value.dtype, value.shape))
        else:
            found.append(value.token if isinstance(value, (Data, RowSource)) else _ODD)
    return tuple(found)


_ODD = object()
"""The token of a value that is no array yet: no plan has it."""

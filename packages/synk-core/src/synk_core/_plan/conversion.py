"""Convert a user's values to arrays, without changing them unasked."""

from __future__ import annotations

from typing import Any

import numpy as np

from synk_core._text import clipped, shown
from synk_core.exceptions import InputTypeError, InputValueError

from .arguments import checked_flag
from .rows import is_int

MAX_DIMENSIONS = 32
"""Of a NumPy array."""

NUMERIC = "biufc"
"""Kinds of dtype that variables of an engine have: booleans and numbers."""


def condition(value: Any, dtype: Any, ndim: int, force_cast: bool, what: str) -> np.ndarray:
    """Return `value` as an array of this dtype and number of dimensions.

    Without `force_cast` only conversions that keep values are made: what NumPy calls "safe", and
    Python numbers or lists of them, unless a value would change.
    """
    dtype = np.dtype(dtype)
    array = unmasked(value, what)
    force_cast = checked_flag(force_cast, "force_cast")
    if array.dtype.kind not in NUMERIC and not force_cast:
        raise InputTypeError(
            f"{what}: got {shown(value)} of dtype {array.dtype}, expected numbers of dtype "
            f"{dtype}; convert them first"
        )
    if array.ndim != ndim:
        raise InputTypeError(
            f"{what}: got {array.ndim} dimensions (shape {array.shape}), expected {ndim}"
        )
    if array.dtype == dtype:
        return array
    if force_cast or np.can_cast(array.dtype, dtype, "safe"):
        try:
            return array.astype(dtype)
        except (TypeError, ValueError) as error:
            raise InputTypeError(
                f"{what}: got dtype {array.dtype}, which cannot be cast to {dtype}: "
                f"{clipped(error)}; expected numbers"
            ) from None
    if not hasattr(value, "dtype") and array.dtype.kind in "biuf":
        with np.errstate(over="ignore", invalid="ignore"):
            cast = array.astype(dtype)
            back = cast.astype(array.dtype)
        if array.dtype.kind == dtype.kind == "f":
            # Digits may be lost, as one expects; but nothing may become infinite.
            back = np.where(np.isfinite(back), array, back)
        if np.array_equal(back, array, equal_nan=array.dtype.kind == "f"):
            return cast
    raise InputTypeError(
        f"{what}: got dtype {array.dtype}, expected {dtype} (or a dtype that converts to it "
        f"without loss); convert with .astype({dtype.name!r}), or use force_cast=True"
    )


def unmasked(value: Any, what: str) -> np.ndarray:
    """Return `value` as a plain array; raise if it is a masked array with masked entries."""
    if isinstance(value, np.ma.MaskedArray):
        mask: Any = value.mask
        if value.dtype.names is not None:  # one for each field
            mask = np.concatenate([np.ravel(mask[field]) for field in value.dtype.names])
        if np.any(mask):
            raise InputTypeError(
                f"{what}: got a masked array with {np.sum(mask)} masked entries, expected "
                f"values everywhere; fill them with .filled(), or hand over the mask as an input"
            )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputTypeError(
            f"{what}: got {shown(value)} of type {type(value).__name__}, expected an array, or "
            f"numbers in lists of equal lengths; NumPy says: {clipped(error)}"
        ) from error
    # Engines take no others.
    return array if array.flags.aligned else array.copy()


def checked_dtype(dtype: Any) -> np.dtype:
    try:
        found = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise InputTypeError(
            f"dtype: got {shown(dtype)}, expected a NumPy dtype such as 'float32' "
            f"({clipped(error)})"
        ) from None
    if found.kind not in NUMERIC:
        raise InputTypeError(
            f"data(): got dtype {found}, expected one of numbers or booleans: no function takes "
            f"others; convert the values first"
        )
    return found


def checked_ndim(ndim: Any) -> int:
    if not is_int(ndim) or not 0 <= ndim <= MAX_DIMENSIONS:
        raise InputValueError(
            f"ndim: got {shown(ndim)}, expected a number of dimensions from 0 to {MAX_DIMENSIONS}"
        )
    return int(ndim)

"""The precision of products of float32 on NVIDIA GPUs: full, or with factors rounded to TF32.

Tensor cores multiply float32 quickly if factors keep 10 bits of their fraction (TF32, from Ampere
on); sums are float32 all the same. cuDNN may use them for convolutions unless it is told not to:
that depends on the algorithm. cuBLAS, which multiplies matrices, does not unless it is told to.
"""

from __future__ import annotations

import os
from typing import Any

from synk_core._text import shown
from synk_core.exceptions import InputValueError, StartError

USE_PRECISION = "SYNKHRONOS_PRECISION"
"""Environment variable with a precision, for programs that leave it to the default."""

PRECISIONS = ("default", "float32", "tf32")
"""TF32 where the libraries use it by themselves, nowhere, wherever they can."""

OVERRIDE = "NVIDIA_TF32_OVERRIDE"
"""Environment variable of CUDA's libraries, which read it when they are first used: "0" is "full
float32 everywhere"."""


def checked_precision(precision: Any) -> str:
    """Return the precision to use: one of `PRECISIONS`.

    Args:
        precision: "default" is what the environment says, in our variable or NVIDIA's.

    Raises:
        InputValueError: it is none, the environment names none, or the two exclude each other.
    """
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise InputValueError(
            f"precision: got {shown(precision)}, expected 'default', 'float32' or 'tf32'"
        )
    given = os.environ.get(USE_PRECISION, "").strip()
    if given and given not in PRECISIONS:
        raise InputValueError(
            f"{USE_PRECISION}: got {shown(given)}, expected default, float32 or tf32"
        )
    chosen = given if precision == "default" and given else precision
    if os.environ.get(OVERRIDE) == "0":
        if chosen == "tf32":
            raise InputValueError(
                f"precision: got 'tf32', but {OVERRIDE}=0 in the environment excludes TF32; unset "
                f"it before the program starts. fork(precision='float32') sets it, too"
            )
        return "float32"
    return chosen


def exclude_tf32(in_use: Any) -> None:
    """Exclude TF32 from this process, before CUDA's libraries are used.

    Args:
        in_use: the name of the device that this process uses already; None if it uses none.

    Raises:
        StartError: it is too late.
    """
    if os.environ.get(OVERRIDE) == "0":
        return
    if in_use is not None:
        raise StartError(
            f"precision='float32': this process uses {in_use} already, and CUDA's libraries have "
            f"read their settings; call fork() before it does, or set {OVERRIDE}=0 in the "
            f"environment before the program starts"
        )
    os.environ[OVERRIDE] = "0"

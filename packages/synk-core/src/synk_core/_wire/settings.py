"""The settings of a runtime: defaults, limits, and what the environment says in their place."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Tuple, Union

from synk_core._plan.arguments import checked_seconds
from synk_core._text import shown
from synk_core.device import TF32_OVERRIDE
from synk_core.exceptions import InputValueError

USE_GRAPHS = "SYNKHRONOS_CUDA_GRAPHS"
"""Environment variable with a policy, for programs that leave it to the default; "0" is "never"."""

POLICIES = ("auto", "always", "never")
"""Replay functions if that is quicker, whenever it is possible, never."""


USE_PRECISION = "SYNKHRONOS_PRECISION"
"""Environment variable with a precision, for programs that leave it to the default."""

PRECISIONS = ("default", "float32", "tf32")
"""TF32 where the libraries use it by themselves, nowhere, wherever they can.

Tensor cores multiply float32 quickly if factors keep 10 bits of their fraction (TF32, from Ampere
on); sums are float32 all the same. cuDNN may use them for convolutions unless the environment
forbids it: that depends on the algorithm. cuBLAS, which multiplies matrices, does not by itself.
"""

STREAMS = ("per_rank", "identical")
"""Random streams that each worker seeds for itself, or that are the master's on all ranks."""


@dataclass(frozen=True)
class Settings:
    """The settings of a runtime, the same in all its processes: those of `synkhronos.fork`.

    Attributes:
        timeout_s: seconds after which a wait for another rank is given up.
        stall_s: seconds after which a wait is warned of.
        nccl: whether collectives of devices go through NCCL.
        profile: whether each worker writes a profile.
        at_start: acts (`Own`) that every rank performs when it starts.
        seed: of the workers' global generators, with their rank.

    Raises:
        InputValueError: one is out of range, or the environment names none for its default.
    """

    backend: str = "shm"
    timeout_s: float = 3600.0
    stall_s: float = 60.0
    atomic: bool = True
    random_streams: str = "per_rank"
    nccl: bool = False
    graphs: Any = "never"
    precision: str = "default"
    profile: bool = False
    at_start: Tuple[Any, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.random_streams not in STREAMS:
            raise InputValueError(
                f"random_streams: got {shown(self.random_streams)}, expected 'per_rank' or "
                f"'identical'"
            )
        for name, value in (
            ("timeout_s", checked_seconds(self.timeout_s, "timeout_s")),
            ("stall_s", checked_seconds(self.stall_s, "stall_s")),
            ("atomic", bool(self.atomic)),
            ("graphs", checked_policy(self.graphs)),
            ("precision", checked_precision(self.precision)),
            ("profile", bool(self.profile)),
        ):
            object.__setattr__(self, name, value)

    @property
    def reseeds(self) -> bool:
        """Whether each worker seeds its random streams anew."""
        return self.random_streams == "per_rank"


def checked_policy(graphs: Union[str, bool]) -> str:
    """Return which functions are to be replayed: one of `POLICIES`.

    Args:
        graphs: False is "never"; "auto" is what the environment says.

    Raises:
        InputValueError: it is no policy, or the environment names none.
    """
    if graphs is False:
        return "never"
    if not isinstance(graphs, str) or graphs not in POLICIES:
        raise InputValueError(f"graphs: got {shown(graphs)}, expected 'auto', 'always' or False")
    given = os.environ.get(USE_GRAPHS, "").strip()
    if graphs != "auto" or not given:
        return graphs
    policy = "never" if given == "0" else given
    if policy not in POLICIES:
        raise InputValueError(f"{USE_GRAPHS}: got {shown(given)}, expected 'auto', 'always' or 0")
    return policy


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
    if os.environ.get(TF32_OVERRIDE) == "0":
        if chosen == "tf32":
            raise InputValueError(
                f"precision: got 'tf32', but {TF32_OVERRIDE}=0 in the environment excludes TF32; "
                f"unset it before the program starts. fork(precision='float32') sets it, too"
            )
        return "float32"
    return chosen

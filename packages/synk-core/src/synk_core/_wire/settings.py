"""The settings of a runtime: defaults and limits, from arguments and the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Tuple, Union

from synk_core._plan.arguments import checked_seconds
from synk_core._text import shown
from synk_core.device import TF32_OVERRIDE
from synk_core.exceptions import InputValueError

USE_GRAPHS = "SYNKHRONOS_CUDA_GRAPHS"
"""Environment variable with a default policy; "0" is "never"."""

POLICIES = ("auto", "always", "never")
"""Replay functions if that is quicker, whenever it is possible, never."""

USE_PRECISION = "SYNKHRONOS_PRECISION"
"""Environment variable with a default precision."""

PRECISIONS = ("default", "float32", "tf32")
"""TF32 in operations for which the libraries choose it, in none, in all possible ones.

Tensor cores (from Ampere on) multiply float32 quickly if factors keep 10 bits of their fraction;
sums are float32. By default cuDNN may use them for convolutions, and cuBLAS does not.
"""

STREAMS = ("per_rank", "identical")
"""Random streams that each worker seeds for itself, or that are the master's on all ranks."""


@dataclass
class Settings:
    """The settings of a runtime, the same in all its processes: those of `synkhronos.fork`.

    Attributes:
        timeout_s: seconds until a rank gives up its wait for another one.
        stall_s: seconds until the master warns of a wait.
        nccl: whether collectives of devices go through NCCL.
        profile: whether each worker writes a profile.
        at_start: acts (`Own`) that every rank performs when it starts.
        seed: of the workers' global generators, with their rank.
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
        self.timeout_s = checked_seconds(self.timeout_s, "timeout_s")
        self.stall_s = checked_seconds(self.stall_s, "stall_s")
        self.atomic = bool(self.atomic)
        self.graphs = checked_policy(self.graphs)
        self.precision = checked_precision(self.precision)
        self.profile = bool(self.profile)

    @property
    def reseeds(self) -> bool:
        """Whether each worker seeds its random streams anew."""
        return self.random_streams == "per_rank"


def checked_policy(graphs: Union[str, bool]) -> str:
    """Return a policy, "never" for False, and that of the environment for "auto"."""
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
    """Return a precision, for "default" that of the environment, in our variable or NVIDIA's; raise
    if the two exclude each other."""
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

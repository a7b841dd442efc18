"""Which processes a run needs: few, for each of them compiles its functions anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PARTS = ("allreduce", "fork", "resnet", "distribution", "timeline", "files", "vgg", "ddp")
NETWORKS = ("resnet", "vgg")


@dataclass(frozen=True)
class Job:
    """A process to run.

    Attributes:
        kind: what `gpubench.job` does in it, or "ddp".
        gpus: how many GPUs it works on.
        limit_s: after which it is ended.
        network: "resnet", "vgg", or "".
        measures: what it measures besides: "steps", "distribution", "timeline", "files".
    """

    kind: str
    gpus: int
    limit_s: float
    network: str = ""
    measures: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For files and messages, one of its own in any run."""
        return "-".join(filter(None, (self.kind, self.network, str(self.gpus))))


def groups(only: Sequence[str], gpus: Sequence[int]) -> dict[str, list[Job]]:
    """Return the jobs by group; what one process can measure is put together.

    Args:
        only: names of `PARTS`.
        gpus: numbers of GPUs.

    Raises:
        ValueError: an unknown name, or a number below 1.
    """
    unknown = sorted(set(only) - set(PARTS))
    if unknown:
        raise ValueError(f"there is no part {', '.join(unknown)}; expected some of {PARTS}")
    if not gpus or min(gpus) < 1:
        raise ValueError(f"GPUs: got {list(gpus)}, expected numbers from 1 on")
    several = [n for n in sorted(set(gpus)) if n > 1]
    found: dict[str, list[Job]] = {}
    if "allreduce" in only:
        found["allreduce"] = [Job("collectives", n, 90) for n in several]
    if "fork" in only:
        found["fork"] = [Job("starting", n, 90) for n in sorted(set(gpus))]
    for network in NETWORKS:
        jobs = []
        if network in only:
            jobs.append(Job("plain", 1, 260, network))
        for n in sorted(set(gpus)):
            measures = _measures(network, n, only, several)
            if measures:
                jobs.append(Job("ours", n, 260, network, measures))
        found[network] = jobs
    if "ddp" in only:
        found["ddp"] = [Job("ddp", n, 120) for n in sorted(set(gpus))]
    return {name: jobs for name, jobs in found.items() if jobs}


def _measures(network: str, n: int, only: Sequence[str], several: list[int]) -> tuple[str, ...]:
    measures = []
    if network in only:
        measures.append("steps")
    if network == "resnet":
        if "distribution" in only and n > 1:
            measures.append("distribution")
        if n in several[-1:]:
            measures += [name for name in ("timeline", "files") if name in only]
    return tuple(measures)

"""Compute torch_schedules.json: the learning rates of PyTorch's schedulers.

    python3 tests/make_torch_schedules.py

As for torch_reference.json, the tests read PyTorch's numbers from a file.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch
from torch.optim import lr_scheduler as s

FILE = Path(__file__).with_name("torch_schedules.json")
EPOCHS = 13
RATE = 0.3

SCHEDULES = {
    "step": lambda o: s.StepLR(o, 4, 0.2),
    "steps": lambda o: s.MultiStepLR(o, [2, 3, 9], 0.2),
    "exponential": lambda o: s.ExponentialLR(o, 0.8),
    "cosine": lambda o: s.CosineAnnealingLR(o, EPOCHS, 0.02),
    "warm-up": lambda o: s.LinearLR(o, 0.25, total_iters=5),
    "warm-up, exponential": lambda o: s.SequentialLR(
        o, [s.LinearLR(o, 0.25, total_iters=5), s.ExponentialLR(o, 0.8)], milestones=[5]
    ),
}
# (patience, cooldown, threshold)
PLATEAUS = [(0, 0, 0.0), (2, 0, 0.1), (1, 2, 0.0)]


def optimizer():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE)


def rates(sgd, scheduler, losses=None):
    """The rate before each epoch, and after the last."""
    kept = []
    for epoch in range(EPOCHS):
        kept.append(sgd.param_groups[0]["lr"])
        sgd.step()
        scheduler.step(*(() if losses is None else (losses[epoch],)))
    return kept


def main():
    schedules, plateaus = {}, []
    for name, make in SCHEDULES.items():
        sgd = optimizer()
        schedules[name] = rates(sgd, make(sgd))
    generator = torch.Generator().manual_seed(1)
    for patience, cooldown, threshold in PLATEAUS:
        sgd = optimizer()
        losses = torch.rand(EPOCHS, dtype=torch.float64, generator=generator).tolist()
        scheduler = s.ReduceLROnPlateau(
            sgd,
            factor=0.5,
            patience=patience,
            threshold=threshold,
            threshold_mode="abs",
            cooldown=cooldown,
            min_lr=0.02,
        )
        plateaus.append(
            {
                "patience": patience,
                "cooldown": cooldown,
                "threshold": threshold,
                "losses": losses,
                "rates": rates(sgd, scheduler, losses),
            }
        )
    told = {
        "what": "learning rates of PyTorch's schedulers; made by make_torch_schedules.py",
        "torch": torch.__version__.split("+")[0],
        "schedules": schedules,
        "plateaus": plateaus,
    }
    FILE.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SequentialLR uses what PyTorch deprecates itself
        main()

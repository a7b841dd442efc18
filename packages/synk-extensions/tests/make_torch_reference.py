"""Compute torch_reference.json: where PyTorch's CPU optimisers take the parameters, with what
clips gradients, makes weights decay and bounds them.

    python3 tests/make_torch_reference.py

PyTorch is gigabytes, so the tests read its numbers from that file. This runs under any Python
that has PyTorch and NumPy (Debian: ``apt install python3-torch``); the file says which version
made it. The settings are those in which the definitions agree:

* epsilon is 0, because PyTorch adds it at another place than the paper of Adam does;
* ``clip_grad_norm_`` divides by the norm plus 1e-6 and ``renorm`` by the norm plus 1e-7: their
  limits are made larger by the same factor, which leaves the ratio of limit and norm.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from _update_problem import STEPS, data, start_values

FILE = Path(__file__).with_name("torch_reference.json")
KEPT = (1, 2, STEPS)  # the steps after which the parameters are written down

LR = 0.05
SMALL_LR = 0.02
BETAS = (0.8, 0.95)

MAX_NORM = 0.6  # of the whole gradient
MAX_VALUE = 0.2  # of an element of the gradient
UNIT_NORM = 0.9  # of the weights of a unit
LOW, HIGH = -0.3, 0.4  # of an element of a parameter


def _matrices(params):
    return [param for param in params if param.ndim > 1]


def _others(params):
    return [param for param in params if param.ndim <= 1]


def _clip_norm(params):
    norm = torch.nn.utils.clip_grad_norm_(params, float("inf"))  # measures, changes nothing
    torch.nn.utils.clip_grad_norm_(params, MAX_NORM * float((norm + 1e-6) / norm))


def _clip_value(params):
    torch.nn.utils.clip_grad_value_(params, MAX_VALUE)


def _renorm(params):
    for param in _matrices(params):
        for unit in param.T:  # a column, which is a view: the parameter is changed
            row = unit.detach()[None]
            norm = float(row.norm())
            unit.copy_(row.renorm(2, 0, UNIT_NORM * (norm + 1e-7) / norm)[0])


def _clamp(params):
    for param in params:
        param.clamp_(LOW, HIGH)


def _momentum(params, **settings):
    return torch.optim.SGD(params, LR, momentum=0.8, **settings)


def _adam(params):
    return torch.optim.Adam(params, SMALL_LR, BETAS, eps=0)


# name -> (params -> optimiser, what is done to gradients before its step, to parameters after it)
CASES = {
    "momentum, clip_grad_norm_": (_momentum, [_clip_norm], []),
    "momentum, clip_grad_value_": (_momentum, [_clip_value], []),
    "momentum, weight_decay": (lambda p: _momentum(p, weight_decay=0.3), [], []),
    "adam, weight_decay of matrices": (
        lambda p: _adam([{"params": _matrices(p), "weight_decay": 0.3}, {"params": _others(p)}]),
        [],
        [],
    ),
    "AdamW": (lambda p: torch.optim.AdamW(p, SMALL_LR, BETAS, eps=0, weight_decay=0.4), [], []),
    "AdamW of matrices, amsgrad": (
        lambda p: torch.optim.AdamW(
            [
                {"params": _matrices(p), "weight_decay": 0.4},
                {"params": _others(p), "weight_decay": 0},
            ],
            SMALL_LR,
            BETAS,
            eps=0,
            amsgrad=True,
        ),
        [],
        [],
    ),
    "momentum, renorm": (_momentum, [], [_renorm]),
    "adam, clamp": (_adam, [], [_clamp]),
    "clip_grad_norm_, AdamW, renorm, clamp": (
        lambda p: torch.optim.AdamW(p, SMALL_LR, BETAS, eps=0, weight_decay=0.4),
        [_clip_norm],
        [_renorm, _clamp],
    ),
}


def reference(name):
    """Return {number of steps: elements of all parameters, end to end} for one case."""
    optimizer_of, before, after = CASES[name]
    params = [torch.tensor(v.tolist(), dtype=torch.float64) for v in start_values()]
    for param in params:
        param.requires_grad_()
    W, b, column, scale, last = params
    optimizer = optimizer_of(params)
    kept = {}
    for step, batch in enumerate(data(), 1):
        x = torch.tensor(batch.tolist(), dtype=torch.float64)
        out = torch.tanh(x @ W + b) @ column * scale + last
        loss = ((out - torch.sin(x.sum(1, keepdim=True))) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        for change in before:
            change(params)
        optimizer.step()
        with torch.no_grad():
            for change in after:
                change(params)
        if step in KEPT:
            kept[str(step)] = [
                value for param in params for value in param.detach().flatten().tolist()
            ]
    return kept


if __name__ == "__main__":
    answer = {
        "what": "parameters after some steps of PyTorch's CPU optimisers, in float64; made by "
        "make_torch_reference.py",
        "torch": str(torch.__version__),
        "cases": {name: reference(name) for name in CASES},
    }
    text = json.dumps(answer, indent=1)
    # One line for each list of numbers.
    for values in (v for case in answer["cases"].values() for v in case.values()):
        text = text.replace(
            "[\n    " + ",\n    ".join(map(repr, values)) + "\n   ]", json.dumps(values)
        )
    FILE.write_text(text + "\n", encoding="utf-8")
    print(f"{FILE.name}: {len(CASES)} cases by torch {torch.__version__}")

"""What the two trainings of ResNet-50 share: the model, data, options, a meter.

Its network is `lasagne_network`, for Theano, or `nn_network`, for PyTensor.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any, NamedTuple, Sequence

import numpy as np
from synkhronos.engine import NAME
from synkhronos_examples.demos.options import add_options, fork_arguments

if NAME == "theano":
    from lasagne_network import build, build_network
else:
    from nn_network import build, build_network

__all__ = ["build_network", "fork_arguments"]


class Size(NamedTuple):
    """A network: of images with `side` pixels, and stages of so many bottleneck blocks."""

    side: int = 224
    classes: int = 1000
    width: int = 64
    blocks: Sequence[int] = (3, 4, 6, 3)


RESNET50 = Size()
TINY = Size(side=32, classes=10, width=8, blocks=(1, 1))


class ResNetModel(NamedTuple):
    """Expressions and variables of a network, to make training functions of."""

    inputs: list[Any]  # images and labels
    loss: Any  # in training: normalized by each batch's own mean and variance
    params: list[Any]
    running: list[Any]  # the averages of means and variances that validation normalizes by
    running_updates: list[Any]
    validation: list[Any]  # loss and accuracy


def build_model(size: Size = RESNET50, seed: int = 1) -> ResNetModel:
    """Build a network, always with the same parameters for the same seed."""
    return ResNetModel(**build(size, seed))


def synthetic_images(number: int, size: Size = RESNET50, seed: int = 2) -> tuple[Any, Any]:
    """Images and labels: ten coarse patterns, one for each of the first ten classes, and noise."""
    rng = np.random.default_rng(seed)
    classes = min(size.classes, 10)
    coarse = rng.standard_normal((classes, 3, 4, 4), dtype=np.float32)
    patterns = coarse.repeat(size.side // 4, axis=2).repeat(size.side // 4, axis=3)
    labels = rng.integers(classes, size=number).astype("int32")
    images = rng.standard_normal((number, 3, size.side, size.side), dtype=np.float32)
    images += patterns[labels]
    return images, labels


class Meter:
    """Prints loss and images per second, for each interval of steps."""

    def __init__(self, steps: int, interval: int) -> None:
        self._steps, self._interval = steps, interval
        self._step = 0
        self._speeds: list[float] = []
        self._start()

    def _start(self) -> None:
        self._images, self._losses, self._begin = 0, [], time.perf_counter()

    def step(self, images: int, loss: Any) -> None:
        """Count a step over so many images."""
        self._step += 1
        self._images += images
        self._losses.append(float(loss))
        if self._step == 1:
            # The first step also chooses algorithms and takes memory: it is shown by itself.
            print(f"step 1 of {self._steps}: loss {loss:.4f}", flush=True)
            self._start()
        elif len(self._losses) == self._interval or self._step == self._steps:
            self._speeds.append(self._images / (time.perf_counter() - self._begin))
            state = f"loss {np.mean(self._losses):.4f}, {self._speeds[-1]:.1f} images/s"
            print(f"step {self._step} of {self._steps}: {state}", flush=True)
            self._start()

    @property
    def speed(self) -> float:
        """Images per second: the median over the intervals."""
        return median(self._speeds) if self._speeds else float("nan")


def parse(about: str | None) -> argparse.Namespace:
    """The options of both trainings."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--tiny", action="store_true", help="a small network on small images, for CPUs")
    add("--batch-size", type=int, help="images per step and device (default: 64; tiny: 32)")
    add("--steps", type=int, help="how many (default: 200; tiny: 40)")
    add("--interval", type=int, default=10, help="steps per line (default: %(default)s)")
    add("--images", type=int, help="of the data set (default: 1280; tiny: 640)")
    add("--learning-rate", type=float, help="default: 0.02; tiny: 0.05")
    add_options(parser)
    full = {"batch_size": 64, "steps": 200, "images": 1280, "learning_rate": 0.02}
    tiny = {"batch_size": 32, "steps": 40, "images": 640, "learning_rate": 0.05}
    parser.set_defaults(**full)
    if parser.parse_args().tiny:
        parser.set_defaults(**tiny)
    options = parser.parse_args()
    options.size = TINY if options.tiny else RESNET50
    for name, least in {"batch_size": 1, "steps": 1, "interval": 1, "images": 2}.items():
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')}: expected at least {least}")
    return options


def use_device(options: argparse.Namespace) -> None:
    """Let Theano compute on the one device of the options, without which it follows its flags."""
    if options.processes not in (None, 1) or "," in (options.devices or ""):
        raise SystemExit("this program uses one device; expected one in --devices, no --processes")
    if options.devices not in (None, "cpu"):
        import theano.gpuarray

        theano.gpuarray.use(options.devices)

"""Train a denoising autoencoder on handwritten digits, with batches that a generator makes.

    python examples/autoencoder.py

The network gets noisy images and returns clean ones, by way of a few numbers for each. Noise is
drawn with each batch, from the number of the epoch: so the training is the same for any number of
processes. The program trains in this process alone, too; it ends with an error if the parameters
differ, or if what the network returns is no closer to the clean images than what it got.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import synkhronos as synk
from synkhronos.engine import T, engine
from synkhronos.extensions import updates
from synkhronos.extensions.batches import index_batches
from synkhronos.extensions.train import (
    Trainer,
    make_train_function,
    make_train_function_theano,
)

CODE, NOISE, EPOCHS = 24, 0.25, 30
LARGEST_DIFFERENCE = 1e-9  # of float64 parameters, after Adam has divided by small numbers

images = load_digits().data / 16.0
train_images, held_out = images[:1500], images[1500:]


def batches(epoch: int) -> Iterator[tuple[Any, Any]]:
    """Yield noisy and clean images of an epoch. A thread draws them while others are computed."""
    rng = np.random.default_rng([1, epoch])
    for rows in index_batches(len(train_images), 100, rng):
        clean = train_images[rows]
        yield clean + rng.normal(0, NOISE, clean.shape), clean


def train_network(make: Any) -> tuple[list[Any], Any, Any]:
    """Return the parameters after training, the input, and the images that the network returns."""
    rng = np.random.default_rng(2)
    noisy, clean = T.dmatrix("noisy"), T.dmatrix("clean")
    encode = engine.shared(rng.normal(0, 0.1, (64, CODE)), "encode")
    decode = engine.shared(rng.normal(0, 0.1, (CODE, 64)), "decode")
    biases = [engine.shared(np.zeros(n), name) for n, name in ((CODE, "b"), (64, "c"))]
    code = T.tanh(noisy.dot(encode) + biases[0])
    restored = code.dot(decode) + biases[1]
    params = [encode, decode, *biases]
    loss = T.sqr(restored - clean).mean()
    train = make(loss, params, [noisy, clean], updates.adam, learning_rate=0.01)
    history = Trainer(train, batches, verbose=False).run(EPOCHS)
    losses = history["train_loss"]
    print(f"  loss {losses[0]:.4f} in the first epoch, {losses[-1]:.4f} in the last")
    return [param.get_value() for param in params], noisy, restored


def main() -> None:
    synk.fork()
    print("in parallel")
    reached, noisy, restored = train_network(make_train_function)
    restore = synk.function([noisy], [(restored, "gather")])
    disturbed = held_out + np.random.default_rng(3).normal(0, NOISE, held_out.shape)
    (found,) = restore(disturbed)
    synk.close()

    print("in one process")
    expected, _, _ = train_network(make_train_function_theano)
    difference = max(np.abs(a - b).max() for a, b in zip(reached, expected))
    before, after = (np.sqrt(np.square(a - held_out).mean()) for a in (disturbed, found))
    print(f"largest difference of a parameter: {difference:.1e}")
    print(f"error of images not trained with: {before:.3f} with noise, {after:.3f} restored")
    if difference > LARGEST_DIFFERENCE or after > 0.8 * before:
        raise SystemExit("expected equal parameters, and a smaller error")


if __name__ == "__main__":
    main()

"""Train a multilayer perceptron on handwritten digits, in plain PyTensor.

python pytensor_plain.py             # 5 epochs
python pytensor_plain.py 20
"""

import sys
import time

import numpy as np
import pytensor
import pytensor.tensor as pt
from sklearn.datasets import load_digits


def load_dataset():
    """Images with the shape (rows, 64) between 0 and 1, their labels; some held out."""
    images, labels = load_digits(return_X_y=True)
    images, labels = images / 16, labels.astype("int32")
    return images[:-297], labels[:-297], images[-297:], labels[-297:]


def build_mlp(images):
    """Two hidden layers of 400 rectified units; log probabilities of ten classes."""
    rng = np.random.default_rng(1)
    hidden, width, params = images, 64, []
    for units in (400, 400, 10):
        limit = np.sqrt(6 / (width + units))
        weights = pytensor.shared(rng.uniform(-limit, limit, (width, units)))
        bias = pytensor.shared(np.zeros(units))
        scores = hidden @ weights + bias
        hidden, width = pt.maximum(scores, 0), units
        params += [weights, bias]
    return pt.special.log_softmax(scores, axis=1), params


def momentum_updates(loss, params, learning_rate, momentum=0.9):
    """Stochastic gradient descent with momentum."""
    updates = []
    for param, gradient in zip(params, pytensor.grad(loss, params)):
        velocity = pytensor.shared(0 * param.get_value())
        step = momentum * velocity - learning_rate * gradient
        updates += [(velocity, step), (param, param + step)]
    return updates


def iterate_minibatches(inputs, targets, batch_size, rng):
    """Each row once, in random order; the last batch may be smaller."""
    order = rng.permutation(len(inputs))
    for start in range(0, len(inputs), batch_size):
        rows = order[start : start + batch_size]
        yield inputs[rows], targets[rows]


def main(num_epochs=5, batch_size=100):
    x_train, y_train, x_val, y_val = load_dataset()

    images, labels = pt.matrix("images"), pt.ivector("labels")
    log_probabilities, params = build_mlp(images)
    loss = -log_probabilities[pt.arange(labels.shape[0]), labels].mean()
    accuracy = pt.eq(log_probabilities.argmax(axis=1), labels).mean()

    inputs = [images, labels]
    updates = momentum_updates(loss, params, learning_rate=0.05)
    train_fn = pytensor.function(inputs, loss, updates=updates)
    val_fn = pytensor.function(inputs, [loss, accuracy])

    rng = np.random.default_rng(2)
    for epoch in range(num_epochs):
        start = time.time()
        batches = iterate_minibatches(x_train, y_train, batch_size, rng)
        losses = [train_fn(*batch) for batch in batches]
        val_loss, val_acc = val_fn(x_val, y_val)
        print(f"Epoch {epoch + 1} of {num_epochs} took {time.time() - start:.3f} s")
        print(f"  training loss:       {np.mean(losses):.12f}")
        print(f"  validation loss:     {val_loss:.12f}")
        print(f"  validation accuracy: {val_acc:.2%}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""Train a multilayer perceptron on handwritten digits, with Lasagne in plain Theano.

python train_plain.py                # 5 epochs
python train_plain.py 20
"""

import sys
import time

import lasagne
import numpy as np
import theano
import theano.tensor as T
from sklearn.datasets import load_digits


def load_dataset():
    """Images with the shape (rows, 1, 8, 8) between 0 and 1, their labels; some held out."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 1, 8, 8).astype(theano.config.floatX) / 16
    labels = labels.astype("int32")
    return images[:-297], labels[:-297], images[-297:], labels[-297:]


def build_mlp(input_var):
    """Two hidden layers of 400 rectified units, and ten classes."""
    network = lasagne.layers.InputLayer((None, 1, 8, 8), input_var)
    for _ in range(2):
        network = lasagne.layers.DenseLayer(network, 400, W=lasagne.init.GlorotUniform())
    return lasagne.layers.DenseLayer(network, 10, nonlinearity=lasagne.nonlinearities.softmax)


def iterate_minibatches(inputs, targets, batch_size, rng):
    """Each row once, in random order; the last batch may be smaller."""
    order = rng.permutation(len(inputs))
    for start in range(0, len(inputs), batch_size):
        rows = order[start : start + batch_size]
        yield inputs[rows], targets[rows]


def main(num_epochs=5, batch_size=100):
    lasagne.random.set_rng(np.random.RandomState(1))
    x_train, y_train, x_val, y_val = load_dataset()

    input_var = T.tensor4("inputs")
    target_var = T.ivector("targets")
    network = build_mlp(input_var)
    prediction = lasagne.layers.get_output(network)
    loss = lasagne.objectives.categorical_crossentropy(prediction, target_var).mean()
    params = lasagne.layers.get_all_params(network, trainable=True)
    test_prediction = lasagne.layers.get_output(network, deterministic=True)
    test_loss = lasagne.objectives.categorical_crossentropy(test_prediction, target_var).mean()
    test_acc = T.eq(T.argmax(test_prediction, axis=1), target_var).mean(dtype="float64")

    inputs = [input_var, target_var]
    updates = lasagne.updates.nesterov_momentum(loss, params, learning_rate=0.05)
    train_fn = theano.function(inputs, loss, updates=updates)
    val_fn = theano.function(inputs, [test_loss, test_acc])

    rng = np.random.RandomState(2)
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

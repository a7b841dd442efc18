"""Train a network on handwritten digits; the data stays in host memory.

    python train_cpu_data.py                             # all GPUs; without any, all cores
    python train_cpu_data.py --model cnn --data FOLDER   # with MNIST's files
    python train_cpu_data.py --data digits --devices cpu --processes 2

The data set is copied to shared memory once. A step gets a list of shuffled indexes; each process
reads its own part (and copies it to its GPU).
"""

import numpy as np
import synkhronos as synk
from synkhronos.extensions.batches import index_batches
from synkhronos.extensions.train import make_train_function
from synkhronos.extensions.updates import nesterov_momentum

import mnist_data
import networks


def main():
    options = networks.parse(__doc__)
    digits = mnist_data.load(options.data)
    synk.fork(**options.fork)
    model = networks.build_model(options.model, side=digits.x_train.shape[-1])
    train = make_train_function(
        model.loss,
        model.params,
        model.inputs,
        nesterov_momentum,
        learning_rate=options.learning_rate,
    )
    validate = synk.function(model.inputs, model.validation)
    synk.distribute()

    x_train, y_train = train.build_inputs(digits.x_train, digits.y_train)
    x_valid, y_valid = validate.build_inputs(digits.x_valid, digits.y_valid)
    rng = np.random.RandomState(2)
    epochs = networks.Epochs(options)
    for _ in epochs:
        batches = index_batches(len(x_train), options.batch_size, rng)
        losses = [train(x_train, y_train, batch=indexes) for indexes in batches]
        epochs.trained(losses, len(x_train))
        # The whole validation set in one call; each process takes its part in four slices.
        epochs.validated(*validate(x_valid, y_valid, num_slices=4))
    synk.close()
    epochs.finish()


if __name__ == "__main__":
    main()

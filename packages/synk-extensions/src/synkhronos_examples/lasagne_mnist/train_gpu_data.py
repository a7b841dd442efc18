"""Train a network on handwritten digits; the data stays in the devices' memories.

    python train_gpu_data.py                             # all GPUs; without any, all cores
    python train_gpu_data.py --model cnn --data FOLDER   # with MNIST's files
    python train_gpu_data.py --data digits --devices cpu --processes 2

The data set is scattered once: every process has its part in shared variables. A step gets a list
of indexes for each process, and no data moves any more. A process only sees its own part, so rows
are shuffled within the parts.
"""

import numpy as np
import synkhronos as synk
import theano
from synkhronos.extensions.train import make_train_function
from synkhronos.extensions.updates import nesterov_momentum

import mnist_data
import networks


def main():
    options = networks.parse(__doc__)
    digits = mnist_data.load(options.data)
    synk.fork(**options.fork)
    model = networks.build_model(options.model, side=digits.x_train.shape[-1])

    # To begin with each holds one row: it is the kind that counts. Theano keeps float arrays on
    # the GPU; integers stay with the host, which for labels is as good.
    train_data = [theano.shared(digits.x_train[:1]), theano.shared(digits.y_train[:1])]
    valid_data = [theano.shared(digits.x_valid[:1]), theano.shared(digits.y_valid[:1])]
    train = make_train_function(
        model.loss,
        model.params,
        [],
        nesterov_momentum,
        learning_rate=options.learning_rate,
        givens=list(zip(model.inputs, train_data)),
        sliceable_shareds=train_data,
    )
    validate = synk.function(
        [],
        model.validation,
        givens=list(zip(model.inputs, valid_data)),
        sliceable_shareds=valid_data,
    )
    synk.distribute()
    synk.scatter(train_data, [digits.x_train, digits.y_train])
    synk.scatter(valid_data, [digits.x_valid, digits.y_valid])

    rows = len(digits.x_train)
    lengths = synk.get_lengths(train_data[0])
    steps = -(-rows // options.batch_size)
    rng = np.random.RandomState(2)
    epochs = networks.Epochs(options)
    for _ in epochs:
        # Each process's rows in random order, dealt into as many batches as there are steps.
        orders = [np.array_split(rng.permutation(length), steps) for length in lengths]
        losses = [train(batch_s=list(batch)) for batch in zip(*orders)]
        epochs.trained(losses, rows)
        # All rows that the processes hold, in four slices each.
        epochs.validated(*validate(num_slices=4))
    synk.close()
    epochs.finish()


if __name__ == "__main__":
    main()

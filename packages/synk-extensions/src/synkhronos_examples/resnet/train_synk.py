"""Train ResNet-50 on synthetic images, on all devices.

    python train_synk.py                       # all GPUs; without any, all cores
    python train_synk.py --devices cuda0,cuda1
    python train_synk.py --tiny --devices cpu  # some seconds on a CPU

`train_plain.py` is the same program in plain Theano; `diff train_plain.py train_synk.py`.
"""

import warnings

import numpy as np
import synkhronos as synk
from synkhronos.exceptions import DecompositionWarning
from synkhronos.extensions.train import make_train_function
from synkhronos.extensions.updates import nesterov_momentum

import resnet

# Every device normalizes by mean and variance of its own part of a batch: so does all training of
# this kind, but the step is then not quite that of one device. synk says so, and would not go on.
warnings.filterwarnings("ignore", "(?s).*(BatchNorm|over all rows)", DecompositionWarning)


def make_training(model, learning_rate):
    """The functions that take a step, and that return loss and accuracy."""
    arguments = (model.loss, model.params, model.inputs, nesterov_momentum, learning_rate, 0.9)
    train = make_train_function(*arguments, updates=model.running_updates, proof=False)
    validate = synk.function(model.inputs, model.validation)
    return train, validate


def main():
    options = resnet.parse(__doc__)
    devices = synk.fork(**resnet.fork_arguments(options))
    batch_size = options.batch_size * devices
    model = resnet.build_model(options.size)
    train, validate = make_training(model, options.learning_rate)
    synk.distribute()
    images, labels = resnet.synthetic_images(options.images, options.size)
    images, labels = train.build_inputs(images, labels)
    rows = options.images - options.images // 8

    rng = np.random.RandomState(3)
    meter = resnet.Meter(options.steps, options.interval)
    for _ in range(options.steps):
        batch = rng.randint(rows, size=batch_size)
        loss = train(images, labels, batch=batch)
        meter.step(batch_size, loss)
    print(f"{meter.speed:.1f} images/s on {devices} device(s)")

    # The parameters are the same on all devices. The running means and variances are not, as each
    # device averaged those of its own rows.
    synk.all_reduce(model.running, op="avg")
    loss, accuracy = validate(images, labels, batch=slice(rows, None), num_slices=4)
    print(f"validation: loss {loss:.4f}, accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()

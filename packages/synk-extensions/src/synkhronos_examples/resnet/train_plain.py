"""Train ResNet-50 on synthetic images, in plain Theano on one device.

    python train_plain.py                      # as THEANO_FLAGS say, for instance device=cuda
    python train_plain.py --devices cuda0
    python train_plain.py --tiny               # some seconds on a CPU

`train_synk.py` is the same program on all devices; `diff train_plain.py train_synk.py`.
"""

import numpy as np
import theano
from lasagne.updates import nesterov_momentum

import resnet


def make_training(model, learning_rate):
    """The functions that take a step, and that return loss and accuracy."""
    updates = nesterov_momentum(model.loss, model.params, learning_rate, 0.9)
    updates.update(model.running_updates)
    train = theano.function(model.inputs, model.loss, updates=updates)
    validate = theano.function(model.inputs, model.validation)
    return train, validate


def main():
    options = resnet.parse(__doc__)
    resnet.use_device(options)
    devices = 1
    batch_size = options.batch_size * devices
    model = resnet.build_model(options.size)
    train, validate = make_training(model, options.learning_rate)
    images, labels = resnet.synthetic_images(options.images, options.size)
    rows = options.images - options.images // 8

    rng = np.random.RandomState(3)
    meter = resnet.Meter(options.steps, options.interval)
    for _ in range(options.steps):
        batch = rng.randint(rows, size=batch_size)
        loss = train(images[batch], labels[batch])
        meter.step(batch_size, loss)
    print(f"{meter.speed:.1f} images/s on {devices} device(s)")

    loss, accuracy = validate(images[rows:], labels[rows:])
    print(f"validation: loss {loss:.4f}, accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()

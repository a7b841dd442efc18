"""Each rank has several devices, under names: a program of its own, because names stay.

python _contexts.py '[["opencl0:0", "opencl0:0"], ["opencl0:0", "opencl0:0"]]'
THEANO_FLAGS='contexts=dev0->cuda0;dev1->cuda0' python _contexts.py '["cuda0", "cuda1"]'
THEANO_FLAGS='contexts=dev0->cuda0;dev1->cuda0' python _contexts.py '[]'     # plain Theano
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import theano
import theano.tensor as T

import synkhronos as synk
from synkhronos.extensions import updates
from synkhronos.extensions.train import make_train_function

WIDE, ROWS, RATE = 32, 21, 0.25
PYTHON = theano.Mode(linker="py", optimizer=None)


def close_to(got: Any, expected: Any) -> None:
    """Assert that arrays are equal to the rounding of sums in float32."""
    np.testing.assert_allclose(np.asarray(got), expected, rtol=2e-4, atol=2e-5)


def plain() -> None:
    """Theano's tutorial without synkhronos: no context is the default."""
    values = [np.full((8, 8), i, "float32") for i in (2, 3)]
    one, other = (theano.shared(v, target=name) for v, name in zip(values, ("dev0", "dev1")))
    f = theano.function([], [T.dot(one, one), T.dot(other, other)])
    for got, value in zip(f(), values):
        close_to(got, value.dot(value))
    v = T.fmatrix()
    there = v.transfer("dev1")
    for output in (there.transfer("cpu"), T.dot(there, there).transfer("cpu"), v * 2):
        close_to(theano.function([v], output)(values[0]), output.eval({v: values[0]}))


def products(ranks: int) -> None:
    random = np.random.RandomState(1)
    values = [random.random_sample((64, 64)).astype("float32") for _ in range(4)]
    names = ("dev0", "dev0", "dev1", "dev1")
    v01, v02, v11, v12 = (theano.shared(v, target=name) for v, name in zip(values, names))
    f = synk.function([], [T.dot(v01, v02), T.dot(v11, v12)])
    first, second = f()
    close_to(first, values[0].dot(values[1]))
    close_to(second, values[2].dot(values[3]))
    for variable, value in ((v01, values[0]), (v11, values[2])):
        synk.set_value(ranks - 1, variable, value * 3)
        close_to(synk.get_value(ranks - 1, variable), value * 3)
        synk.all_reduce(variable, op="max")
        close_to(synk.gather(variable, nd_up=1), np.stack([value * 3] * ranks))
        synk.broadcast(variable, value)
        assert variable.get_value(borrow=True, return_internal_type=True).context is not None
        close_to(variable.get_value(), value)
    close_to(f()[1], values[2].dot(values[3]))


def transfers() -> None:
    v = T.fmatrix()
    there = v.transfer("dev1")
    w = theano.shared(np.full((3, 3), 2, "float32"), target="dev1")
    f = synk.function([v], [(there.transfer("cpu"), "gather"), (T.dot(v, w), "gather")])
    rows = np.arange(ROWS * 3, dtype="float32").reshape(ROWS, 3)
    for got, expected in zip(f(rows), (rows, rows.dot(np.full((3, 3), 2)))):
        close_to(got, expected)


def model(targets: tuple[str | None, str | None]) -> tuple[list[Any], Any, Any]:
    random = np.random.RandomState(2)
    shapes = [(WIDE, WIDE), (WIDE,), (WIDE, WIDE), (WIDE,)]
    values = [(random.randn(*shape) / 8).astype("float32") for shape in shapes]
    where = (targets[0], targets[0], targets[1], targets[1])
    params = [theano.shared(v, target=target) for v, target in zip(values, where)]
    x = T.fmatrix("x")
    hidden = T.tanh(T.dot(x, params[0]) + params[1])
    if targets[1] != "cpu":
        hidden = hidden.transfer(targets[1])
    return params, x, T.sqr(T.dot(hidden, params[2]) + params[3]).sum(axis=1).mean()


def training(ranks: int) -> None:
    for flat in (False, True):
        params, x, loss = model(("dev0", "dev1"))
        train = make_train_function(loss, params, [x], updates.momentum, RATE / 16, flat=flat)
        serial, y, serial_loss = model(("cpu", "cpu"))
        grads, steps, _ = updates.momentum(serial_loss, serial, RATE / 16)
        f_grad = theano.function([y], serial_loss, updates=grads, mode=PYTHON)
        f_step = theano.function([], updates=steps, mode=PYTHON)
        for step in range(3):
            rows = np.random.RandomState(step).randn(ROWS, WIDE).astype("float32")
            close_to(train(rows, num_slices=1 + step % 2), f_grad(rows))
            f_step()
        for param, twin in zip(params, serial):
            for rank in range(ranks):
                close_to(synk.get_value(rank, param), twin.get_value())
        held = params[3].get_value(borrow=True, return_internal_type=True)
        assert held.context is theano.gpuarray.get_context("dev1")
        assert (held.offset > 0) == flat


def main() -> None:
    devices = json.loads(sys.argv[1])
    if not devices:
        plain()
        print("right")
        return
    ranks = synk.fork(devices=devices, verbose=False)
    assert ranks == len(devices)
    products(ranks)
    transfers()
    training(ranks)
    synk.close()
    print("right")


if __name__ == "__main__":
    main()

"""Functions with device inputs and outputs: with stand-ins for Theano's copies, on processors."""

from __future__ import annotations

import numpy as np
import pytest
import theano
import theano.tensor as T
from theano.compile.ops import as_op

from synk_theano._gpu import ends


class DeviceType(T.TensorType):
    """A type whose values count as being on the default device."""

    context_name = None


DEVICE = DeviceType("float64", (False,))


def copy_op(name, in_type, out_type):
    op = as_op([in_type], [out_type])(np.copy)
    op.stands_for = name
    return op


to_device = copy_op("GpuFromHost", T.dvector, DEVICE)
to_host = copy_op("HostFromGpu", DEVICE, T.dvector)
doubled = as_op([DEVICE], [DEVICE])(lambda values: 2 * values)


@pytest.fixture(autouse=True)
def copies(monkeypatch):
    monkeypatch.setattr(ends, "is_copy", lambda op, name: getattr(op, "stands_for", "") == name)


def names(function):
    return [getattr(n.op, "stands_for", "") for n in function.maker.fgraph.toposort()]


def test_copies_at_the_ends_are_left_to_the_rank():
    x, y, z = T.dvector("x"), T.dvector("y"), T.dvector("z")
    on_device = doubled(to_device(x))
    read = to_host(on_device)
    w = theano.shared(np.ones(2), "w")
    function = theano.function(
        # y is read by the host, too; z is copied twice.
        [x, y, z],
        [read, read + y, to_host(doubled(to_device(y))), to_host(to_device(z)), z],
        updates=[(w, w + read)],
        mode=theano.Mode("py", None),
    )
    assert names(function).count("GpuFromHost") == 3
    moved = ends.with_device_ends(function, [False, False, True, False, False])
    assert [type(spec.variable.type) for spec in moved.maker.inputs[:3]] == [
        DeviceType,
        *2 * [T.TensorType],
    ]
    assert [type(out.variable.type) for out in moved.maker.outputs[:5]] == [
        DeviceType,
        *2 * [T.TensorType],
        DeviceType,
        T.TensorType,
    ]
    assert names(moved).count("GpuFromHost") == 2
    assert names(moved).count("HostFromGpu") == 2  # of `read`, which the host reads, and of y's
    arguments = np.array([[1.0, 2.0], [3.0, 5.0], [7.0, 11.0]])
    for made in (function, moved):
        w.set_value(np.ones(2))
        results = made(*arguments)
        a, b, c = arguments
        for got, wanted in zip(results, [2 * a, 2 * a + b, 2 * b, c, c]):
            np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(w.get_value(), 1 + 2 * a)


def test_a_function_without_copies_at_its_ends_stays_as_it_is():
    x = T.dvector("x")
    for outputs, host_outputs in (([x * 2], [False]), ([to_host(DEVICE("d"))], [True])):
        inputs = [x] if outputs[0].owner.inputs[0] is x else list(outputs[0].owner.inputs)
        function = theano.function(inputs, outputs, mode=theano.Mode("py", None))
        assert ends.with_device_ends(function, host_outputs) is function

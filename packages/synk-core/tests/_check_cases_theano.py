"""Graphs of what only Theano has, with their verdicts."""

from __future__ import annotations

import theano.tensor as T
from _check_cases import Case, b, im, new_shared, w, x, y, z, zero
from _check_words import categorical_crossentropy, softmax
from theano.tensor.nnet.bn import batch_normalization_test, batch_normalization_train
from theano.tensor.shared_randomstreams import RandomStreams
from theano.tensor.signal.pool import pool_2d

k, kb = new_shared(4, 2, 3, 3, name="k"), new_shared(4, name="kb")
d = new_shared(16, 3, name="d")
maps = T.nnet.relu(T.nnet.conv2d(im, k) + kb.dimshuffle("x", 0, "x", "x"))
pooled = pool_2d(maps, (2, 2), ignore_border=True)
image_probability = softmax(pooled.flatten(2).dot(d))
image_loss = categorical_crossentropy(image_probability, y).mean()
averaged = pool_2d(maps, (2, 2), ignore_border=True, mode="average_exc_pad")

normal, normal_mean, normal_inverse = batch_normalization_train(x, b, b, axes="per-activation")[:3]
stored = batch_normalization_test(x, b, b, b, T.sqr(b) + 1, axes="per-activation")

_draws = RandomStreams(1).normal(size=(x.shape[0], x.shape[0]), avg=x[:, 0])

CASES = [
    Case("drawn for pairs of rows", _draws.sum(axis=0), "gather", "unknown"),
    Case("mean by the op", T.mean(x, op=True), "avg", "exact"),
    Case("loss of a convolutional net", image_loss, "avg", "exact"),
    Case("its gradient by filters", T.grad(image_loss, k), "avg", "exact"),
    Case("gradient through average pools", T.grad(averaged.mean(), k), "avg", "exact"),
    Case("mean with stored statistics", T.tanh(stored).mean(), "avg", "exact"),
    Case("statistic that is a mean", normal_mean, "avg", "exact"),
    Case("filtered images", T.nnet.conv2d(im, k), "gather", "exact"),
    Case("smaller images", pool_2d(im, (2, 2), ignore_border=True), "gather", "exact"),
    Case("features of a convolutional net", pooled, "gather", "exact"),
    Case("batch normalization", T.tanh(normal).mean(), "avg", "wrong", "of one rank"),
    Case("its deviation", normal_inverse, "avg", "wrong", "of one rank"),
    Case("its gradient by what it normalizes", T.grad(
        T.tanh(batch_normalization_train(x.dot(w), b, b)[0]).mean(), w), "avg", "wrong"),
    Case("sums joined along such an axis", T.join(zero, x.sum(0), z.sum(0)), "sum", "exact"),
]  # fmt: skip

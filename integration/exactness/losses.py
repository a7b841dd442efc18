"""Losses of papers and forums: means over rows, and others that need the whole batch.

Each is a function of the output ``z`` (n, 4), labels ``y`` (n,) below 4, targets ``t`` (n, 4) and a
mask ``m`` (n,) of zeros and ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from synk_testing.engine import T, engine, softmax

CLASSES = 4


def rows(a: Any) -> Any:
    return T.cast(a.shape[0], "float64")


def one_hot(y: Any) -> Any:
    return T.cast(T.eq(y.dimshuffle(0, "x"), np.arange(CLASSES)), "float64")


def logp(z: Any) -> Any:
    return T.log(softmax(z))


def of_label(a: Any, y: Any) -> Any:
    return a[T.arange(y.shape[0]), y]


def entropy(z: Any, y: Any) -> Any:
    return -of_label(logp(z), y)


def squares(z: Any, t: Any) -> Any:
    return T.sqr(z - t).sum(axis=1)


def softplus(a: Any) -> Any:
    return T.log1p(T.exp(a))


def lse(a: Any, axis: Any = None) -> Any:
    return T.log(T.exp(a).sum(axis=axis))


def unit(a: Any) -> Any:
    return a / T.sqrt(T.sqr(a).sum(axis=1, keepdims=True) + 1e-9)


def distances(a: Any, b: Any) -> Any:
    return T.sqr(a.dimshuffle(0, "x", 1) - b.dimshuffle("x", 0, 1)).sum(axis=2)


def alike(y: Any) -> Any:
    return T.cast(T.eq(y.dimshuffle(0, "x"), y.dimshuffle("x", 0)), "float64")


def differences(a: Any) -> Any:
    return a.dimshuffle(0, "x") - a.dimshuffle("x", 0)


def standardised(a: Any) -> Any:
    return (a - a.mean(axis=0)) / T.sqrt(a.var(axis=0) + 1e-5)


def covariance(a: Any) -> Any:
    centred = a - a.mean(axis=0)
    return T.dot(centred.T, centred) / rows(a)


def kernel(a: Any, b: Any) -> Any:
    return T.exp(-distances(a, b)).mean()


def means(a: Any, y: Any) -> Any:
    labels = one_hot(y)
    return T.dot(labels.T, a) / T.maximum(labels.sum(axis=0), 1).dimshuffle(0, "x")


def masked(values: Any, m: Any) -> Any:
    return (values * m).sum() / T.maximum(m.sum(), 1)


def overlap(p: Any, q: Any, axis: Any = None) -> Any:
    return 1 - 2 * (p * q).sum(axis=axis) / (T.sqr(p) + T.sqr(q)).sum(axis=axis)


def scanned(step: Any, sequence: Any) -> Any:
    start = T.zeros_like(sequence[0])
    found = engine.scan(step, sequences=[sequence], outputs_info=[start])
    return found[0] if isinstance(found, (tuple, list)) else found


def table(text: str) -> dict[str, Any]:
    """Return a function for each "name: expression"; lines that begin with blanks go on."""
    entries = (entry.split(": ", 1) for entry in text.strip().replace("\n    ", " ").split("\n"))
    return {name: eval(f"lambda z, y, t, m: {loss}") for name, loss in entries}


RIGHT = table("""
sum over n: squares(z, t).sum() / z.shape[0]
sum over size: T.sqr(z - t).sum() / T.cast(z.size, "float64")
huber: T.switch(abs(z - t) < 1, T.sqr(z - t) / 2, abs(z - t) - 0.5).mean()
tukey: (1 - (1 - T.clip(T.sqr(z - t) / 22, 0, 1)) ** 3).mean()
pinball: T.maximum(0.9 * (t - z), 0.1 * (z - t)).mean()
poisson: (T.exp(z) - abs(t) * z).mean()
mixture density: -lse(logp(z[:, :2]) - T.sqr(z[:, 2:] - t[:, 0].dimshuffle(0, "x")), axis=1).mean()
variational: (squares(z, t) + (T.exp(z[:, 2:]) + T.sqr(z[:, :2]) - 1 - z[:,
    2:]).sum(axis=1)).mean()
cross-entropy: entropy(z, y).mean()
one-hot: -(one_hot(y) * logp(z)).sum(axis=1).mean()
focal: ((1 - of_label(softmax(z), y)) ** 2 * entropy(z, y)).mean()
class weights: (T.as_tensor_variable(np.array([1.0, 2, 3, 4]))[y] * entropy(z, y)).mean()
hinge: T.maximum((z + 1 - one_hot(y)).max(axis=1) - of_label(z, y), 0).mean()
top two: (T.sort(z, axis=1)[:, -2:].sum(axis=1) - of_label(z, y)).mean()
distilled: (softmax(t) * (logp(t) - logp(z))).sum(axis=1).mean()
earth mover: T.sqr(T.cumsum(softmax(z) - softmax(t), axis=1)).sum(axis=1).mean()
dice of rows: overlap(softmax(z), one_hot(y), axis=1).mean()
given triplets: T.maximum(squares(z, t) - squares(z, t[:, ::-1]) + 1, 0).mean()
total variation: abs(z[:, 1:] - z[:, :-1]).sum(axis=1).mean()
correlation of rows: (1 - (unit(z - z.mean(axis=1, keepdims=True)) * unit(t)).sum(axis=1)).mean()
forward recursion: T.sqr(scanned(lambda now, past: softplus(now + past), z.T)[-1] - t[:, 0]).mean()
masked, over n: (m * squares(z, t)).mean()
""")

WRONG = table("""
sum: squares(z, t).sum()
root: T.sqrt(squares(z, t).mean())
perplexity: T.exp(entropy(z, y).mean())
masked: masked(squares(z, t), m)
selected: squares(z, t)[m.nonzero()[0]].mean()
weighted mean: masked(entropy(z, y), 1.0 + y)
class-balanced: (entropy(z, y) / T.cast(T.bincount(y, minlength=CLASSES)[y], "float64")).mean()
in-batch negatives: -T.log(T.diag(softmax(T.dot(z, t.T)))).mean()
n pairs: T.log(T.exp(T.dot(z, t.T)).sum(axis=1)).mean() - (z * t).mean()
supervised contrast: (-(alike(y) * T.log(softmax(T.dot(unit(z), unit(z).T)))).sum(axis=1) /
    alike(y).sum(axis=1)).mean()
neighbourhood: -T.log((softmax(-distances(z, z) - 9 * T.eye(z.shape[0])) *
    alike(y)).sum(axis=1)).mean()
batch hard: T.maximum((distances(z, z) * alike(y)).max(axis=1) - (distances(z, z) + 9 *
    alike(y)).min(axis=1) + 5, 0).mean()
batch all: softplus((distances(z, z) * alike(y)).dimshuffle(0, 1, "x") - (distances(z, z) * (1 -
    alike(y))).dimshuffle(0, "x", 1)).mean()
rank pairs: (softplus(-differences(z[:, 0])) * T.cast(differences(t[:, 0]) > 0, "float64")).mean()
auc: masked(T.sqr(1 - differences(z[:, 0])), m.dimshuffle(0, "x") * (1 - m.dimshuffle("x", 0)))
list of the batch: lse(z[:, 0]) - (softmax(t[:, :1].T).T * z[:, :1]).sum()
list, by order: (T.log(T.cumsum(T.exp(z[:, 0][T.argsort(t[:, 0])]))) - z[:, 0][T.argsort(t[:,
    0])]).mean()
survival: -masked(z[:, 0] - T.log((T.exp(z[:, 0]) * T.cast(differences(t[:, 0]) <= 0,
    "float64")).sum(axis=1)), m)
discrepancy: kernel(z, z) + kernel(t, t) - 2 * kernel(z, t)
sliced transport: T.sqr(T.sort(z, axis=0) - T.sort(t, axis=0)).mean()
covariances: T.sqr(covariance(z) - covariance(t)).sum()
mean of features: T.sqr(z.mean(axis=0) - t.mean(axis=0)).sum()
barlow twins: T.sqr(T.dot(standardised(z).T, standardised(t)) / rows(z) - T.eye(CLASSES)).sum()
centres of the batch: squares(z, means(z, y)[y]).mean()
prototypes: entropy(-distances(z, means(t, y)), y).mean()
first as anchor: squares(z, z[0]).mean()
last left out: squares(z[:-1], t[:-1]).mean()
halves: squares(z[:z.shape[0] // 2], z[-(z.shape[0] // 2):]).mean()
median: T.sort(squares(z, t))[z.shape[0] // 2]
trimmed: T.sort(squares(z, t))[:4 * z.shape[0] // 5].mean()
top three: T.sort(squares(z, t))[-3:].mean()
hard negatives: masked(squares(z, t), m) + T.sort(squares(z, t) * (1 - m))[-T.cast(m.sum(),
    "int64"):].mean()
above the mean: masked(squares(z, t), T.cast(squares(z, t) > squares(z, t).mean(), "float64"))
worst: squares(z, t).max()
soft worst: lse(squares(z, t))
worst group: means(squares(z, t).dimshuffle(0, "x"), y).max()
variance of losses: squares(z, t).mean() + squares(z, t).var()
dice of classes: overlap(softmax(z), one_hot(y), axis=0).mean()
pearson: 1 - ((z - z.mean()) * (t - t.mean())).mean() / (z.std() * t.std())
relative: abs(z - t).sum() / abs(t).sum()
mean prediction: (softmax(z).mean(axis=0) * T.log(softmax(z).mean(axis=0))).sum()
standardised output: squares(standardised(z), t).mean()
scaled to one: squares(z / abs(z).max(), t).mean()
norm of the batch: z.norm(2)
mixup: (0.7 * squares(z, t) + 0.3 * squares(z, t[::-1])).mean()
temporal neighbours: squares(z[1:], z[:-1]).mean()
padded: squares(z, T.concatenate([T.zeros_like(z[:1]), z[:-1]], axis=0)).mean()
cumulated: T.sqr(T.cumsum(z - t, axis=0)).mean()
recurrent over rows: squares(scanned(lambda now, past: T.tanh(now + 0.5 * past), z), t).mean()
returns: (scanned(lambda now, past: now + 0.9 * past, m[::-1])[::-1] * entropy(z, y)).mean()
by position: (T.cast(T.arange(z.shape[0]), "float64") * squares(z, t)).mean()
""")

"""The graph engine of this environment: Theano or PyTensor.

`library` is its package, `T` its module of tensors; other names are what the two differ in, each
with one meaning in both (`_graph.engine`). For packages that build graphs for either of them.
"""

from __future__ import annotations

from ._graph.engine import __getattr__  # noqa: F401 - it has all names

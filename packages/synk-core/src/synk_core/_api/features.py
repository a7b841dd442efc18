"""The features of runtimes and functions: each is an import here, and an entry of a table below.

To take one out, delete its two lines and its folder.
"""

from __future__ import annotations

from synk_core._features.feature import FunctionFeature, RuntimeFeature
from synk_core._features.finite.watch import FiniteWatches
from synk_core._features.proof.functions import Proving
from synk_core._features.replicas.replicas import WatchedReplicas
from synk_core._features.stalls.stalls import Stalls
from synk_core._features.stats.stats import Statistics
from synk_core._features.timeline.timeline import Timelines


class RuntimeFeatures(
    FiniteWatches,
    WatchedReplicas,
    Stalls,
    Statistics,
    Timelines,
    RuntimeFeature,
):
    """The methods that features add to a `Runtime`."""


class FunctionFeatures(
    Proving,
    FunctionFeature,
):
    """The methods that features add to a `Function`."""

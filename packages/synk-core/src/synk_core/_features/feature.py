"""The base classes of the parts that features add to a runtime and to its functions."""

from __future__ import annotations

import sys
from typing import Any, Dict, Sequence, Tuple

from synk_core._graph.spec import FunctionSpec
from synk_core._master.acts import Prepared
from synk_core._master.lifecycle import Lifecycle
from synk_core._master.orders import Orders
from synk_core._master.planner import Signature
from synk_core._rank.rank import Rank
from synk_core._wire.messages import Own


class RuntimeFeature:
    """A base class of `Runtime`; each does its own part of these methods, and calls the next."""

    orders: Orders  # from `_begin` on
    _lifecycle: Lifecycle
    _rank: Rank

    def _take_options(self, options: Dict[str, Any]) -> Tuple[Own, ...]:  # noqa: ARG002
        """Remove and check the feature's own options, before anything is started; return the acts
        that every rank performs at its start."""
        return ()

    def _begin(self) -> None:
        """Follow orders: called when they can be given; workers start in the background."""

    def _finish(self) -> None:
        """Finish the feature's work: called before the runtime closes."""


class FunctionFeature:
    """A base class of `Function`; each does its own part of these methods, and calls the next.

    Attributes:
        asks_from: calls after which `is_due` is asked.
    """

    asks_from = sys.maxsize
    spec: FunctionSpec
    number: int
    calls: int
    orders: Orders
    planner: Any
    _plain: Any
    _signature: Signature

    @classmethod
    def take_options(cls, runtime: Any, options: Dict[str, Any]) -> None:
        """Remove and check the feature's own options of a runtime, before anything is started."""

    @classmethod
    def begin(cls, runtime: Any) -> None:
        """Follow the orders of a runtime that starts."""

    @classmethod
    def of_function(cls, runtime: Any, options: Dict[str, Any]) -> Dict[str, Any]:  # noqa: ARG003
        """Remove and check the options of a function; return the arguments of `attach`."""
        return {}

    def attach(self, runtime: Any, **settings: Any) -> None:
        """Begin to take part in calls: the function is built."""

    def is_due(self) -> bool:
        """Return whether the next call is special: `rehearse` and `variant` are called then."""
        return False

    def rehearse(self, values: Sequence[Any], options: Any) -> None:
        """Prepare a special call, before anything is staged."""

    def before_slices(self) -> None:
        """Prepare a call in slices."""

    def variant(self, call: Prepared, options: Any) -> Prepared:  # noqa: ARG002 - for features
        """Return the act that performs a planned call that is special."""
        return call

    def reported(self, report: Any) -> None:
        """Take the report of the variant of a call that is done."""

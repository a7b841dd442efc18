"""The base classes of what features add to a runtime and to its functions."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

from synk_core._graph.inputs import Signature
from synk_core._master.acts import Prepared
from synk_core._master.lifecycle import Lifecycle
from synk_core._master.orders import Orders
from synk_core._rank.rank import Rank
from synk_core._wire.messages import Own


class RuntimeFeature:
    """A base class of `Runtime`; each does its own part of these methods, and calls the next.

    Attributes:
        orders: of the runtime, from `_begin` on.
    """

    orders: Orders
    _lifecycle: Lifecycle
    _rank: Rank

    def _take_options(self, options: Dict[str, Any]) -> Tuple[Own, ...]:  # noqa: ARG002
        """Take the feature's own out of the options, before anything is started.

        Returns:
            What every rank performs at its start.

        Raises:
            InputTypeError, InputValueError: an option is wrong.
        """
        return ()

    def _begin(self) -> None:
        """Follow orders: called once they can be given; workers start in the background."""

    def _finish(self) -> None:
        """Finish what is under way: called before the runtime closes."""


def _never() -> bool:
    """Return False: no call is special."""
    return False


def _nothing(*_: Any) -> None:
    """Do nothing."""


class FunctionFeature:
    """A base class of `Function`; each does its own part of these methods, and calls the next.

    Attributes:
        is_due: returns whether the next call is special: `rehearse` and `variant` are called then.
        rehearse: called with the values and options of a special call; nothing is staged yet.
        before_slices: called before calls in slices.
        reported: called with what the variant of a call reports, when the call is done.
    """

    _signature: Signature
    is_due: Callable[[], bool] = staticmethod(_never)
    rehearse: Callable[..., None] = staticmethod(_nothing)
    before_slices: Callable[[], None] = staticmethod(_nothing)
    reported: Callable[[Any], None] = staticmethod(_nothing)

    @classmethod
    def take_options(cls, runtime: Any, options: Dict[str, Any]) -> None:
        """Take the feature's own out of a runtime's options, before anything is started.

        Raises:
            InputTypeError, InputValueError: an option is wrong.
        """

    @classmethod
    def begin(cls, runtime: Any) -> None:
        """Follow the orders of a runtime that starts."""

    @classmethod
    def of_function(cls, runtime: Any, options: Dict[str, Any]) -> Dict[str, Any]:  # noqa: ARG003
        """Take the feature's own out of a function's options; return what `attach` gets.

        Raises:
            InputTypeError, InputValueError: an option is wrong.
        """
        return {}

    def attach(self, runtime: Any, plain: Any, **settings: Any) -> None:
        """Begin to take part in calls: the function is built, and `plain` its compiled form."""

    def variant(self, call: Any, options: Any) -> Prepared:  # noqa: ARG002 - for features
        """Return the act that performs a planned call that is special."""
        planned: Prepared = call
        return planned

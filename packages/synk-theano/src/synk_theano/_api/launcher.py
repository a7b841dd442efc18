"""What functions and collectives need of the runtime: it is handed to them as one of these."""

from __future__ import annotations

from typing import Any, ContextManager, Hashable, List, Optional, Protocol, Sequence, Tuple

import numpy as np

from synk_theano._watch.stats import Tally
from synk_theano._wire.data import Data
from synk_theano._wire.messages import Act, ArrayRef, Form

from .step import Prepared


class Launcher(Protocol):
    """What a function or a collective needs of the runtime."""

    size: int
    master: int

    @property
    def exclusive(self) -> ContextManager[Any]:
        """Held while something is staged and run: other threads wait."""

    def enter_device(self) -> None:
        """Make this thread fit to compute where this rank does."""

    def perform(self, prepared: Sequence[Prepared]) -> List[Any]:
        """Have all ranks perform acts, in order; blocks until they have."""

    def enter(self, act: Act, name: Optional[Hashable] = None, holder: Any = None) -> int:
        """Give an act a number; the same again for a `name` that is known.

        Args:
            holder: is told by its `release()` when the act is forgotten; it is not kept alive.
        """

    def knows(self, number: int) -> bool:
        """Whether an act still has this number."""

    def ref(self, data: Data) -> ArrayRef:
        """Where the workers find a `Data`; what refers to it goes when it goes."""

    def room(
        self, slot: Tuple[Any, ...], dtype: Any, shape: Tuple[int, ...], what: str
    ) -> Tuple[np.ndarray, ArrayRef]:
        """An array in shared memory that is reused for `slot`; `what` it is, in words."""

    def data(self, value: Any, var: Any, **settings: Any) -> Data:
        """`synk.data()`."""

    def tally(self, name: str) -> Tally:
        """Where the figures of a function are kept."""

    def require_form(self, function_id: int, form: Form) -> None:
        """Have `form` of the function on every rank; compiles and distributes if needed."""

    def unrecorded(self) -> ContextManager[None]:
        """The turn, for several calls one after the other; none of them is `lint()`'s business."""

    def numbers(self, variables: Sequence[Any]) -> Tuple[int, ...]:
        """The shared variables' numbers; those that the workers lack are sent first."""

"""Keep a function on a rank: its compiled forms and buffers."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from synk_core._graph.reduce_op import reductions_of
from synk_core._wire.messages import Form, Recipe
from synk_core.device import REPLAYED, Device, Launcher, VectorParts


class LoadedFunction:
    """A function as a rank holds it.

    Attributes:
        counts: the rows that each rank stood for in its last call.
        averages: what averages a variable that a form computes, if possible; by both.
        buffers: rows of inputs, by position and turn, reused from call to call.
        ahead: the call whose rows were taken last before it is made.
        turn: 1 or 2: which buffers those rows are in. Calls that take their rows themselves use
            buffers 0.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.forms: Dict[Form, Any] = {}
        self.counts: Tuple[int, ...] = ()
        self.averages: Dict[Tuple[Form, int], Any] = {}
        self.ahead: Any = None
        self.turn = 1
        self.buffers: Dict[Tuple[int, int], np.ndarray] = {}
        self._reductions: Dict[Form, List[Any]] = {}
        self._launchers: Dict[Any, Optional[Launcher]] = {}

    @property
    def replay(self) -> str:
        """Whether this rank replays the function: `REPLAYED`, or why not; "" on a processor."""
        states = [launcher.state for launcher in self._launchers.values() if launcher]
        # The form that was made last is the one in use.
        return REPLAYED if REPLAYED in states else (states or [""])[-1]

    def launcher(
        self, function: Any, device: Device, parts: Optional[VectorParts] = None
    ) -> Optional[Launcher]:
        """Return what launches a form quicker than a call of it; None if nothing does."""
        if function not in self._launchers:
            self._launchers[function] = device.launcher(function, self.recipe.name, parts)
        return self._launchers[function]

    def close(self) -> None:
        """Drop recorded launches."""
        for launcher in filter(None, self._launchers.values()):
            launcher.close()
        self._launchers.clear()
        self.averages.clear()

    def compiled(self) -> List[Any]:
        """Return all compiled functions, which hold the variables that they use."""
        more = [average.function for average in self.averages.values() if average is not None]
        return [*self.forms.values(), *more]

    def reductions(self, form: Form) -> List[Any]:
        """Return the nodes of a form that reduce over ranks; searched once."""
        if form not in self._reductions:
            self._reductions[form] = reductions_of(self.forms[form])
        return self._reductions[form]

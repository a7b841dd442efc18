"""Keep a function on a rank: its compiled forms and buffers."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from synk_core._graph.devices.captured import REPLAYED, CapturedFunction
from synk_core._graph.devices.device import AnyDevice
from synk_core._graph.devices.parts import Parts
from synk_core._graph.reduce_op import reductions_of
from synk_core._wire.messages import Form, Recipe


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
        self._captured: Dict[Any, CapturedFunction] = {}

    @property
    def replay(self) -> str:
        """Whether this rank replays the function: `REPLAYED`, or why not; "" on a processor."""
        states = [captured.state for captured in self._captured.values()]
        # The form that was made last is the one in use.
        return REPLAYED if REPLAYED in states else (states or [""])[-1]

    def captured(
        self, function: Any, device: AnyDevice, parts: Optional[Parts] = None
    ) -> Optional[CapturedFunction]:
        """Return a form as it is recorded and replayed; None where that is not done.

        Args:
            parts: what the form tells of them, if it does.
        """
        if function not in self._captured and device.graphs is not None:
            self._captured[function] = CapturedFunction(
                function, device.graphs, self.recipe.name, parts
            )
        return self._captured.get(function)

    def close(self) -> None:
        """Drop what was recorded."""
        for captured in self._captured.values():
            captured.close()
        self._captured.clear()
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

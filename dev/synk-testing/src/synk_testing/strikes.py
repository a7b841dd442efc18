"""Ctrl-C at lines of some code: what is undone, and what is left, wherever it comes."""

from __future__ import annotations

import gc
import sys
import time
from types import CodeType
from typing import Any, Callable, Collection, Dict, List, NamedTuple, Set, Tuple

LATE_S = 20.0

# To the handler of the signal it comes within the package, as it does without a tracer.
_STRIKE = """
import signal, sys

class Strike:
    def __init__(self, codes, places):
        self.codes, self.places, self.lines = codes, places, []

    def __call__(self, frame, event, argument):
        return self.line if frame.f_code in self.codes else None

    def line(self, frame, event, argument):
        if event == "line":
            self.lines.append((frame.f_code.co_name, frame.f_lineno))
            if len(self.lines) in self.places:
                sys.settrace(None)  # what is raised here would end the trace
                try:
                    signal.raise_signal(signal.SIGINT)
                finally:
                    sys.settrace(self)
        return self.line
"""
_NAMES: Dict[str, Any] = {"__name__": "synk_core.struck"}
exec(_STRIKE, _NAMES)


class Acted(NamedTuple):
    """The lines that were run; whether the act gave its result; whether Ctrl-C came, also later."""

    lines: List[Tuple[str, int]]
    given: bool
    interrupted: bool


def struck(
    codes: Set[CodeType],
    places: Collection[int],
    act: Callable[[], object],
    is_pending: Callable[[], bool],
) -> Acted:
    """Act, with Ctrl-C at these places among the lines of the code; wait while one is pending."""
    strike, usual = _NAMES["Strike"](codes, places), sys.gettrace()
    given = interrupted = False
    gc.disable()  # hypothesis hears of collections, and Python drops what is raised there
    try:
        sys.settrace(strike)
        try:
            act()
            given = True
        finally:
            sys.settrace(usual)
            gc.enable()
    except KeyboardInterrupt:
        interrupted = True
    late = time.monotonic() + LATE_S
    while is_pending() and time.monotonic() < late:
        try:
            time.sleep(0.001)
        except KeyboardInterrupt:
            interrupted = True
    return Acted(strike.lines, given, interrupted)

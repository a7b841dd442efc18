"""The signals that pytest was started with."""

from __future__ import annotations

import signal


def usual_signals() -> None:
    """Have all children begin with the usual signals; for a conftest.py, at its import.

    What nohup, or a shell's ``&``, has us ignore, children would ignore too: tests that end them by
    such a signal, or interrupt this process, would wait in vain. This process itself goes on when a
    terminal hangs up, as nohup promises: a handler that does nothing is not inherited.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)

"""Undo what pytest was started with: signals that are ignored."""

from __future__ import annotations

import signal


def usual_signals() -> None:
    """Give all children the usual signals; a conftest.py, or a program, calls it when it begins.

    Children would ignore the signals that nohup, or a shell's ``&``, has this process ignore: tests
    that end them by such a signal, or interrupt this process, would wait in vain. This process goes
    on when a terminal hangs up, as nohup promises: children do not inherit an empty handler.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)

"""The command ``synkhronos``.

A package of its own, beside ``synkhronos``: importing that brings Theano to life, and ``synkhronos
doctor`` is for machines on which this fails. Nothing here imports Theano, NumPy or a package that
does; what needs them runs in a Python of its own, so that nothing can break the command itself.

    _app.py        the commands, and main(); one file for each command
    _terminal.py   where the commands speak
    _launch.py     a Python in place of this one, or beside it
    _probe.py      a Python that is asked something, with a limit of time
    _leftovers.py  what dead processes left behind
"""

from __future__ import annotations

from ._app import main

__all__ = ["main"]

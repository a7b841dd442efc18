"""The command ``synkhronos``.

A package of its own, beside ``synkhronos``: importing that brings Theano to life, and ``synkhronos
doctor`` is for machines on which this fails. Nothing here imports Theano, NumPy or a package that
does; a command that needs them imports them when it runs.

    _app.py      the commands, and main()
    _doctor.py   synkhronos doctor: what is looked at, in which order, and the exit status
"""

from __future__ import annotations

from ._app import main

__all__ = ["main"]

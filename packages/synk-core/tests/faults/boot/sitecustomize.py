"""Found by workers that are to fail while they start: see `_fault_inflict.BOOT`."""

from __future__ import annotations

import importlib.machinery
import os
import sys

POINTS = {
    "prepare": ("synk_core._workers.interrupts", lambda module: (module, "obey")),
    "join": ("synk_core._rank.rank", lambda module: (module.Rank, "join")),
}
"""By point the module, and in it what is changed: the last step before READY, the first after."""


class Finder:
    """Changes a module as it is imported.

    Args:
        module: its name.
        change: takes it.
    """

    def __init__(self, module, change):
        self._module = module
        self._change = change

    def find_spec(self, name, path=None, target=None):
        if name != self._module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self._change(module)

        spec.loader.exec_module = exec_module
        return spec


def lay(told):
    point, rank, deed, argument = told.split(":")
    module, find = POINTS[point]

    def inflict(one):
        import _fault_inflict

        if one.rank == int(rank):
            _fault_inflict.mark()
            getattr(_fault_inflict, deed)(float(argument))

    def change(module):
        owner, name = find(module)
        act = getattr(owner, name)

        def changed(one, *arguments):
            inflict(one)
            return act(one, *arguments)

        setattr(owner, name, changed)

    sys.meta_path.insert(0, Finder(module, change))


if os.environ.get("SYNK_THEANO_FAULTS_BOOT"):
    lay(os.environ["SYNK_THEANO_FAULTS_BOOT"])

"""The graph engines that are installed, each with the package that adapts it.

Such a package declares an entry point of the group `GROUP`, whose name is that of the engine's own
package, and whose value is a module with the names of `engine`.
"""

from __future__ import annotations

import sys
from importlib import metadata
from typing import List, NamedTuple

GROUP = "synk_core.engines"


class Adapter(NamedTuple):
    """An installed adapter: the engine's package, and the module that has the names."""

    engine: str
    module: str
    distribution: str


def installed() -> List[Adapter]:
    """Return the installed adapters, by the names of their engines."""
    return sorted(
        {
            Adapter(point.name, point.value, distribution.metadata["Name"])
            for distribution in metadata.distributions()
            for point in distribution.entry_points
            if point.group == GROUP
        }
    )


def chosen() -> Adapter:
    """Return the adapter of the engine that the program has imported; else the first one.

    Raises:
        ImportError: none is installed.
    """
    adapters = installed()
    if not adapters:
        raise ImportError(
            "synk-core needs a graph engine, and no package that adapts one is installed: "
            "pip install synkhronos brings the one for this Python"
        )
    imported = (adapter for adapter in adapters if adapter.engine in sys.modules)
    return next(imported, adapters[0])

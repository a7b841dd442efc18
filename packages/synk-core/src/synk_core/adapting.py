"""Functions for packages that adapt an engine: of compiled functions, and of values."""

from __future__ import annotations

from ._graph.devices.pages import LockedPages, address_of
from ._graph.fast_call import bare, needs_no_wrapper
from ._graph.flat_updates import whole_of, wholes_among
from ._graph.transfer.flat import FlatFunction, FlatInput, flatten, is_flat_able, rebuild
from ._graph.values import (
    concatenated,
    empty_like,
    is_device_type,
    is_on_default_device,
    is_on_device,
    on_host,
)
from ._shield import SHIELD

__all__ = [
    "SHIELD",
    "FlatFunction",
    "FlatInput",
    "LockedPages",
    "address_of",
    "bare",
    "concatenated",
    "empty_like",
    "flatten",
    "is_device_type",
    "is_flat_able",
    "is_on_default_device",
    "is_on_device",
    "needs_no_wrapper",
    "on_host",
    "rebuild",
    "whole_of",
    "wholes_among",
]

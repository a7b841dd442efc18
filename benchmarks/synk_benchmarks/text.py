"""Write numbers as readers like them."""

from __future__ import annotations

from .results import BYTES, SECONDS

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30


def amount(value: float, unit: str = SECONDS) -> str:
    """Write a number in the unit that suits it: 1.31 us, 154 ms, 1,175 B, 3.8 MB, 2,581."""
    if unit == SECONDS:
        for factor, name in ((1e9, "ns"), (1e6, "us"), (1e3, "ms")):
            if abs(value) * factor < 999.5:
                return f"{value * factor:.3g} {name}"
        return f"{value:.2f} s"
    if unit == BYTES and abs(value) >= 1e4:
        for factor, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if abs(value) >= factor:
                return f"{value / factor:.3g} {name}"
    count = f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
    return f"{count} B" if unit == BYTES else count


def number(value: float, *, exact: bool = False) -> str:
    """Write a ratio: 2.09, 0.047, 1/152; `exact` for a limit that somebody chose."""
    if 0 < value < 0.01:
        return f"1/{round(1 / value)}"
    if exact:
        return f"{value:g}"
    return f"{value:.2f}" if abs(value) >= 0.0995 else f"{value:.2g}"


def size_name(nbytes: int) -> str:
    """Write a size in powers of two, as everywhere: 4 B, 64 KB, 1 MB."""
    for unit, name in ((MB, "MB"), (KB, "KB")):
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"

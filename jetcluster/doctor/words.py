"""Numbers and times in the sentences of findings."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: float) -> str:
    """Returns `17.7 GiB`."""
    unit = 0
    while abs(count) >= 1024 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.1f} {_UNITS[unit]}" if unit else f"{count:.0f} B"


def span(seconds: float) -> str:
    """Returns `0.25 s`, `12 s`, `5 min`, `3.5 h`, `2.1 d`."""
    if abs(seconds) < 10:
        return f"{seconds:.2g} s"
    if abs(seconds) < 120:
        return f"{seconds:.0f} s"
    if abs(seconds) < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if abs(seconds) < 172_800 else f"{seconds / 86_400:.1f} d"


def share(used: float, of: float) -> str:
    """Returns `93 %`; `of` is not 0."""
    return f"{used / of * 100:.0f} %"


def names(found: Sequence[str], most: int = 5) -> str:
    """Returns `a, b and 3 more`."""
    shown = ", ".join(found[:most])
    return shown if len(found) <= most else f"{shown} and {len(found) - most} more"

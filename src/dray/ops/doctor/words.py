"""Numbers as people say them."""

from __future__ import annotations

from collections.abc import Collection

from dray import wording
from dray.backends.store.doctor import MOST
from dray.instants import SECOND

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))
_NAMED = 3


def span(us: int) -> str:
    """A duration in its largest unit."""
    seconds = us / SECOND
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s" if seconds >= 10 else f"{seconds:.1f}s"


def size(count: int) -> str:
    """Bytes."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.1f} {unit}"
    return wording.counted(count, "byte")


def counted(count: int, noun: str) -> str:
    """So many of something; counting ends somewhere."""
    more = "at least " if count >= MOST else ""
    return f"{more}{wording.counted(count, noun)}"


def listed(names: Collection[str]) -> str:
    """The first of some names."""
    first = list(names)[:_NAMED]
    rest = len(names) - len(first)
    return ", ".join(first) + (f" and {rest:,} more" if rest else "")

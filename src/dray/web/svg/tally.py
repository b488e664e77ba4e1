"""How far a workflow is: a bar of its steps by state."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from dray.web.svg.tags import decimal, tag

_WIDTH, _HEIGHT = 160, 8
_CLASSES = {
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "running": "running",
}


def tally_bar(counts: Mapping[str, int]) -> Markup:
    """The numbers stand beside it as text."""
    total, x, parts = sum(counts.values()), 0.0, [tag("rect", class_="bg", width=_WIDTH, height=_HEIGHT)]
    for state, name in _CLASSES.items():
        width = _WIDTH * counts.get(state, 0) / total if total else 0
        if width:
            parts.append(tag("rect", class_=f"c-{name}", x=decimal(x), width=decimal(width), height=_HEIGHT))
        x += width
    return tag(
        "svg",
        *parts,
        class_="tally",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        aria_hidden="true",
    )

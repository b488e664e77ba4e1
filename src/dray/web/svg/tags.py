"""The pieces of a drawing. Text and attributes are escaped; a name that is no plain word is refused."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from dray.web.show import visible

_WORD = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")


def tag(name: str, *inside: str | Markup, **attributes: object) -> Markup:
    """An element: `tag("rect", x=1, class_="on")`. Underscores become hyphens; None leaves one out."""
    if _WORD.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name of an element")
    given = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    words = "".join(f' {key}="{escape(visible(value))}"' for key, value in given)
    content = Markup("").join(escape(visible(part)) for part in inside)
    return Markup(f"<{name}{words}>{content}</{name}>") if inside else Markup(f"<{name}{words}/>")  # noqa: S704


def icon(name: str) -> Markup:
    """One of the symbols of base.html."""
    return tag("svg", tag("use", href=f"#i-{name}"), class_="i", aria_hidden="true")


def decimal(value: float) -> str:
    """A coordinate, short."""
    return f"{value:.1f}".rstrip("0").rstrip(".")

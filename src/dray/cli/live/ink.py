"""What a terminal can show: which characters, which colours."""

from __future__ import annotations

import os
import sys
from typing import TextIO

_PLAIN = ("C", "POSIX")


def is_ascii_only(characters: str = "\u2501", stream: TextIO | None = None) -> bool:
    """Whether these characters are better left out: the locale says so, or the encoding has none."""
    if (os.environ.get("LC_ALL") or os.environ.get("LANG")) in _PLAIN:
        return True
    try:
        characters.encode((stream or sys.stdout).encoding or "ascii")
    except UnicodeEncodeError:
        return True
    return False


def has_colours() -> bool:
    return not os.environ.get("NO_COLOR") and not is_dumb()


def is_dumb() -> bool:
    """Whether the cursor cannot be moved."""
    return os.environ.get("TERM", "") in {"", "dumb", "unknown"}


def bar(share: float, width: int, *, ascii_only: bool) -> str:
    """How much of a whole is done."""
    full, empty = ("#", "-") if ascii_only else ("\u2501", "\u2500")
    done = round(max(0.0, min(1.0, share)) * width)
    return full * done + empty * (width - done)

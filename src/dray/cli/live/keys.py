"""Which keys were pressed, out of the bytes that a terminal sends."""

from __future__ import annotations

import re

_SEQUENCES = {
    "[A": "up",
    "[B": "down",
    "[C": "right",
    "[D": "left",
    "OA": "up",
    "OB": "down",
    "OC": "right",
    "OD": "left",
    "[H": "home",
    "[F": "end",
    "OH": "home",
    "OF": "end",
    "[1~": "home",
    "[4~": "end",
    "[5~": "page up",
    "[6~": "page down",
    "[Z": "back tab",
}
_CONTROLS = {
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x0c": "redraw",
    "\x1b": "escape",
}
_SEQUENCE = re.compile(r"\x1b(\[[0-9;?]*[@-~]|O[A-Za-z])")
_BEGUN = re.compile(r"\x1b(\[[0-9;?]*|O)?$")


def keys(text: str) -> list[str]:
    """The names of the keys: ``up``, ``enter``, or the character. Sequences that nobody knows are left out."""
    found: list[str] = []
    at = 0
    while at < len(text):
        sequence = _SEQUENCE.match(text, at)
        if sequence:
            name = _SEQUENCES.get(sequence[1])
            at = sequence.end()
        else:
            name = _CONTROLS.get(text[at], text[at] if text[at].isprintable() else None)
            at += 1
        if name is not None:
            found.append(name)
    return found


def is_begun(text: str) -> bool:
    """Whether it ends in the middle of what a key sends, or with the escape key."""
    return bool(_BEGUN.search(text))

"""Stored values as coloured JSON: pieces of text, each with a class, which the template escapes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from dray.sanitize import HIDDEN
from dray.web.show import SHOWN, lines

_WIDTH = 60  # characters of a list or an object on one line
_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*|\btrue\b|\bfalse\b|\bnull\b)')


class Piece(NamedTuple):
    kind: str  # k: a name, s: a string, d: a number or a word, h: hidden; "": what is between them
    text: str


class Value(NamedTuple):
    """A value as a page shows it. `is_cut`: there is more in its attachment."""

    pieces: list[Piece]
    text: str  # the same, to be copied
    is_cut: bool


def shown_value(value: Any) -> Value:
    """A value in lines, its first 16 KiB. Whole numbers keep all their digits."""
    text, size = list[str](), 0
    for part in _pretty(value, 0):
        text.append(part)
        size += len(part)
        if size > SHOWN:  # a megabyte of small numbers takes half a second
            break
    cut = "".join(text)[:SHOWN]
    return Value(list(_pieces(cut)), lines(cut), size > SHOWN)


def whole_value(value: Any) -> str:
    """All of a value, on one line."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _pretty(value: Any, depth: int) -> Iterator[str]:
    """JSON in lines; a list that is short is on one."""
    if not isinstance(value, dict | list) or not value or _is_short(cast("dict[str, Any] | list[Any]", value)):
        yield whole_value(value)
        return
    margin = "  " * (depth + 1)
    is_list = isinstance(value, list)
    pairs = [("", each) for each in cast("list[Any]", value)] if is_list else [*cast("dict[str, Any]", value).items()]
    yield "[\n" if is_list else "{\n"
    for number, (name, each) in enumerate(pairs):
        yield margin if is_list else f"{margin}{whole_value(name)}: "
        yield from _pretty(each, depth + 1)
        yield ",\n" if number + 1 < len(pairs) else "\n"
    yield "  " * depth + ("]" if is_list else "}")


def _is_short(value: dict[str, Any] | list[Any]) -> bool:
    if isinstance(value, dict) or len(value) > _WIDTH:
        return False
    return not any(isinstance(each, dict | list) for each in value) and len(whole_value(value)) <= _WIDTH


def _pieces(text: str) -> Iterator[Piece]:
    end = 0
    for found in _TOKEN.finditer(text):
        if found.start() > end:
            yield Piece("", lines(text[end : found.start()]))
        string, colon, word = found.groups()
        if string is None:
            yield Piece("d", word)
        elif colon is not None:
            yield Piece("k", lines(string))
            yield Piece("", colon)
        elif string == f'"{HIDDEN}"':
            yield Piece("h", HIDDEN)
        else:
            yield Piece("s", lines(string))
        end = found.end()
    if end < len(text):
        yield Piece("", lines(text[end:]))

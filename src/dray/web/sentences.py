"""Sentences that `ops` makes, for a page: commands, instants and ids in them as such. Templates escape each piece."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from dray.wording import short_id, with_short_ids

_PIECE = re.compile(
    r"`(?P<code>[^`]+)`"
    r"|\((?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)\)"
    r"|(?P<id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
)


class Word(NamedTuple):
    kind: str  # text, code, time or job
    text: str
    value: str = ""  # an instant, or the id of a job that has a page


def words(text: str, jobs: Collection[str] = ()) -> list[Word]:
    """The pieces of a sentence. `jobs`: ids of jobs that the visitor may follow; others are text."""
    return list(_words(text, jobs))


def _words(text: str, jobs: Collection[str]) -> Iterator[Word]:
    end = 0
    for found in _PIECE.finditer(text):
        if found.start() > end:
            yield Word("text", text[end : found.start()])
        end = found.end()
        if found["code"]:
            yield Word("code", with_short_ids(found["code"]))
        elif found["time"]:
            yield Word("time", found["time"][11:19], found["time"])
        elif found["id"] in jobs:
            yield Word("job", short_id(found["id"]), found["id"])
        else:
            yield Word("text", short_id(found["id"]))
    if end < len(text):
        yield Word("text", text[end:])

"""Tracebacks and stacks as people read them: their own frames whole, those of libraries folded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from dray.wording import counted, listed

_FRAME = re.compile(r'\s*File "(?P<path>.+)", line (?P<line>\d+)(?:, in (?P<name>.+))?')
_GROUP = re.compile(r"^ +\| ")  # the rule beside the errors of a group
_HEADING = re.compile(r"Traceback \(most recent| *\+[-+ ]")
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/(?P<site>[^/]+)"
    r"|/lib/python3[.\d]*/(?!(?:site|dist)-packages/)(?P<std>[^/]+)"
    r"|^<frozen (?P<frozen>[^>.]+)"
)
_DRAY = "/dray/runtime/"


class Frame(NamedTuple):
    where: str  # shop/reports.py:61
    name: str
    code: str
    library: str | None  # None: it is the user's own


class Part(NamedTuple):
    """A line of a traceback. kind: own (a frame of the user's), fold (frames of libraries), exc (what was raised)."""

    kind: str
    text: str
    code: str = ""


class Trace(NamedTuple):
    parts: list[Part]
    frames: int


def trace(text: str) -> Trace:
    """A stored traceback, with the frames of libraries folded."""
    found = list(_read(text))
    frames = [each for each in found if isinstance(each, Frame)]
    width = max((len(frame.where) for frame in frames if frame.library is None), default=0)
    parts: list[Part] = []
    for is_library, run in groupby(found, lambda each: isinstance(each, Frame) and each.library is not None):
        if is_library:
            parts.append(_fold([each for each in run if isinstance(each, Frame)]))
            continue
        for each in run:
            is_frame = isinstance(each, Frame)
            parts.append(
                Part("own", f"{each.where:<{width}}  {each.name}", each.code) if is_frame else Part("exc", each)
            )
    return Trace(parts, len(frames))


def stack(text: str) -> Trace:
    """Where a running body is: as `trace`, each frame with its code on one line."""
    found = [each for each in _read(text) if isinstance(each, Frame)]
    own = [each for each in found if each.library is None] or found
    width = max((len(frame.where) for frame in own), default=0)
    names = max((len(frame.name) for frame in own), default=0)
    parts: list[Part] = []
    for is_folded, run in groupby(found, lambda each: each not in own):
        frames = list(run)
        if is_folded:
            parts.append(_fold(frames))
        else:
            parts += [Part("own", f"{each.where:<{width}}  {each.name:<{names}}  ", each.code) for each in frames]
    return Trace(parts, len(found))


def _fold(frames: Sequence[Frame]) -> Part:
    libraries = dict.fromkeys(frame.library for frame in frames if frame.library)
    return Part("fold", f"{counted(len(frames), 'frame')} in {listed([*libraries])}")


def _read(text: str) -> Iterator[Frame | str]:
    """The frames of a traceback, and the lines between them that are not empty."""
    at: re.Match[str] | None = None  # a frame whose line of code has not come yet
    is_code = False  # what is indented belongs to a frame
    for raw in text.splitlines():
        row = _GROUP.sub("", raw)
        found = _FRAME.match(row)
        is_code = is_code and found is None and row.startswith(" ")
        if at is not None:
            yield _frame(at, row.strip() if is_code else "")
            at = None
        elif not found and not is_code and row.strip() and not _HEADING.match(row):
            yield row
        if found is not None:
            at, is_code = found, True
    if at is not None:
        yield _frame(at, "")


def _frame(at: re.Match[str], code: str) -> Frame:
    path = at["path"]
    found = _LIBRARY.search(path)
    library = next((each for each in found.groups() if each), None) if found else None
    if library is None and _DRAY in path:
        library = "dray"
    short = "/".join(path.split("/")[-2:])
    return Frame(f"{short}:{at['line']}", at["name"] or "", code, library.removesuffix(".py") if library else None)

"""A job's life as a ribbon: a segment for each wait and each attempt, a tick for each log line.

The times below it are text of the page, so that the script can show them in the reader's zone.
"""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from dray.web.svg.tags import decimal, tag
from dray.web.timeline import Segment, Timeline
from dray.wording import span

_WIDTH = 1040
_LETTER = 6.2  # units that one takes, about
_LEVELS = {"warning": "warning", "error": "error", "critical": "error"}
_TICKS = 500


def ribbon(drawn: Timeline) -> Markup:
    inside = Markup("").join([_hatch(), *_segments(drawn), *_ticks(drawn), _base()])
    title = tag("title", "What became of the job", id="ribbon-title")
    words = tag("desc", drawn.words, id="ribbon-words")
    return tag(
        "svg",
        title,
        words,
        inside,
        class_="ribbon",
        viewBox=f"0 0 {_WIDTH} 61",
        role="img",
        aria_labelledby="ribbon-title ribbon-words",
    )


def _x(drawn: Timeline, seconds: float) -> float:
    return seconds / drawn.seconds * _WIDTH


def _hatch() -> Markup:
    lines = (tag("rect", width=12, height=12), tag("path", d="M0 6H12"))
    units = {"patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
    return tag("defs", tag("pattern", *lines, id="hatch", width=12, height=12, **units))


def _segments(drawn: Timeline) -> Iterator[Markup]:
    places = [_x(drawn, each.begin) for each in drawn.segments]
    # Attempts last: a very short one is drawn over the waits beside it.
    order = sorted(enumerate(drawn.segments), key=lambda pair: pair[1].number is not None)
    for number, each in order:
        x, width = places[number], max(3.0, _x(drawn, each.seconds) - 1.5)
        shape = "hatch" if each.kind == "running" else f"c-{each.kind}"
        yield tag("rect", class_=shape, x=decimal(x + 0.75), y=18, width=decimal(width), height=26, rx=3)
        if each.number is None:
            words = f"{each.words}, {span(each.seconds)}"
            if each.kind == "wait" and len(words) * _LETTER < width - 16:
                yield tag("text", words, class_="seg-d", x=decimal(x + 9), y=35)
            continue
        if width > 9 + 7 * len(str(each.number)):
            yield tag("text", str(each.number), class_="seg-l", x=decimal(x + 8), y=35)
        yield from _label(drawn, each, number, places)


def _label(drawn: Timeline, each: Segment, number: int, places: list[float]) -> Iterator[Markup]:
    """Above an attempt, where there is room before the next attempt's."""
    attempts = [place for place, other in zip(places, drawn.segments, strict=True) if other.number is not None]
    right = next((place for place in attempts if place > places[number]), float(_WIDTH))
    words = f"{each.words}, {span(each.seconds)}{' so far' if each.kind == 'running' else ''}"
    room = len(words) * _LETTER
    if room <= right - places[number]:
        yield tag("text", words, class_="seg-d", x=decimal(places[number] + 1), y=11)
    elif right == _WIDTH and number > 0 and room <= _WIDTH - places[number - 1]:
        yield tag("text", words, class_="seg-d", x=_WIDTH, y=11, text_anchor="end")


def _ticks(drawn: Timeline) -> Iterator[Markup]:
    for each in drawn.ticks[-_TICKS:]:
        x = min(_x(drawn, each.at), _WIDTH - 2)
        yield tag(
            "rect", class_=f"tick-{_LEVELS.get(each.level, 'info')}", x=decimal(x), y=49, width=2, height=7, rx=1
        )


def _base() -> Markup:
    return tag("line", class_="ax", x1=0, x2=_WIDTH, y1=60.5, y2=60.5)

"""Numbers, durations, ids and guesses at what was meant, as sentences show them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

_ID = r'(?<!")[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}'  # not in quotes: there it is Python, which wants whole ids


def short_id(job_id: str) -> str:
    """An id as people see it, in lists and in logs: its last 8 characters."""
    return job_id[-8:]


def with_short_ids(text: str) -> str:
    """A sentence with every id in it shortened."""
    return re.sub(_ID, lambda match: short_id(match[0]), text)


def counted(count: float, one: str, many: str | None = None) -> str:
    """A count with its noun: ``1 job``, ``1,200 jobs``, ``2.5 seconds``; see `plural`."""
    return f"{count:,.15g} {plural(count, one, many)}"


def plural(count: float, one: str, many: str | None = None) -> str:
    """The noun that goes with a count; ``many`` defaults to ``one`` with an s."""
    return one if count == 1 else f"{one}s" if many is None else many


def listed(words: Collection[str], most: int = 3) -> str:
    """The first of these words, and how many more there are."""
    more = len(words) - most
    return ", ".join(list(words)[:most]) + (f" and {more:,} more" if more > 0 else "")


def dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def span(seconds: float) -> str:
    """A duration in one or two units."""
    if seconds < 0.001:
        return "<1ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s" if minutes < 10 else f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02}m" if hours < 10 else f"{hours}h"
    return f"{hours // 24}d"


def attempt_name(number: int, start: int | None = None) -> str:
    """What an attempt is called: ``attempt 2``; of a job that was started over, ``start 2, attempt 1``."""
    return f"attempt {number}" if start is None else f"start {start}, attempt {number}"


def attempt_of(number: int, most: int, claim: int) -> str:
    """The same where only the job's row is known: ``attempt 1 of 3``. With the number of its claim, if it has had
    others that are not counted now: it was started over, or put back. That number is never used twice."""
    return f"attempt {number} of {most}{f' (claim {claim})' if claim > number else ''}"


def rate(per_second: float) -> str:
    """How often something happens, in the unit that makes the number readable: ``2 an hour``, ``3.5 a second``."""
    units = (("a second", 1), ("a minute", 60), ("an hour", 3600), ("a day", 86400))
    unit, seconds = next((each for each in units if per_second * each[1] >= 1), units[0 if per_second <= 0 else -1])
    number = per_second * seconds
    return f"{number:,.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"


def interval(seconds: float) -> str:
    """What follows "every": ``second``, ``30 seconds``, ``1 hour 30 minutes``."""
    whole, rest = divmod(round(seconds * 1_000_000), 1_000_000)
    days, hours, minutes, left = whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60 + rest / 1_000_000
    parts = ((days, "day"), (hours, "hour"), (minutes, "minute"), (left, "second"))
    words = [counted(count, noun) for count, noun in parts if count]
    return words[0].removeprefix("1 ") if len(words) == 1 else " ".join(words)


def close_matches(word: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The known words that are spelled like this one, the closest first."""
    import difflib  # noqa: PLC0415 - only a mistyped name needs it

    return difflib.get_close_matches(word, list(known), n=most)

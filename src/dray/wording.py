"""Numbers, durations and guesses at what was meant, as sentences show them."""

from __future__ import annotations

from collections.abc import Collection, Iterable


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


def close_matches(word: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The known words that are spelled like this one, the closest first."""
    import difflib  # noqa: PLC0415 - only a mistyped name needs it

    return difflib.get_close_matches(word, list(known), n=most)

"""What a child says, checked by its worker: a body's code may write to the socket whatever it likes.

What a body may say is made fit to be stored, as the child should have done. Anything else, which no database would
take, raises ValueError, TypeError or OverflowError.
"""

from __future__ import annotations

from typing import Any

from dray.model.job import FINAL, Claim, LogLine, State
from dray.model.limits import ERROR_MESSAGE_BYTES, LOG_MESSAGE_BYTES, TRACEBACK_BYTES
from dray.model.settlement import Settlement
from dray.runtime.capture import NAME_BYTES
from dray.sanitize import clean

_STATES = FINAL | {State.SCHEDULED, State.QUEUED}  # that the end of an attempt leads to
_TRUTHS = ("gives_back", "drops_args", "counts_crash", "keeps_error")
_TEXTS = ("outcome", "reason", "result", "error", "error_type", "error_message", "traceback")


def instant(given: Any, now: int) -> int:
    """A reading of the steady clock, which cannot be yet to come."""
    if not isinstance(given, int):
        raise TypeError(f"a time that is a {type(given).__name__}")
    return min(max(given, 0), now)


def report(given: Any) -> tuple[float | None, str | None]:
    """How far a job is."""
    percent, said = given
    if percent is not None:
        percent = float(percent)
        if not 0 <= percent <= 100:
            raise ValueError("a percentage that is none")
    return percent, None if said is None else _text(said, ERROR_MESSAGE_BYTES)


def said(given: Any) -> tuple[int, str]:
    """A line for the worker's own log, and its level."""
    level, text = given
    if not isinstance(level, int):
        raise TypeError(f"a level that is a {type(level).__name__}")
    return level, _text(text, TRACEBACK_BYTES)


def lines(claim: Claim, given: Any, now: int) -> list[LogLine]:
    """Captured log records."""
    return [
        LogLine(
            claim.id,
            claim.claim,
            instant(at, now),
            _text(level, NAME_BYTES),
            _text(logger, NAME_BYTES),
            _text(message, LOG_MESSAGE_BYTES),
        )
        for at, level, logger, message in given
    ]


def settlement(claim: Claim, given: Any, now: int) -> Settlement:
    """How its attempt has ended. What it is to store is for the database to judge, which refuses it alone."""
    found = Settlement(*given)
    if found[:2] != (claim.id, claim.claim):
        raise ValueError("the outcome of another job")
    _check_each(found, ("state",), str)
    if found.state not in _STATES:
        raise ValueError("a state that no attempt ends in")
    _check_each(found, ("delay_us",), int, type(None))
    _check_each(found, _TRUTHS, bool)
    _check_each(found, _TEXTS, str, type(None))
    return found._replace(started=instant(found.started, now), finished=instant(found.finished, now))


def _check_each(found: Settlement, names: tuple[str, ...], *kinds: type) -> None:
    for name in names:
        if not isinstance(value := getattr(found, name), kinds):
            raise TypeError(f"{name} is a {type(value).__name__}")


def _text(given: Any, limit_bytes: int) -> str:
    if not isinstance(given, str):
        raise TypeError(f"a text that is a {type(given).__name__}")
    return clean(given, limit_bytes)

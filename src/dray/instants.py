"""Instants and durations: whole microseconds, since 1970 in UTC.

Names of instants end in ``_at``, names of durations in ``_us``. Nothing here asks what time it is.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

MILLISECOND = 1_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# The ends of what a datetime can show, but for a day: in another zone it would be beyond them.
FIRST_INSTANT = (datetime.min.replace(tzinfo=UTC) + timedelta(days=1) - EPOCH) // _MICROSECOND
LAST_INSTANT = (datetime.max.replace(tzinfo=UTC) - timedelta(days=1) - EPOCH) // _MICROSECOND


def to_datetime(at: int) -> datetime:
    """The instant as an aware datetime in UTC; one beyond the calendar, which plain SQL can write, as its end."""
    return EPOCH + timedelta(microseconds=min(max(at, FIRST_INSTANT), LAST_INSTANT))


def moment(at: int | None) -> datetime | None:
    """As `to_datetime`, of an instant that may not have come."""
    return None if at is None else to_datetime(at)


def iso(when: datetime) -> str:
    """An aware datetime as JSON shows it: ISO 8601 in UTC, with microseconds."""
    return when.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def from_datetime(when: datetime) -> int:
    """The aware datetime as an instant."""
    return (when - EPOCH) // _MICROSECOND

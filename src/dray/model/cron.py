"""Cron lines: which instants they name in a time zone.

`cronsim` is asked about wall-clock times only, as if the wall clock showed UTC; this module turns wall times into
instants. With its own time zones, cronsim 2.8 never returns from a reverse step over the change of Pacific/Chatham,
and loses slots where a change is not by whole hours. The rules at a change are Debian's:

- Fixed hours and minutes fire once for each wall time. A skipped time fires at the change; a repeated time fires the
  first time.
- An hour or minute field that starts with ``*`` follows the clock: a skipped time does not fire, a repeated one fires
  twice.

A wall time is an int like an instant: microseconds since 1970 on a wall clock of that zone.
"""

from __future__ import annotations

import calendar
from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, date, tzinfo
from functools import cache, lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from dray.errors import ConfigError
from dray.instants import SECOND, from_datetime, to_datetime
from dray.model.bounds import CRON_CHARS
from dray.model.values import shown

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_ALLOWED = f"five fields (minute hour day month weekday), six with seconds first, or one of {' '.join(ALIASES)}"

# A line that meets only skipped hours this often, at one a year, names nothing else: within 12 years a date
# has fallen on every weekday.
_MAX_GAPS = 15
_PROBE_AT = 1_767_225_600 * SECOND  # 2026-01-01: any fixed instant would do
_LENGTHS = {month: {calendar.monthrange(year, month)[1] for year in (2023, 2024)} for month in range(1, 13)}


@dataclass(frozen=True, slots=True)
class Cron:
    """A checked cron line in its zone; made by `parse`."""

    fields: str
    zone: tzinfo
    follows_clock: bool

    def next_after(self, at: int) -> int | None:
        """The first slot strictly after the instant."""
        wall, *seam = self._walls(at)
        starts = (wall, *(other - 1 for other in seam))
        slots = (slot for start in starts for slot in self._nearest(start, reverse=False))
        return min((slot for slot in slots if slot > at), default=None)

    def last_until(self, at: int) -> int | None:
        """The last slot at or before the instant."""
        wall, *seam = self._walls(at)
        slots = (slot for start in (wall + 1, *seam) for slot in self._nearest(start, reverse=True))
        return max((slot for slot in slots if slot <= at), default=None)

    def _nearest(self, wall: int, *, reverse: bool) -> tuple[int, ...]:
        """The slots of the first wall time that the line names after this one, or before it; two where it repeats."""
        for _ in range(_MAX_GAPS):
            found = _step(self.fields, wall, reverse=reverse)
            if found is None:
                return ()
            early, late = self._readings(found)
            if early <= late:
                return (early, late) if self.follows_clock else (early,)
            change = self._change(late, early)
            if not self.follows_clock:
                return (change,)
            wall = self._wall(change - 1) + 1 if reverse else self._wall(change) - 1
        return ()

    def _walls(self, at: int) -> list[int]:
        """The wall times to search from: the clock's, and in a repeated hour the one where both passes meet."""
        wall = self._wall(at)
        early, late = self._readings(wall)
        if early == late:
            return [wall]
        change = self._change(early, late)
        return [wall, change + wall - (late if at == early else early)]

    def _wall(self, at: int) -> int:
        return from_datetime(to_datetime(at).astimezone(self.zone).replace(tzinfo=UTC))

    def _readings(self, wall: int) -> tuple[int, int]:
        """Both readings of a wall time. Equal: it comes once; rising: twice; falling: it is skipped."""
        local = to_datetime(wall).replace(tzinfo=self.zone)
        return from_datetime(local), from_datetime(local.replace(fold=1))

    def _change(self, before: int, after: int) -> int:
        """The instant between the two at which the clocks change."""
        seconds = range(before // SECOND + 1, after // SECOND + 1)
        offset = self._wall(after) - after
        nth = bisect_left(seconds, 1, key=lambda s: self._wall(s * SECOND) - s * SECOND == offset)
        return seconds[nth] * SECOND


@lru_cache(maxsize=256)
def parse(text: str, tz: str) -> Cron:
    """The line, checked: `ConfigError` if it cannot be parsed, names an unknown zone or never fires."""
    fields = ALIASES.get(text.lower(), text)
    simulated = _read(text, fields)
    minute, hour = fields.split()[-5:-3]
    cron = Cron(fields, zone(tz), follows_clock=minute.startswith("*") or hour.startswith("*"))
    if not _has_a_day(simulated) or cron.next_after(_PROBE_AT) is None:
        raise ConfigError(
            f"cron {shown(text)} never comes: there is no such day and time in {tz}; change its day or month"
        )
    return cron


def in_words(text: str) -> str:
    """A line in English: ``At 03:00 every day``."""
    return _read(text, ALIASES.get(text.lower(), text)).explain()


def _read(text: str, fields: str) -> CronSim:
    if len(fields) > CRON_CHARS:
        raise ConfigError(
            f"cron {shown(text)} cannot be used: it is longer than {CRON_CHARS} characters; "
            "split it into two schedules"
        )
    try:
        return CronSim(fields, to_datetime(_PROBE_AT))
    except CronSimError as error:
        problem = str(error).lower()
        raise ConfigError(f"cron {shown(text)} cannot be used ({problem}): write {_ALLOWED}") from None


def _step(fields: str, wall: int, *, reverse: bool) -> int | None:
    found = next(CronSim(fields, to_datetime(wall), reverse=reverse), None)
    return None if found is None else from_datetime(found)


def zone(tz: str) -> tzinfo:
    if tz == "UTC":  # also where the system has no zone files
        return UTC
    try:
        return ZoneInfo(tz)
    except (KeyError, ValueError, OSError):
        raise ConfigError(
            f"time zone {shown(tz)} is not known here: use a name such as Europe/Berlin, or install `tzdata`"
        ) from None


def _has_a_day(simulated: CronSim) -> bool:
    # cronsim needs 25 ms to find that `0 0 */31 * 1#5` never comes: it walks through 50 years of days. It finds
    # every day that does come: the rarest, 29 February on a given weekday, is at most 40 years away.
    lengths = {length for month in simulated.months for length in _LENGTHS[month]}
    return any(
        simulated.match_day(date(year, month, day))
        for (length, _), (year, month) in _kinds_of_month().items()
        if length in lengths
        for day in range(1, length + 1)
    )


@cache
def _kinds_of_month() -> dict[tuple[int, int], tuple[int, int]]:
    """A month for each length and first weekday: the days of a month are known from these two."""
    months = [(year, month) for year in range(2000, 2028) for month in range(1, 13)]
    return {(calendar.monthrange(*month)[1], calendar.weekday(*month, 1)): month for month in months}

"""A report every night at three, for the day that has ended, however late it runs.

Its database is the one that DRAY_URL names; else dray.db in the current folder.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import dray
from dray.testing import clock, database, drain

app = dray.App(migrate=True)
ZONE = ZoneInfo("Europe/Berlin")


@app.task(max_attempts=5, timeout=600)
def report(ctx: dray.Context) -> str:
    """Reports on the day before its slot. A job that was started by hand has no slot, and takes the current time."""
    at = (ctx.slot or datetime.now(UTC)).astimezone(ZONE)
    return f"{at:%d %b %H:%M %Z}: report on {at - timedelta(days=1):%A}"


def declare() -> None:
    app.schedule("nightly", report, cron="0 3 * * *", tz=ZONE.key, misfire="all", misfire_limit=7)


def show_missed_nights() -> None:
    """In a scratch database, on a clock that is moved: three nights pass without a worker, one of them short."""
    with database(app), clock(app, at=datetime(2027, 3, 26, 12, tzinfo=UTC)) as time:
        declare()
        time.advance(timedelta(days=3))
        drain(app, delays=False)
        for job in reversed(app.jobs(task=report)):
            print(job.result())


if __name__ == "__main__":
    with app:
        show_missed_nights()
        declare()  # in the database of the App

"""A report every night at three, for the day that has ended, however late it runs.

Usage: python report.py [URL]   (default: a SQLite file in the current directory)
"""

from __future__ import annotations

import sys
from datetime import timedelta
from zoneinfo import ZoneInfo

import dray

app = dray.App(sys.argv[1] if len(sys.argv) > 1 else None, migrate=True)
ZONE = ZoneInfo("Europe/Berlin")


@app.task(max_attempts=5, timeout=600)
def report(ctx: dray.Context, team: str = "all") -> str:
    """Reports on the day before its slot. A job that was started by hand has none, and takes the last one."""
    at = (ctx.slot or app.job(ctx.job_id).created_at).astimezone(ZONE)
    return f"{team}: {(at - timedelta(days=1)):%A}"


def main() -> None:
    with app:
        app.schedule("nightly", report, cron="0 3 * * *", tz=ZONE.key, misfire="all", misfire_limit=7, overlap="skip")
        (schedule,) = app.schedules()
        print(f"{schedule.name}: {schedule.rule}, {len(schedule.next(3))} slots ahead")

        job = app.run_schedule("nightly")  # not to wait for the night
        app.worker().run_until_idle()
        print(str(job.result()).partition(":")[0], job.schedule)


if __name__ == "__main__":
    main()

"""Waits for jobs to end, with a progress bar where somebody watches, and says how they ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dray.cli.exits import Code, Failure, say
from dray.cli.output import short
from dray.model.job import State

if TYPE_CHECKING:
    from dray.app import App
    from dray.model.job import Job

_STEP = 0.2  # seconds between two looks at the progress


def wait(app: App, ids: Sequence[str], timeout: float | None) -> dict[str, Job]:
    """The jobs, once all have ended; a failure when the time is over."""
    ended = (
        _watching(app, ids[0], timeout) if len(ids) == 1 and sys.stderr.isatty() else app.waiter.wait(ids, timeout)
    )
    left = [short(job_id) for job_id in ids if job_id not in ended]
    if left:
        assert timeout is not None
        jobs = f"job {left[0]} has" if len(left) == 1 else f"{len(left)} jobs ({', '.join(left[:5])}) have"
        raise Failure(
            f"{jobs} not ended within {timeout:g} seconds and may yet; nothing was cancelled", Code.TIMED_OUT
        )
    return ended


def judge(jobs: Sequence[Job]) -> Code:
    """Says which of these did not complete; the code for that."""
    failed = [job for job in jobs if job.state != State.COMPLETED]
    for job in failed:
        say(_how_it_ended(job))
    return Code.JOB_ENDED if failed else Code.DONE


def _how_it_ended(job: Job) -> str:
    where = f" in attempt {job.attempt} of {job.max_attempts}" if job.state == State.FAILED else ""
    why = f": {job.error}" if job.error else ""
    reason = f" ({job.reason})" if job.reason else ""
    what = f"job {short(job.id)} ({job.task}) {_WORDS[job.state]}{reason}{where}{why}"
    return f"{what}; see `dray job show {short(job.id)}`"


_WORDS = {"failed": "failed", "cancelled": "was cancelled"}


def _watching(app: App, job_id: str, timeout: float | None) -> dict[str, Job]:
    from rich.console import Console  # noqa: PLC0415 - for terminals alone
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    deadline = None if timeout is None else time.monotonic() + timeout
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(short(job_id), total=None)
        while True:
            left = _STEP if deadline is None else min(_STEP, deadline - time.monotonic())
            ended = app.waiter.wait([job_id], max(0.0, left))
            if ended or left <= 0:
                return ended
            progress.update(bar, **_shown(app, job_id))


def _shown(app: App, job_id: str) -> dict[str, Any]:
    from dray.text import escape_control  # noqa: PLC0415

    job = app.job(job_id)
    words = f"{short(job_id)} {job.task} {job.state}"
    percent, message = job.progress
    if message:
        words += f": {escape_control(message)}"
    return {"description": words, "completed": percent or 0, "total": None if percent is None else 100}

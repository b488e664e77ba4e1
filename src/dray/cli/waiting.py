"""Waits for jobs to end, with a progress line on a terminal, and says how they ended."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType

import dray
from dray.app_interface import core_of
from dray.cli.cells import short
from dray.cli.exits import Code, Failure, say
from dray.cli.output import bar, overwritten, showable
from dray.cli.processes import handling
from dray.errors import StorageError
from dray.model.causes import Standstill
from dray.model.job import Job, State
from dray.sanitize import escape_control
from dray.waiter import PATIENCE, Patience
from dray.wording import attempt_of, counted, span, with_short_ids

_STEP = 0.2  # seconds between two looks at the progress
_BAR = 20


def wait(app: dray.App, ids: Sequence[str], timeout: float | None) -> dict[str, Job]:
    """Returns the jobs once all have ended; fails when the time is over, or after Ctrl-C."""
    interrupts: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        # The first Ctrl-C is only noted; another one ends the program wherever it is.
        if interrupts:
            raise KeyboardInterrupt
        interrupts.append(number)

    with handling({signal.SIGINT: note}):
        ended = _watching(app, ids, timeout, interrupts)
    left = [short(job_id) for job_id in ids if job_id not in ended]
    if not left:
        return ended
    if interrupts:
        goes_on = f"job {left[0]} goes on" if len(left) == 1 else f"{len(left)} jobs go on"
        raise Failure(f"{goes_on}; wait again with `dray job wait {' '.join(left[:5])}`", Code.INTERRUPTED)
    assert timeout is not None
    jobs = f"job {left[0]} has" if len(left) == 1 else f"{len(left)} jobs ({', '.join(left[:5])}) have"
    found = _standstill(app, _first(ids, ended))
    which = "" if len(left) == 1 else f"{left[0]} "
    why = (
        "may yet; nothing was cancelled, wait again with a longer --timeout"
        if found is None
        else f"{which}does not run. {found.text}"
    )
    raise Failure(f"{jobs} not ended within {counted(timeout, 'second')} and {why}", Code.TIMED_OUT)


def judge(jobs: Sequence[Job]) -> Code:
    """Says which jobs did not complete, and returns the exit code for that."""
    failed = [job for job in jobs if job.state != State.COMPLETED]
    for job in failed:
        attempt = attempt_of(job.attempt, job.max_attempts, job.claim)
        where = f" in {attempt}" if job.state == State.FAILED else ""
        why = f": {job.error}" if job.error else ""
        reason = f" ({job.reason})" if job.reason else ""
        word = "failed" if job.state == State.FAILED else "was cancelled"
        say(f"job {short(job.id)} ({job.task}) {word}{reason}{where}{why}; see `dray job show {short(job.id)}`")
    return Code.JOB_ENDED if failed else Code.DONE


def _watching(app: dray.App, ids: Sequence[str], timeout: float | None, interrupts: Sequence[int]) -> dict[str, Job]:
    """Returns the jobs that ended in time. Meanwhile a line shows their progress; it is removed at the end."""
    began, region = time.monotonic(), overwritten(sys.stderr)
    deadline = math.inf if timeout is None else began + timeout
    hint, patience = _Hint(app), Patience()
    try:
        while True:
            left = min(_STEP, deadline - time.monotonic())
            ended = core_of(app).waiter.wait(ids, max(0.0, left))
            if len(ended) == len(ids) or left <= 0 or interrupts:
                return ended
            # A terminal shows it for as long as it is true; elsewhere once is enough.
            if region is None and patience.is_due(time.monotonic()):
                patience.looked(time.monotonic())
                if hint.look([job_id for job_id in ids if job_id not in ended], patience):
                    say(hint.text)
                    patience.may_warn = False
            elif region is not None and time.monotonic() >= patience.looks_at:
                patience.looks_at = time.monotonic() + PATIENCE
                hint.look([job_id for job_id in ids if job_id not in ended], patience)
            if region is not None:
                lines = [_line(app, ids, len(ended), time.monotonic() - began), showable(hint.text, sys.stderr)]
                region.draw([line for line in lines if line])
    finally:
        if region is not None:
            region.clear()


def _first(ids: Sequence[str], ended: Mapping[str, Job]) -> str:
    return next(job_id for job_id in ids if job_id not in ended)


class _Hint:
    """Why a job that is waited for cannot run; nothing if all can."""

    def __init__(self, app: dray.App) -> None:
        self.text = ""
        self._app = app
        self._job: str | None = None

    def look(self, left: Sequence[str], patience: Patience) -> str:
        """Looks again: at the job it told of first, which may run by now, and then at others."""
        try:
            waiter = core_of(self._app).waiter
            told_of = [job_id for job_id in left if job_id == self._job]
            found = (waiter.stuck(told_of, patience) if told_of else None) or waiter.stuck(left, patience)
        except StorageError:
            found = None
        self.text, self._job = "", None
        if found is not None:
            self._job, why = found
            self.text = f"job {short(self._job)} does not run. {escape_control(with_short_ids(why.text))}"
        return self.text


def _standstill(app: dray.App, job_id: str) -> Standstill | None:
    try:
        found = core_of(app).waiter.standstill(job_id)
    except StorageError:
        return None
    return None if found is None else found._replace(text=escape_control(with_short_ids(found.text)))


def _line(app: dray.App, ids: Sequence[str], ended: int, seconds: float) -> str:
    """``[=====-----]  45%  1a2b3c4d tasks.slow running: step 4, attempt 1 of 3, 12s``."""
    share, words = ended / len(ids), f"{ended} of {len(ids)} jobs have ended"
    if len(ids) == 1:
        share, words = _one(app, ids[0])
    done = "" if share is None else f"{bar(share, _BAR, sys.stderr)} {share * 100:3.0f}%  "
    return showable(f"{done}{words}, {span(seconds)}", sys.stderr)


def _one(app: dray.App, job_id: str) -> tuple[float | None, str]:
    """Returns how much of a job is done, if it reports that, and its state in words."""
    try:
        row = app.job(job_id).row
    except StorageError:
        return None, f"{short(job_id)}: the database does not answer"
    message = f": {escape_control(row.progress_message)}" if row.progress_message else ""
    attempt = f", {attempt_of(row.attempt, row.max_attempts, row.claim)}" if row.attempt else ""
    words = f"{short(row.id)} {escape_control(row.task)} {row.state}{message}{attempt}"
    return None if row.progress is None else row.progress / 100, words

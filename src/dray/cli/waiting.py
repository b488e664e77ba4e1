"""Waits for jobs to end, with a progress bar where somebody watches, and says how they ended."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from dray.cli.exits import Code, Failure, say
from dray.cli.output import short
from dray.errors import StorageError
from dray.model.job import State
from dray.wording import counted

if TYPE_CHECKING:
    from dray.app import App
    from dray.cli.live.region import Region
    from dray.model.job import Job

_STEP = 0.2  # seconds between two looks at the progress
_BAR = 20


def wait(app: App, ids: Sequence[str], timeout: float | None) -> dict[str, Job]:
    """The jobs, once all have ended; a failure when the time is over, or somebody has waited long enough."""
    from dray.cli.live.ink import is_dumb  # noqa: PLC0415

    region = None
    if sys.stderr.isatty() and not is_dumb():
        from dray.cli.live.region import Region  # noqa: PLC0415 - for terminals alone

        region = Region(sys.stderr)
    with _Interrupts() as interrupts:
        ended = _watching(app, ids, timeout, region, interrupts)
    left = [short(job_id) for job_id in ids if job_id not in ended]
    if not left:
        return ended
    if interrupts.are_there:
        goes_on = f"job {left[0]} goes on" if len(left) == 1 else f"{len(left)} jobs go on"
        raise Failure(f"{goes_on}; wait again with `dray job wait {' '.join(left[:5])}`", Code.INTERRUPTED)
    assert timeout is not None
    jobs = f"job {left[0]} has" if len(left) == 1 else f"{len(left)} jobs ({', '.join(left[:5])}) have"
    raise Failure(
        f"{jobs} not ended within {counted(timeout, 'second')} and may yet; nothing was cancelled", Code.TIMED_OUT
    )


class _Interrupts:
    """Within the block the first Ctrl-C is only noted; another one ends the program wherever it is."""

    def __init__(self) -> None:
        self.are_there = False
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as the interpreter calls it
        if self.are_there:
            raise KeyboardInterrupt
        self.are_there = True


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


def _watching(
    app: App, ids: Sequence[str], timeout: float | None, region: Region | None, interrupts: _Interrupts
) -> dict[str, Job]:
    """Those that have ended in time; meanwhile a line that says how far they are, and is gone in the end."""
    began = time.monotonic()
    deadline = math.inf if timeout is None else began + timeout
    try:
        while True:
            left = min(_STEP, deadline - time.monotonic())
            ended = app.waiter.wait(ids, max(0.0, left))
            if len(ended) == len(ids) or left <= 0 or interrupts.are_there:
                return ended
            if region is not None:
                region.draw([_line(app, ids, len(ended), time.monotonic() - began)])
    finally:
        if region is not None:
            region.clear()


def _line(app: App, ids: Sequence[str], ended: int, seconds: float) -> str:
    """``[=====-----]  45%  1a2b3c4d tasks.slow running: step 4, attempt 1 of 3, 12s``."""
    from dray.cli.live.ink import is_ascii_only  # noqa: PLC0415
    from dray.cli.times import span  # noqa: PLC0415

    share, words = (
        _one(app, ids[0]) if len(ids) == 1 else (ended / len(ids), f"{ended} of {len(ids)} jobs have ended")
    )
    ascii_only = is_ascii_only(stream=sys.stderr)
    line = f"{_bar(share, ascii_only=ascii_only)}{words}, {span(seconds)}"
    return line.encode("ascii", "backslashreplace").decode() if ascii_only else line


def _bar(share: float | None, *, ascii_only: bool) -> str:
    from dray.cli.live.ink import bar  # noqa: PLC0415

    return "" if share is None else f"{bar(share, _BAR, ascii_only=ascii_only)} {share * 100:3.0f}%  "


def _one(app: App, job_id: str) -> tuple[float | None, str]:
    """How much of a job is done, if it tells, and how it is."""
    try:
        row = app.job(job_id).row
    except StorageError:
        return None, f"{short(job_id)}: the database does not answer"
    return None if row.progress is None else row.progress / 100, _words(row)


def _words(row: Job) -> str:
    from dray.sanitize import escape_control  # noqa: PLC0415

    message = f": {escape_control(row.progress_message)}" if row.progress_message else ""
    attempt = f", attempt {row.attempt} of {row.max_attempts}" if row.attempt else ""
    return f"{short(row.id)} {escape_control(row.task)} {row.state}{message}{attempt}"

"""Where a running job is, and what keeps it from ending as it should."""

from __future__ import annotations

from collections.abc import Iterator

from dray.instants import SECOND
from dray.model.causes.cause import Cause, Kind, cause, instant, when, worker_facts, worker_words
from dray.model.circumstance import Circumstances
from dray.wording import span


def running(around: Circumstances) -> list[Cause]:
    holder = around.holder
    found = [*_worker(around), *_overdue(around), *_cancel(around)]
    if holder is None or holder.is_gone:
        return found
    job = around.job
    started_at = job.started_at or job.updated_at
    text = f"It runs on worker {worker_words(holder)}, since {when(started_at, around.now)}, "
    text += f"attempt {job.attempt} of {job.max_attempts}{_progress(around)}."
    facts = {"attempt": job.attempt, "max_attempts": job.max_attempts, "progress": job.progress}
    found.append(cause(Kind.RUNNING, text, worker=worker_facts(holder), started_at=instant(started_at), **facts))
    return found


def _progress(around: Circumstances) -> str:
    percent, message = around.job.progress, around.job.progress_message
    shown = [f"{percent:.0f}%" if percent is not None else "", message or ""]
    words = ": ".join(filter(None, shown))
    return f", {words}" if words else ""


def _worker(around: Circumstances) -> Iterator[Cause]:
    job, holder = around.job, around.holder
    if holder is None:
        text = f"Its worker {job.worker_id} is not known any more: {_taken_back(around)}."
        yield cause(Kind.WORKER_GONE, text, worker=None, worker_id=job.worker_id)
    elif holder.is_gone:
        has_ended = holder.worker.stopped_at is not None
        word = f"is {holder.worker.state}" if has_ended else "is gone, its process has ended"
        text = f"Its worker {worker_words(holder)} {word}: {_taken_back(around)}."
        yield cause(Kind.WORKER_GONE, text, worker=worker_facts(holder), worker_id=job.worker_id)
    elif holder.is_silent:
        seen = when(holder.worker.last_seen_at, around.now)
        text = f"Its worker {worker_words(holder)} was last seen {seen} and its lease is over: unless it comes back, "
        text += f"{_taken_back(around)}."
        yield cause(Kind.WORKER_SILENT, text, worker=worker_facts(holder))


def _taken_back(around: Circumstances) -> str:
    if any(view.is_alive for view in around.workers):
        return "the job is taken back in a moment"
    return "the job is taken back by the next worker that starts, as none is alive"


def _overdue(around: Circumstances) -> Iterator[Cause]:
    job = around.job
    if job.timeout is None or job.started_at is None:
        return
    over_us = around.now - job.started_at - int(job.timeout * SECOND)
    if over_us > 0:
        text = f"It is {span(over_us / SECOND)} past its timeout of {span(job.timeout)}, counted from its claim, "
        text += "and is being stopped."
        yield cause(Kind.OVERDUE, text, timeout=job.timeout, over=over_us / SECOND)


def _cancel(around: Circumstances) -> Iterator[Cause]:
    at = around.job.cancel_requested_at
    if at is not None:
        text = f"Somebody asked it to stop {when(at, around.now)}; its body has not ended yet."
        yield cause(Kind.CANCEL_REQUESTED, text, cancel_requested_at=instant(at))

"""Why a job has not started: the most decisive cause first, and every other that holds as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dray.model.causes.cause import (
    Cause,
    Kind,
    cause,
    ended_as,
    instant,
    listed,
    parent_facts,
    parent_words,
    when,
)
from dray.model.circumstance import AHEAD_LIMIT, Circumstances, Parent, WorkerView
from dray.model.job import FINAL, State
from dray.wording import close_matches, counted, plural

_MISFIT = "Misfit: "  # how the error of a job begins whose arguments fitted no worker so far


def unstarted(around: Circumstances, misfit: str | None = None) -> list[Cause]:
    """`misfit`: what the code at hand has against the arguments."""
    found = [*_expired(around), *_misfitting(around, misfit), *_by_state(around), *_queue(around), *_expires(around)]
    has_obstacle = any(each.kind is not Kind.EXPIRES for each in found) or _is_expired(around)
    return found if has_obstacle else [_ready(around), *found]


# Time


def _is_expired(around: Circumstances) -> bool:
    return around.job.expires_at is not None and around.job.expires_at <= around.now


def _expired(around: Circumstances) -> Iterator[Cause]:
    at = around.job.expires_at
    if at is not None and at <= around.now:
        text = f"It expired {when(at, around.now)} and is about to be cancelled{_by_whom(around)}."
        yield cause(Kind.EXPIRES, text, expires_at=instant(at))


def _expires(around: Circumstances) -> Iterator[Cause]:
    at = around.job.expires_at
    if at is not None and at > around.now:
        text = f"It expires {when(at, around.now)}: it is cancelled if it has not started by then."
        yield cause(Kind.EXPIRES, text, expires_at=instant(at))


def _by_state(around: Circumstances) -> Iterator[Cause]:
    job = around.job
    if job.state == State.WAITING:
        yield from _parents(around)
        if job.run_at > around.now:
            text = f"It does not start before its time either, which is {when(job.run_at, around.now)}."
            yield cause(Kind.SCHEDULED, text, run_at=instant(job.run_at))
    elif job.state == State.SCHEDULED:
        yield _time(around)


def _time(around: Circumstances) -> Cause:
    job, last, now = around.job, around.last, around.now
    at = when(job.run_at, now)
    if job.run_at <= now:
        return cause(
            Kind.DUE,
            f"Its time came {at}: it is about to be queued{_by_whom(around)}.",
            run_at=instant(job.run_at),
        )
    if last is not None and job.attempt and (last.claim, last.attempt) == (job.claim, job.attempt):
        text = (
            f"Attempt {job.attempt} of {job.max_attempts} ended ({job.error or last.outcome}); the next starts {at}."
        )
        return cause(
            Kind.RETRY,
            text,
            run_at=instant(job.run_at),
            attempt=job.attempt,
            max_attempts=job.max_attempts,
            outcome=last.outcome,
            error=job.error,
        )
    if job.claim and (last is None or last.claim != job.claim):
        text = f"Its last run put it back, and no attempt was counted: it runs again {at}."
        return cause(Kind.SNOOZED, text, run_at=instant(job.run_at))
    return cause(Kind.SCHEDULED, f"Its time has not come: it starts {at}.", run_at=instant(job.run_at))


def _by_whom(around: Circumstances) -> str:
    return "" if any(view.is_alive for view in around.workers) else " by the next worker that starts: none is alive"


# Parents


def _parents(around: Circumstances) -> Iterator[Cause]:
    job, parents = around.job, around.parents
    for parent in parents:
        if parent.satisfied < 0 and parent.state in FINAL:
            yield _held(around, parent)
    for parent in parents:
        if parent.satisfied == 0 and parent.state in FINAL:
            text = f"Its parent {parent_words(parent)} ended as {ended_as(parent.state, parent.reason)}: "
            text += f"that is being passed on to its children{_by_whom(around)}."
            yield cause(Kind.FANOUT, text, parent=parent_facts(parent))
    live = [parent for parent in parents if parent.state not in FINAL]
    if live:
        names = listed([f"{parent_words(parent)} ({parent.state})" for parent in live])
        text = f"It waits for {counted(job.waiting_on, 'parent')}; of these have not ended: {names}. "
        text += f"`dray why {live[0].id}` says why."
        yield cause(Kind.PARENTS, text, waiting_on=job.waiting_on, parents=[parent_facts(parent) for parent in live])
    if not parents:
        text = f"All its parents have ended, and it is about to be freed{_by_whom(around)}."
        yield cause(Kind.FANOUT, text, parent=None)


def _held(around: Circumstances, parent: Parent) -> Cause:
    text = (
        f"It is held by policy: its parent {parent_words(parent)} ended as {ended_as(parent.state, parent.reason)}, "
        f"and on_parent_failure is {around.job.on_parent_failure}. `dray job retry {parent.id}` runs the parent "
        f"again, which frees it; `dray job cancel {around.job.id}` gives it up."
    )
    return cause(Kind.HELD, text, parent=parent_facts(parent), on_parent_failure=around.job.on_parent_failure)


# Arguments


def _misfitting(around: Circumstances, misfit: str | None) -> Iterator[Cause]:
    job = around.job
    if job.error is not None and job.error.startswith(_MISFIT):
        error = job.error.removeprefix(_MISFIT)
        text = f"It was left alone, and no attempt was counted: {error}"
        yield cause(Kind.ARGUMENTS, text, error=error, is_here=False)
    elif misfit is not None:
        yield cause(Kind.ARGUMENTS, f"With the code here it would not run: {misfit}", error=misfit, is_here=True)


# Its queue, and who serves it


def _queue(around: Circumstances) -> Iterator[Cause]:
    job = around.job
    if around.paused_at is not None:
        text = (
            f"Queue {job.queue} is paused, since {when(around.paused_at, around.now)}: nothing of it starts before "
        )
        text += f"`dray queues resume {job.queue}`."
        yield cause(Kind.PAUSED, text, queue=job.queue, paused_at=instant(around.paused_at))
    serving = [view for view in around.workers if view.serves(job.queue)]
    able = [view for view in serving if view.knows(job.task)]
    if not serving:
        yield _no_worker(around)
    elif not able:
        yield _unknown_task(around, serving)
    elif job.state == State.QUEUED:
        yield from _crowd(around, able)


def _no_worker(around: Circumstances) -> Cause:
    queue = around.job.queue
    alive = [view.worker for view in around.workers if view.is_alive]
    elsewhere = sorted({name for worker in alive for name in worker.queues if name != queue})
    ending = [worker.name for worker in alive if worker.state != "active"]
    silent = [view.worker.name for view in around.workers if view.is_silent]
    serve = counted(len(alive), "worker serves", "workers serve")
    end = plural(len(ending), "is ending and takes", "are ending and take")
    have = plural(len(silent), "has not been seen since its lease", "have not been seen since their leases")
    notes = [
        f"{serve} other queues ({listed(elsewhere)})" if elsewhere else "",
        f"{listed(ending)} {end} nothing more" if ending else "",
        f"{listed(silent)} {have} ended" if silent else "",
    ]
    about = "; ".join(filter(None, notes))
    head = f"No live worker serves queue {queue}" if alive else "No worker is alive"
    text = (
        f"{head}{f' ({about})' if about else ''}: start one with `dray worker{f' -q {queue}' if elsewhere else ''}`."
    )
    return cause(Kind.NO_WORKER, text, queue=queue, alive=len(alive), other_queues=elsewhere, silent=silent)


def _unknown_task(around: Circumstances, serving: Sequence[WorkerView]) -> Cause:
    task = around.job.task
    known = sorted({name for view in serving for name in view.worker.tasks})
    near = close_matches(task, known, 3)
    elsewhere = [view.worker.name for view in around.workers if view.is_alive and view.knows(task)]
    count, queue, tasks = len(serving), around.job.queue, counted(len(known), "other task")
    one = f"The live worker of queue {queue} does not know"
    many = f"None of the {count:,} live workers of queue {queue} knows"
    text = f"{plural(count, one, many)} the task {task}; "
    text += f"it is spelled like {' and '.join(near)}" if near else plural(count, "it knows ", "they know ") + tasks
    serve = plural(len(elsewhere), "serves", "serve")
    text += f"; known by {listed(elsewhere)}, which {serve} other queues" if elsewhere else ""
    text += ". Start a worker with the code that defines it."
    return cause(Kind.UNKNOWN_TASK, text, task=task, workers=len(serving), known=len(known), near=near)


def _crowd(around: Circumstances, able: Sequence[WorkerView]) -> Iterator[Cause]:
    if all(view.is_full for view in able):
        taken, slots = (sum(view.running for view in able), sum(view.worker.concurrency for view in able))
        text = f"All slots of the {counted(len(able), 'worker')} that could run it are taken: "
        text += f"{counted(taken, 'job')} in hand, {slots:,} at a time."
        yield cause(Kind.SLOTS, text, workers=len(able), running=taken, concurrency=slots)
    ahead, is_more = _ahead(around, able)
    if ahead:
        more = "more than " if is_more else ""
        text = f"{more}{counted(ahead, 'job')} that workers of queue {around.job.queue} know "
        text += f"{plural(ahead, 'comes', 'come')} before it, by priority, time or id."
        yield cause(Kind.BEHIND, text[0].upper() + text[1:], queue=around.job.queue, ahead=ahead, is_more=is_more)


def _ahead(around: Circumstances, able: Sequence[WorkerView]) -> tuple[int, bool]:
    counts = [n for task, n in around.ahead.items() if any(view.knows(task) for view in able)]
    return sum(counts), any(n >= AHEAD_LIMIT for n in counts)


def _ready(around: Circumstances) -> Cause:
    job = around.job
    able = [view for view in around.workers if view.serves(job.queue) and view.knows(job.task) and not view.is_full]
    names = [view.worker.name for view in able]
    text = f"It is ready, since {when(job.run_at, around.now)}: {listed(names, 3)} has a free slot and is to take it."
    return cause(Kind.READY, text, run_at=instant(job.run_at), workers=names)

"""Why a job is where it is: decided from its circumstances, without a look at anything else.

Every job gets a cause: a word for programs, a sentence for people, and the facts behind both. What is said is true of
the rows it was read from; several causes may hold at once, and the first is the one to do something about.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dray.instants import SECOND, moment, to_datetime
from dray.model.cause import Cause, Kind, cause, when
from dray.model.circumstances import AHEAD_LIMIT, Circumstances, Parent, WorkerView
from dray.model.job import FINAL, UNSTARTED, Reason, State
from dray.model.limit_causes import limited, stopped, turn_of_key
from dray.model.lost_parents import obstacle, retry_words
from dray.wording import attempt_name, close_matches, counted, listed, plural, span

_NAMED = 5  # of several in one sentence


_MISFIT = "Misfit: "  # how the error of a job begins whose arguments fitted no worker so far
_FAILED = {
    Reason.ERROR: (Kind.ERROR, "raised"),
    Reason.TIMEOUT: (Kind.TIMEOUT, "ran out of time"),
    Reason.CRASHED: (Kind.CRASHED, "died with what ran it"),
    Reason.RESULT: (Kind.RESULT, "returned, but what it left cannot be stored"),
    Reason.ARGUMENTS: (Kind.ARGUMENTS, "has arguments that do not fit its task"),
}


def explain(around: Circumstances, misfit: str | None = None) -> list[Cause]:
    """All causes that hold. `misfit`: what the code at hand has against the job's arguments."""
    state = around.job.state
    if around.closed is not None:
        # What else the tables say is of the past, or not all there: nothing that is done here would help.
        target = around.closed.target
        text = f"Nothing changes here: {around.closed.text}. "
        text += "Look there." if target is not None else "Look again when that is done."
        moved = cause(Kind.MOVED, text, target=target)
        return [*_ended(around), moved] if state in FINAL else [moved]
    if state in FINAL:
        return _ended(around)
    if state == State.RUNNING:
        return _running(around)
    if state in UNSTARTED:
        return _unstarted(around, misfit)
    return [cause(Kind.OTHER, f"It is {state}, a state that this release does not know.", state=state)]


# A job with one of these stays where it is until a person does something.
_NEEDS_HELP = frozenset(
    {Kind.MOVED, Kind.HELD, Kind.ARGUMENTS, Kind.PAUSED, Kind.STOPPED, Kind.NO_WORKER, Kind.UNKNOWN_TASK}
)


class Standstill(NamedTuple):
    """Why a job that has not ended does not run, in one line."""

    text: str
    needs_help: bool  # only a person can change it: a worker is missing, the queue is paused …


def standstill(around: Circumstances) -> Standstill | None:
    """What to tell a caller that waits for the job; None: it runs, or has ended."""
    job, holder = around.job, around.holder
    is_alone = not any(view.is_alive for view in around.workers)
    is_held = holder is not None and not holder.is_gone and not (holder.is_silent and is_alone)
    if job.state in FINAL or is_held:
        return None
    causes = explain(around)
    is_left = job.state == State.RUNNING and is_alone
    needs_help = is_left or any(each.kind in _NEEDS_HELP for each in causes)
    return Standstill(" ".join(each.text for each in causes), needs_help)


def _unstarted(around: Circumstances, misfit: str | None) -> list[Cause]:
    job, at, now = around.job, around.job.expires_at, around.now
    obstacles = [*_misfitting(around, misfit)]
    if job.state == State.WAITING:
        obstacles += _parents(around)
        if job.run_at > now:
            text = f"It does not start before its time either, which is {when(job.run_at, now)}."
            obstacles.append(cause(Kind.SCHEDULED, text, run_at=moment(job.run_at)))
    elif job.state == State.SCHEDULED:
        obstacles.append(_time(around))
    obstacles += _queue(around)
    if at is not None and at <= now:
        text = f"It expired {when(at, now)} and is about to be cancelled{_by_whom(around)}."
        return [cause(Kind.EXPIRES, text, expires_at=moment(at)), *obstacles]
    if not obstacles:
        able = [view for view in around.workers if view.serves(job.queue) and view.knows(job.task)]
        names = [view.worker.name for view in able if not view.is_full]
        text = f"It is ready, since {when(job.run_at, now)}: {listed(names)} has a free slot and is to take it."
        obstacles.append(cause(Kind.READY, text, run_at=moment(job.run_at), workers=names))
    if at is not None:
        text = f"It expires {when(at, now)}: it is cancelled if it has not started by then."
        obstacles.append(cause(Kind.EXPIRES, text, expires_at=moment(at)))
    return obstacles


def _time(around: Circumstances) -> Cause:
    job, last = around.job, around.last
    at, run_at = when(job.run_at, around.now), moment(job.run_at)
    if job.run_at <= around.now:
        return cause(Kind.DUE, f"Its time came {at}: it is about to be queued{_by_whom(around)}.", run_at=run_at)
    if last is not None and job.attempt and (last.claim, last.attempt) == (job.claim, job.attempt):
        name = _attempt(around)
        text = f"{name[0].upper()}{name[1:]} ended ({job.error or last.outcome}); "
        text += f"the next starts {at}."
        tries = {"attempt": job.attempt, "max_attempts": job.max_attempts}
        return cause(Kind.RETRY, text, run_at=run_at, **tries, outcome=last.outcome, error=job.error)
    if job.claim and (last is None or last.claim != job.claim):
        text = f"Its last run put it back, and no attempt was counted: it runs again {at}."
        return cause(Kind.SNOOZED, text, run_at=run_at)
    return cause(Kind.SCHEDULED, f"Its time has not come: it starts {at}.", run_at=run_at)


def _by_whom(around: Circumstances) -> str:
    return "" if any(view.is_alive for view in around.workers) else " by the next worker that starts: none is alive"


def _parents(around: Circumstances) -> Iterator[Cause]:
    job, parents = around.job, around.parents
    for parent in parents:
        if parent.satisfied < 0 and parent.state in FINAL:
            text = f"It is held by policy: its parent {parent_words(parent)} ended as "
            text += f"{ended_as(parent.state, parent.reason)}, and on_parent_failure is {job.on_parent_failure}. "
            if not around.lost.orphans:
                text += f"To start over what it runs after, which frees it: {retry_words(around.lost)}; "
            text += f"`dray job cancel {job.id}` gives it up."
            facts = {"parent": parent_facts(parent), "on_parent_failure": job.on_parent_failure}
            yield cause(Kind.HELD, text, **facts)
    for parent in parents:
        if parent.satisfied == 0 and parent.state in FINAL:
            text = f"Its parent {parent_words(parent)} ended as {ended_as(parent.state, parent.reason)}: "
            text += f"that is being passed on to its children{_by_whom(around)}."
            yield cause(Kind.FANOUT, text, parent=parent_facts(parent))
    live = [parent for parent in parents if parent.state not in FINAL]
    if live:
        names = listed([f"{parent_words(parent)} ({parent.state})" for parent in live], _NAMED)
        text = f"It waits for {counted(job.waiting_on, 'parent')}; of these have not ended: {names}. "
        text += f"`dray why {live[0].id}` says why."
        yield cause(Kind.PARENTS, text, waiting_on=job.waiting_on, parents=[parent_facts(parent) for parent in live])
    if not parents:
        text = f"All its parents have ended, and it is about to be freed{_by_whom(around)}."
        yield cause(Kind.FANOUT, text, parent=None)


def _misfitting(around: Circumstances, misfit: str | None) -> Iterator[Cause]:
    job = around.job
    if job.error is not None and job.error.startswith(_MISFIT):
        error = job.error.removeprefix(_MISFIT)
        text = f"It was left alone, and no attempt was counted: {error}"
        yield cause(Kind.ARGUMENTS, text, error=error, is_here=False)
    elif misfit is not None:
        yield cause(Kind.ARGUMENTS, f"With the code here it would not run: {misfit}", error=misfit, is_here=True)


def _queue(around: Circumstances) -> Iterator[Cause]:
    job = around.job
    if around.paused_at is not None:
        since = when(around.paused_at, around.now)
        text = f"Queue {job.queue} is paused, since {since}: nothing of it starts before "
        text += f"`dray queues resume {shlex.quote(job.queue)}`."
        yield cause(Kind.PAUSED, text, queue=job.queue, paused_at=moment(around.paused_at))
    yield from map(stopped, (use for use in around.limits if use.most == 0))
    serving = [view for view in around.workers if view.serves(job.queue)]
    able = [view for view in serving if view.knows(job.task)]
    if not serving:
        yield _no_worker(around)
    elif not able:
        yield _unknown_task(around, serving)
    if job.state == State.QUEUED:
        yield from limited(around)
        yield from turn_of_key(around)
    if job.state == State.QUEUED and able:
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
        f"{serve} other queues ({listed(elsewhere, _NAMED)})" if elsewhere else "",
        f"{listed(ending, _NAMED)} {end} nothing more" if ending else "",
        f"{listed(silent, _NAMED)} {have} ended" if silent else "",
    ]
    about = "; ".join(filter(None, notes))
    text = f"No live worker serves queue {queue}" if alive else "No worker is alive"
    text += f" ({about})" if about else ""
    text += f": start one with `dray worker{f' -q {shlex.quote(queue)}' if elsewhere else ''}`."
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
    text += f"; known by {listed(elsewhere, _NAMED)}, which {serve} other queues" if elsewhere else ""
    text += ". Start a worker with the code that defines it."
    return cause(Kind.UNKNOWN_TASK, text, task=task, workers=len(serving), known=len(known), near=near)


def _crowd(around: Circumstances, able: Sequence[WorkerView]) -> Iterator[Cause]:
    if all(view.is_full for view in able):
        taken, slots = (sum(view.running for view in able), sum(view.worker.concurrency for view in able))
        text = f"All slots of the {counted(len(able), 'worker')} that could run it are taken: "
        text += f"{counted(taken, 'job')} in hand, {slots:,} at a time."
        yield cause(Kind.SLOTS, text, workers=len(able), running=taken, concurrency=slots)
    plain, keyed = (
        [n for task, n in counts.items() if any(view.knows(task) for view in able)]
        for counts in (around.ahead, around.ahead_keyed)
    )
    ahead, with_keys, is_more = sum(plain + keyed), sum(keyed), any(n >= AHEAD_LIMIT for n in plain + keyed)
    if ahead:
        text = f"{'More than ' if is_more else ''}{counted(ahead, 'job')} that workers of queue {around.job.queue} "
        text += f"know {plural(ahead, 'comes', 'come')} before it, by priority, time or id"
        text += f"; {with_keys:,} of them with keys, as far as limits let them start." if with_keys else "."
        facts = {"ahead": ahead, "with_keys": with_keys, "is_more": is_more}
        yield cause(Kind.BEHIND, text, queue=around.job.queue, **facts)


def _running(around: Circumstances) -> list[Cause]:
    holder = around.holder
    job, asked_at = around.job, around.job.cancel_requested_at
    found = [*_worker(around), *_overdue(around)]
    if asked_at is not None:
        text = f"It was asked to stop {when(asked_at, around.now)}; its body has not ended yet."
        found.append(cause(Kind.CANCEL_REQUESTED, text, cancel_requested_at=moment(asked_at)))
    if holder is None or holder.is_gone:
        return found
    started_at = job.started_at or job.updated_at
    words = progress_words(job.progress, job.progress_message)
    text = f"It runs on worker {worker_words(holder)}, since {when(started_at, around.now)}, "
    text += f"{_attempt(around)}{f', {words}' if words else ''}."
    facts = {"attempt": job.attempt, "max_attempts": job.max_attempts, "progress": job.progress}
    found.append(cause(Kind.RUNNING, text, worker=worker_facts(holder), started_at=moment(started_at), **facts))
    return found


def progress_words(progress: float | None, message: str | None) -> str:
    """How far a running job says it is; empty: it says nothing."""
    return ": ".join(filter(None, ["" if progress is None else f"{progress:.0f}%", message]))


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


def _ended(around: Circumstances) -> list[Cause]:
    found = [_end(around)]
    if around.job.fanout_pending:
        found.append(cause(Kind.FANOUT, "Its end is still being passed on to its children.", parent=None))
    return [*found, *_unique(around)]


def _end(around: Circumstances) -> Cause:
    job = around.job
    if job.state == State.COMPLETED:
        return _completed(around)
    if job.state == State.FAILED and job.reason in _FAILED:
        return _failed(around, *_FAILED[Reason(job.reason)])
    ends = {Reason.USER: _cancelled, Reason.PARENT: _with_parent, Reason.EXPIRED: _cancelled_as_expired}
    if job.reason in ends:
        return ends[Reason(job.reason)](around)
    text = f"It ended {_at(around)} as {ended_as(job.state, job.reason)}."
    return cause(Kind.OTHER, text, finished_at=moment(job.finished_at))


def _at(around: Circumstances) -> str:
    return when(around.job.finished_at or around.job.updated_at, around.now)


def _attempt(around: Circumstances) -> str:
    start = around.start if around.start > 1 else None
    return f"{attempt_name(around.job.attempt, start)} of {around.job.max_attempts}"


def _tries(around: Circumstances) -> dict[str, Any]:
    counts = {name: getattr(around.job, name) for name in ("attempt", "max_attempts", "crashes", "max_crashes")}
    return {"finished_at": moment(around.job.finished_at), **counts}


def _completed(around: Circumstances) -> Cause:
    job = around.job
    took = None if job.started_at is None or job.finished_at is None else (job.finished_at - job.started_at) / SECOND
    text = f"It completed {_at(around)}, in {_attempt(around)}"
    text += f", after {span(took)}" if took is not None else ""
    text += ", with a result." if job.result is not None else ", without a result."
    return cause(Kind.COMPLETED, text, **_tries(around), seconds=took, has_result=job.result is not None)


def _failed(around: Circumstances, kind: Kind, words: str) -> Cause:
    job = around.job
    # The attempt that the job ended with, where it is recorded.
    last = around.last if around.last is not None and around.last.claim == job.claim else None
    counted = _attempt(around)
    if kind is Kind.CRASHED:
        counted += f", crash {job.crashes} of {job.max_crashes}"
    text = f"It failed {_at(around)}: {counted} {words}"
    text += ", and no other may follow" if job.attempt < job.max_attempts else ""
    text += f": {job.error}" if job.error else "."
    error_type, message = (None, job.error) if last is None else (last.error_type, last.error_message)
    return cause(kind, text, **_tries(around), error_type=error_type, error=message)


def _cancelled(around: Circumstances) -> Cause:
    job = around.job
    asked_at = job.cancel_requested_at
    note = f" ({job.error})" if job.error else ""
    text = f"Its own body cancelled it {_at(around)}{note}."
    if asked_at is not None:
        had_begun = "while it ran" if job.started_at is not None else "before it started"
        text = f"It was cancelled {had_begun}: it ended {_at(around)}, asked for {when(asked_at, around.now)}."
    return cause(Kind.CANCELLED, text, **_tries(around), cancel_requested_at=moment(asked_at), error=job.error)


def _with_parent(around: Circumstances) -> Cause:
    parents = [parent for parent in around.parents if parent.satisfied < 0]
    text = f"It was cancelled {_at(around)} with a parent that is not there any more."
    if parents:
        first = parents[0]
        text = f"It was cancelled {_at(around)} with its parent {parent_words(first)}, which is now "
        text += f"{ended_as(first.state, first.reason)}. "
        if around.lost.orphans:
            text += f"It cannot be retried: {obstacle(around.lost)}."
        else:
            text += f"To bring all of them back: {retry_words(around.lost)}."
    shown = [parent_facts(parent) for parent in parents]
    return cause(Kind.PARENT, text, finished_at=moment(around.job.finished_at), parents=shown)


def _cancelled_as_expired(around: Circumstances) -> Cause:
    at = around.job.expires_at
    text = f"It was cancelled {_at(around)}: it had not started"
    text += f" when it expired, {when(at, around.now)}." if at is not None else " in time."
    return cause(Kind.EXPIRED, text, finished_at=moment(around.job.finished_at), expires_at=moment(at))


def _unique(around: Circumstances) -> Iterator[Cause]:
    job = around.job
    if job.unique_lock is None:
        return
    if job.unique_until is not None and job.unique_until <= around.now:
        return  # the next request for it clears the lock
    until = "" if job.unique_until is None else f" until {when(job.unique_until, around.now)}"
    text = f"It holds the unique key {job.unique_lock}{until}: an enqueue with that key gets this job."
    yield cause(Kind.UNIQUE, text, unique=job.unique_lock, unique_until=moment(job.unique_until))


def ended_as(state: str, reason: str | None) -> str:
    return f"{state}({reason})" if reason else state


def parent_words(parent: Parent) -> str:
    return f"{parent.step or parent.task} {parent.id}"


def parent_facts(parent: Parent) -> dict[str, Any]:
    return {name: getattr(parent, name) for name in ("id", "task", "step", "state", "reason")}


def worker_words(view: WorkerView) -> str:
    worker = view.worker
    return f"{worker.name} (host {worker.host}, pid {worker.pid})"


def worker_facts(view: WorkerView) -> dict[str, Any]:
    facts = {name: getattr(view.worker, name) for name in ("id", "name", "host", "pid", "state")}
    return {**facts, "last_seen_at": to_datetime(view.worker.last_seen_at)}

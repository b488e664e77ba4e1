"""Whether the work gets done: which workers are there, what none of them can do, what waits too long, what fails."""

from __future__ import annotations

import shlex

from dray.backends.store.doctor import Ready
from dray.backends.store.liveness import Life
from dray.errors import DrayError
from dray.instants import SECOND
from dray.model.schedule import Schedule
from dray.ops.doctor.check import Finding, Subject, count_of, failed, note, ok, span, warning
from dray.wording import listed

_WINDOW_US = 3_600 * SECOND
_OLD_US = 300 * SECOND  # that a job may be ready without being claimed
_LATE_US = 60 * SECOND
_OVERRUN_US = 60 * SECOND  # a body has five seconds to stop, and a job may be claimed a moment before it starts
_IDLE_US = 5 * SECOND  # that a job may be left alone which limits let start
_LINES = 20  # queues and tasks that are looked at for such jobs
_FEW, _RATE = 10, 0.1  # failures that are worth a word, and their share of all


def workers(subject: Subject) -> Finding:
    live = subject.live
    draining = sum(each.worker.state == "draining" for each in live)
    if live:
        return ok(f"{count_of(len(live), 'worker')} alive" + (f", {draining} of them stopping" if draining else ""))
    if subject.eyes.ready:
        ready = count_of(sum(each.jobs for each in subject.eyes.ready), "job")
        return failed(f"no worker is alive, and {ready} could run", "dray worker")
    return note("no worker is alive; nothing is ready either", "dray worker")


def dead_workers(subject: Subject) -> Finding:
    gone = [each.worker.name for each in subject.eyes.workers if each.life is Life.GONE]
    if gone:
        return warning(
            f"{count_of(len(gone), 'worker')} died without deregistering, and no worker has taken over: "
            f"{listed(gone)}",
            "a live worker does so within its lease; start one: dray worker",
        )
    if subject.eyes.has_orphans():
        return warning("jobs are held by workers that have ended", "a live worker takes them back: dray worker")
    return ok("no dead worker holds a job")


def silent_workers(subject: Subject) -> Finding:
    silent = [each.worker for each in subject.eyes.workers if each.life is Life.SILENT]
    if not silent:
        return ok("every live worker renews its lease")
    first = silent[0]
    names = listed([each.name for each in silent])
    return warning(
        f"{count_of(len(silent), 'worker')} there without renewing the lease: {names}; last seen "
        f"{span(max(0, subject.eyes.now - first.last_seen_at))} ago",
        f"see whether process {first.pid} on {first.host} is stopped (kill -CONT), cut off or stuck",
    )


def duties(subject: Subject) -> Finding:
    free = subject.free_duties()
    if free:
        return failed(f"no worker has the duties {listed(free)}, though workers are there", "restart the workers")
    if not subject.live:
        return note("no duty has a worker: none is alive")
    return ok("every duty has a worker")


def unknown_tasks(subject: Subject) -> Finding | None:
    if not subject.live:
        return None
    known = {task for each in subject.live for task in each.worker.tasks}
    stuck = [each for each in subject.eyes.ready if each.task not in known]
    if not stuck:
        return ok("every task that is queued is known to a worker")
    return warning(
        f"{_sum(stuck)} of tasks that no live worker knows: {listed(sorted({each.task for each in stuck}))}",
        "start a worker with the code that has them (-i MODULE), or cancel them: dray job cancel --all --task TASK",
    )


def unserved_queues(subject: Subject) -> Finding | None:
    if not subject.live:
        return None
    if any(not each.worker.queues for each in subject.live):
        return ok("a worker serves every queue")
    served = {queue for each in subject.live for queue in each.worker.queues}
    left = [each for each in subject.eyes.ready if each.queue not in served]
    if not left:
        return ok("every queue with jobs is served")
    names = sorted({each.queue for each in left})
    return warning(
        f"{_sum(left)} in queues that no worker serves: {listed(names)}", f"dray worker -q {shlex.quote(names[0])}"
    )


def paused_queues(subject: Subject) -> Finding:
    paused = {queue.name: queue.paused_at for queue in subject.eyes.queues if queue.paused_at is not None}
    if not paused:
        return ok("no queue is paused")
    held = [each for each in subject.eyes.ready if each.queue in paused]
    shown = listed([f"{name} (for {span(max(0, subject.eyes.now - at))})" for name, at in paused.items()])
    fix = f"dray queues resume {shlex.quote(next(iter(paused)))}"
    if held:
        return warning(f"paused: {shown}; {_sum(held)} waiting there", fix)
    return note(f"paused: {shown}; nothing waits there", fix)


def backlog(subject: Subject) -> Finding:
    paused = {queue.name for queue in subject.eyes.queues if queue.paused_at is not None}
    waiting = [each for each in [*subject.eyes.ready, *subject.eyes.due()] if each.queue not in paused]
    if not waiting:
        return ok("nothing waits to be claimed")
    oldest = min(waiting, key=lambda each: each.since)
    waited_us = max(0, subject.eyes.now - oldest.since)
    text = f"the oldest ready job has waited for {span(waited_us)} (queue {oldest.queue}, task {oldest.task})"
    if waited_us < _OLD_US:
        return ok(text)
    return warning(f"{text}; {_sum(waiting)} ready in all", "dray why ID says what keeps it; or start more workers")


def limits(subject: Subject) -> Finding | None:
    eyes, since = subject.eyes, subject.eyes.now - _IDLE_US
    paused = {queue.name for queue in eyes.queues if queue.paused_at is not None}
    lines = {(each.queue, each.task) for each in eyes.ready if each.since < since and each.queue not in paused}
    for queue, task in sorted(lines)[:_LINES]:
        idle = _idle(subject, queue, task)
        left = eyes.left_alone(queue, task, since) if idle else None
        if left is not None:
            return warning(
                f"limits let job {left} start (queue {queue}, task {task}), and {listed(idle)} has free slots and "
                f"has left it alone for {span(_IDLE_US)}",
                "look again; if it stays so, restart that worker and report this",
            )
    return ok("no worker leaves a job alone that limits let start") if lines else None


def _idle(subject: Subject, queue: str, task: str) -> list[str]:
    """Live workers with free slots that serve a queue and know a task."""
    return [
        each.worker.name
        for each in subject.live
        if each.life is not Life.SILENT
        and each.worker.state == "active"
        and task in each.worker.tasks
        and (not each.worker.queues or queue in each.worker.queues)
        and subject.eyes.loads.get(each.worker.id, 0) < each.worker.concurrency
    ]


def failures(subject: Subject) -> Finding:
    completed, went_wrong = subject.eyes.ended(subject.eyes.now - _WINDOW_US)
    text = f"{count_of(went_wrong, 'job')} failed and {count_of(completed, 'job')} completed in the last hour"
    if went_wrong >= _FEW and went_wrong >= _RATE * (completed + went_wrong):
        return warning(text, "dray jobs --state failed --since 1h")
    return ok(text)


def timeouts(subject: Subject) -> Finding:
    now = subject.eyes.now
    late = [each for each in subject.eyes.running() if now - each.started_at > each.timeout * SECOND + _OVERRUN_US]
    if not late:
        return ok("no job runs past its timeout")
    first = late[0]
    return warning(
        f"{count_of(len(late), 'job')} past the timeout and still running, such as {first.id} ({first.task}, for "
        f"{span(now - first.started_at)} instead of {first.timeout:g}s)",
        f"dray why {first.id[-8:]}; give tasks that wait in C code runner='process'",
    )


def schedules(subject: Subject) -> Finding:
    rules = [schedule for schedule in subject.eyes.schedules() if schedule.paused_at is None]
    unusable = {schedule.name: error for schedule in rules if (error := _unusable(schedule)) is not None}
    if unusable:
        name, error = next(iter(unusable.items()))
        return failed(
            f"schedules that cannot be fired here: {listed(list(unusable))} ({error})",
            f"pip install tzdata if it is the zone; else add it again: dray schedules add {shlex.quote(name)} …",
        )
    late = [s for s in rules if s.next_at is not None and subject.eyes.now - s.next_at > _LATE_US]
    if late:
        worst = min(late, key=lambda schedule: schedule.next_at or 0)
        assert worst.next_at is not None
        return warning(
            f"late: {listed([schedule.name for schedule in late])}, by {span(subject.eyes.now - worst.next_at)}",
            "a worker fires them: dray worker",
        )
    known = {task for each in subject.live for task in each.worker.tasks}
    unknown = [schedule.name for schedule in rules if subject.live and schedule.task not in known]
    if unknown:
        return warning(
            f"schedules of tasks that no live worker knows: {listed(unknown)}",
            f"start a worker with their code, or dray schedules pause {shlex.quote(unknown[0])}",
        )
    return ok(f"{count_of(len(rules), 'schedule')} on time" if rules else "no schedule")


def _unusable(schedule: Schedule) -> str | None:
    try:
        schedule.rule.next_after(schedule.created_at, schedule.created_at)
    except DrayError as error:
        return str(error)
    return None


def older_code(subject: Subject) -> Finding | None:
    if not subject.live or not subject.code.tasks:
        return None
    wanted = set(subject.code.tasks)
    older = {each.worker.name: wanted - set(each.worker.tasks) for each in subject.live}
    lacking = {name: tasks for name, tasks in older.items() if tasks}
    if not lacking:
        return ok("every worker knows all tasks of the app here")
    tasks = sorted(set[str]().union(*lacking.values()))
    return note(
        f"{len(lacking)} of {count_of(len(older), 'worker')} lacking tasks of this app ({listed(tasks)}), by other "
        f"code or older: {listed(list(lacking))}",
        "restart them, if they should have it",
    )


def _sum(lines: list[Ready]) -> str:
    return count_of(sum(each.jobs for each in lines), "job")

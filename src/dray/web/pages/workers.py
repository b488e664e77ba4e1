"""Workers: slots, duties, what they run; those that stopped or died, and what became of their jobs."""

from __future__ import annotations

from typing import Any

from dray.backends.store.live import LiveJob, LiveWorker
from dray.instants import moment, to_datetime
from dray.model.values import canonical_id
from dray.ops import attention
from dray.web import figures
from dray.web.page import NotFound, Page, Post, View
from dray.web.visit import Visit

_ENDED = 50  # workers that are shown after their end
_JOBS = 100  # of one worker
_KEPT = 2.0


def show_workers(visit: Visit) -> View:
    seen = visit.site.snapshot()
    live = figures.live_workers(visit)
    ended, taken = visit.site.shared.get("ended workers", _KEPT, lambda: _ended(visit))
    rows = [_ended_row(worker, taken.get(worker.id, {})) for worker in ended]
    ids = {worker["id"] for worker in [*live, *rows]}
    tasks = visit.site.shared.get("tasks of workers", _KEPT, lambda: visit.backend.overview.tasks_of(ids))
    data: dict[str, Any] = {
        "live": live,
        "ended": rows,
        "most": _ENDED,
        "busy": sum(worker["running"] for worker in live),
        "all_slots": sum(worker["concurrency"] for worker in live),
        "now": seen.at,
    }
    shape = {
        "at": seen.at,
        "live": [{**each, "tasks": tasks.get(each["id"], []), "stopped_at": None} for each in live],
        "ended": [{**each, "tasks": tasks.get(each["id"], [])} for each in rows],
    }
    return View("workers.html", "Workers", data, shape)


def _ended(visit: Visit) -> tuple[list[LiveWorker], dict[str, dict[str, int]]]:
    ended = visit.backend.overview.ended_workers(_ENDED)
    died = [worker.id for worker in ended if worker.state == "dead"]
    return ended, visit.backend.overview.taken_back(died) if died else {}


def _ended_row(worker: LiveWorker, taken: dict[str, int]) -> dict[str, Any]:
    return {
        "id": worker.id,
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "state": worker.state,
        "queues": list(worker.queues),
        "concurrency": worker.concurrency,
        "duties": [],
        "started_at": to_datetime(worker.started_at),
        "last_seen_at": to_datetime(worker.last_seen_at),
        "stopped_at": moment(worker.stopped_at),
        "taken_back": taken,
        "became": attention.became_of(taken) if worker.state == "dead" else "",
    }


def show_worker(visit: Visit) -> View:
    given = visit.params["id"]
    whole = canonical_id(given)
    found = None if whole is None else visit.backend.overview.worker(whole, _JOBS)
    if found is None:
        raise NotFound(f"There is no worker {given}. Those that ended long ago are forgotten.")
    worker = found.worker
    state = "dead" if found.is_gone else worker.state
    running = sorted(found.running, key=lambda job: (job.started_at or 0, job.id))
    now = to_datetime(found.now)
    facts: dict[str, Any] = {
        "id": worker.id,
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "state": state,
        "queues": list(worker.queues),
        "tasks": list(worker.tasks),
        "concurrency": worker.concurrency,
        "duties": list(found.duties),
        "started_at": to_datetime(worker.started_at),
        "last_seen_at": to_datetime(worker.last_seen_at),
        "stopped_at": moment(worker.stopped_at),
        "trouble": worker.trouble,
    }
    data: dict[str, Any] = {
        "worker": facts,
        "is_live": state in {"active", "draining"},
        "is_unnoticed": found.is_gone,
        "running": [_job(job, found.now) for job in running],
        "became": attention.became_of(found.taken_back) if state == "dead" else "",
        "taken": [_job(job, found.now) for job in found.taken_back_jobs],
        "most": _JOBS,
        "now": now,
    }
    jobs = {"running": data["running"], "taken_back": data["taken"], "taken_back_by_state": found.taken_back}
    return View("worker.html", f"Worker {worker.name}", data, {**facts, **jobs})


def _job(job: LiveJob, now: int) -> dict[str, Any]:
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "state": job.state,
        "attempt": job.attempt,
        "progress": job.progress,
        "progress_message": job.progress_message,
        "started_at": moment(job.started_at),
        "elapsed": None if job.started_at is None else max(0.0, (now - job.started_at) / 1_000_000),
    }


_TOPICS = frozenset({"workers", "jobs"})
PAGES: list[Page] = [
    Page("/workers", show_workers, "workers", _TOPICS, is_whole=True),
    Page("/workers/{id}", show_worker, "workers", _TOPICS, is_whole=True),
]
POSTS: list[Post] = []

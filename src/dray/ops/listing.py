"""What there is: jobs by a filter or a part of an id, numbers, queues, workers, workflows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from dray.errors import ConfigError, UnknownJob, UnknownSchedule, UnknownWorkflow
from dray.instants import SECOND, moment, to_datetime
from dray.model.job import State, states_named
from dray.model.values import canonical_id, check_name, duration_us, parse_id, shown
from dray.model.worker import WorkerState
from dray.model.workflow import Tally, Workflow
from dray.task.checks import instant
from dray.wording import close_matches, listed

if TYPE_CHECKING:
    from dray.backends.base import Backend
    from dray.backends.store.jobs import Filter

_CANDIDATES = 5
MAX_LIMIT = 10_000  # jobs in one list: each may carry a megabyte


def job_filter(
    backend: Backend,
    *,
    state: str | Iterable[str] | None = None,
    queue: str | None = None,
    task: str | None = None,
    tag: str | None = None,
    workflow: object = None,
    schedule: str | None = None,
    since: datetime | timedelta | float | None = None,
) -> Filter:
    """Which jobs a list shows; the error says which part of it cannot be meant."""
    from dray.backends.store.jobs import Filter  # noqa: PLC0415 - an App that lists nothing needs no database

    states, reason = (frozenset(State), None) if state is None else _states(state)
    workflow_id, workflow_name = (None, None) if workflow is None else _workflow(workflow)
    return Filter(
        workflow_id=workflow_id,
        workflow=workflow_name,
        schedule=None if schedule is None else check_name("schedule", schedule),
        states=states,
        reason=reason,
        queue=None if queue is None else check_name("queue", queue),
        task=None if task is None else check_name("task", task),
        tag=None if tag is None else check_name("tag", tag),
        since=None if since is None else _since(backend, since),
    )


def _states(given: str | Iterable[str]) -> tuple[frozenset[State], str | None]:
    words: list[object] = [given] if isinstance(given, str) else list(given)
    for word in words:
        if not isinstance(word, str):
            raise TypeError(f"state must be a word or a list of words, not {type(word).__name__}")
    try:
        named = [states_named(str(word)) for word in words]
    except ValueError as error:
        raise ConfigError(str(error)) from None
    reasons = [reason for _, reason in named if reason is not None]
    if not named or (reasons and len(named) > 1):
        raise ConfigError(
            f"state cannot be {shown(words)}: give states, or one of timeout, crashed and expired alone"
        )
    return frozenset(state for states, _ in named for state in states), next(iter(reasons), None)


def _workflow(given: object) -> tuple[str | None, str | None]:
    """A run or its id, or a name that any number of runs have."""
    if isinstance(given, str):
        whole = canonical_id(given)
        return (whole, None) if whole is not None else (None, given)
    return parse_id(given, "workflow takes a run, its id or a name", ConfigError), None


def _since(backend: Backend, value: datetime | timedelta | float) -> int:
    if isinstance(value, datetime):
        return instant("since", value)
    return backend.now() - duration_us("since", value)


def job_named(backend: Backend, part: str) -> str:
    """The whole id of the job that a part of it names; the error says that there is none, or which there are."""
    return _whole_id(backend, part, backend.jobs.find, "job", UnknownJob)


def workflow_named(backend: Backend, part: str) -> str:
    """As `job_named`, of workflows."""
    return _whole_id(backend, part, backend.workflows.find, "workflow", UnknownWorkflow)


def workflow_meant(backend: Backend, word: str) -> str:
    """The name of workflows, or the whole id of the one that a part of it names."""
    if backend.workflows.has_name(word):
        return word
    try:
        return workflow_named(backend, word)
    except UnknownWorkflow:
        raise UnknownWorkflow(
            f"no workflow is named {shown(word)}, and no workflow's id contains it; `dray workflows` lists them"
        ) from None


def schedule_named(backend: Backend, part: str) -> str:
    """The schedule that a name, its last segment or any other part of it means."""
    names = [schedule.name for schedule in backend.schedules.all()]
    found = _ending(names, part) or [name for name in names if part and part in name]
    if not found:
        near = close_matches(part, names)
        hint = f"did you mean {near[0]}?" if near else "`dray schedules` lists them"
        raise UnknownSchedule(f"no schedule is named {shown(part)}, or has that in its name; {hint}")
    if len(found) > 1:
        raise ConfigError(f"{shown(part)} is part of several schedules' names: {listed(found)}; give more of it")
    return found[0]


def schedule_meant(backend: Backend, name: str) -> str:
    """The schedule that a name or its last segment means, else the name itself: a removed schedule's jobs stay."""
    found = _ending([schedule.name for schedule in backend.schedules.all()], name)
    return found[0] if len(found) == 1 else name


def _ending(names: Iterable[str], word: str) -> list[str]:
    """The name that is this word, else those whose last segment it is."""
    names = list(names)
    return [word] if word in names else [name for name in names if name.endswith((f".{word}", f":{word}"))]


def _whole_id(
    backend: Backend, part: str, find: Callable[[str, int], list[str]], kind: str, unknown: type[Exception]
) -> str:
    wanted = part.strip().lower()
    whole = canonical_id(wanted)
    if whole is not None:
        return whole
    found = find(wanted, _CANDIDATES + 1) if wanted else []
    if not found:
        backend.queues.all()  # raises if there is no database: what cannot be an id is not even looked for
        raise unknown(f"no {kind}'s id contains {shown(part)}")
    if len(found) > 1:
        listed = ", ".join(found[:_CANDIDATES]) + (" and more" if len(found) > _CANDIDATES else "")
        raise ConfigError(f"{shown(part)} is part of several {kind}s' ids: {listed}; give more of it")
    return found[0]


def check_limit(limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"limit must be a whole number, not {type(limit).__name__}")
    if not 1 <= limit <= MAX_LIMIT:
        raise ConfigError(f"limit must be between 1 and {MAX_LIMIT:,}, not {shown(limit)}; read on with after=")
    return limit


@dataclass(frozen=True, slots=True)
class Stats:
    """Numbers of the whole database at one moment. Times are in seconds."""

    states: dict[str, int]  # jobs by state
    queues: dict[str, dict[str, int]]  # queue -> jobs by state
    oldest_queued: dict[str, float]  # queue -> how long its first job has been ready
    window: float  # the time that the numbers below are of, until now
    finished: dict[str, int]  # jobs that ended, by state
    throughput: float  # jobs that ended, a second
    p50: float | None  # run time of completed bodies, seconds
    p95: float | None

    @property
    def oldest_queued_age(self) -> float | None:
        """How long the first ready job of all has been waiting: ``app.stats().oldest_queued_age  # None``."""
        return max(self.oldest_queued.values(), default=None)

    def as_dict(self) -> dict[str, Any]:
        """All numbers, for JSON: ``app.stats().as_dict()["window"]  # 3600.0``."""
        return {**asdict(self), "oldest_queued_age": self.oldest_queued_age}


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue and what is in it."""

    name: str
    priority: int  # of jobs that name none
    paused_at: datetime | None
    jobs: dict[str, int]  # by state

    @property
    def is_paused(self) -> bool:
        """Whether nothing is claimed from it: ``app.queue("mail").is_paused  # False``."""
        return self.paused_at is not None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker, alive or not.

    Example:

        >>> with app.worker(concurrency=2):
        ...     first = app.workers()[0]
        >>> first.state, first.concurrency
        ('active', 2)
    """

    id: str
    name: str
    host: str
    pid: int
    state: str
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    concurrency: int
    duties: tuple[str, ...]
    started_at: datetime
    last_seen_at: datetime
    stopped_at: datetime | None


def values_of(found: Any, names: str) -> dict[str, Any]:
    """These attributes by name, for JSON."""
    values = {name: getattr(found, name) for name in names.split()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def stats(backend: Backend, window: float | timedelta) -> Stats:
    """The numbers of the whole database; the newest of them within a window until now."""
    found = backend.history.stats(duration_us("window", window, low_us=1))
    seconds = found.window_us / SECOND
    return Stats(
        states={state.value: sum(jobs.get(state, 0) for jobs in found.counts.values()) for state in State},
        queues={queue: dict(jobs) for queue, jobs in found.counts.items()},
        oldest_queued={queue: us / SECOND for queue, us in found.oldest_queued_us.items()},
        window=seconds,
        finished={state: found.finished.get(state, 0) for state in ("completed", "failed", "cancelled")},
        throughput=sum(found.finished.values()) / seconds,
        p50=None if found.p50_us is None else found.p50_us / SECOND,
        p95=None if found.p95_us is None else found.p95_us / SECOND,
    )


def queues(backend: Backend) -> list[QueueInfo]:
    """All queues by name: those that were set, served or paused, and those that have jobs."""
    counts = backend.history.stats(SECOND).counts
    known = {queue.name: queue for queue in backend.queues.all()}
    return [
        QueueInfo(name, queue.priority if queue else 0, moment(queue and queue.paused_at), counts.get(name, {}))
        for name, queue in ((name, known.get(name)) for name in sorted({*counts, *known}))
    ]


def workers(backend: Backend) -> list[WorkerInfo]:
    """Live workers, then those that ended, with their duties. Dead: also if no worker has noticed yet."""
    gone = backend.workers.gone()
    held = [(lease.holder, lease.duty) for lease in backend.leases.all()]
    return [
        WorkerInfo(
            worker.id,
            worker.name,
            worker.host,
            worker.pid,
            WorkerState.DEAD.value if worker.id in gone else worker.state,
            worker.queues,
            worker.tasks,
            worker.concurrency,
            tuple(duty for holder, duty in held if holder == worker.id),
            to_datetime(worker.started_at),
            to_datetime(worker.last_seen_at),
            moment(worker.stopped_at),
        )
        for worker in backend.workers.all()
    ]


def workflows(backend: Backend, limit: int) -> list[tuple[Workflow, Tally]]:
    """The newest workflows, with the number of their jobs by state."""
    rows = backend.workflows.newest(limit=limit)
    counts = backend.workflows.tallies([row.id for row in rows]) if rows else {}
    return [(row, counts[row.id]) for row in rows]

"""The tools that act, each with its row in Actions. They are registered only where the server was told so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context
from mcp_types import CallToolResult, ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field

from dray.app_interface import AppInterface
from dray.errors import ConfigError, DrayError, GraphError, PayloadError, UnknownTask
from dray.handle.job import Job
from dray.integrations.mcp import reading
from dray.integrations.mcp.reading import JobPart, WorkflowPart
from dray.integrations.mcp.results import tool_result
from dray.integrations.mcp.tools import acts
from dray.model.action import By
from dray.model.bounds import JOB_NAME_CHARS
from dray.model.search import parse
from dray.model.values import shown
from dray.model.workflow import Workflow
from dray.ops import acting, bulk, listing, shapes
from dray.ops.acting import Acted
from dray.ops.bulk import Bulk, BulkVerb
from dray.sanitize import escape_control
from dray.task.checks import label
from dray.task.steps import Steps
from dray.task.task import Task
from dray.wording import counted

_MOST = 10_000  # jobs of one action
_STEPS = 1_000
_CLIENT_CHARS = 60

Ids = Annotated[list[JobPart], Field(min_length=1, max_length=100, description="Jobs' ids, or unique parts of them.")]
Query = Annotated[str, Field(min_length=1, description="A search, as for `search`: task:mail.* error:503 since:1h")]
Expected = Annotated[
    int, Field(ge=1, le=_MOST, strict=True, description="How many jobs you expect it to find; else nothing is done.")
]
Session = Context[Any, Any]


class StepOfWorkflow(BaseModel):
    """One step of a workflow."""

    model_config = ConfigDict(extra="forbid")

    task: str
    id: Annotated[str | None, Field(description="A name for this step, which `after` of others uses.")] = None
    args: Annotated[dict[str, Any], Field(description="Arguments by name.")] = {}
    after: Annotated[list[str], Field(description="Ids of steps that must complete before.")] = []
    on_parent_failure: Literal["cancel", "run", "hold"] | None = None
    pass_parent_results: bool = True
    queue: str | None = None
    priority: int | None = None
    key: Annotated[str | None, Field(description="As of `enqueue`.")] = None
    max_attempts: int | None = None
    timeout: Annotated[float | None, Field(description="Seconds.")] = None


class Writing:
    """`who`: the person for whom agents act here."""

    def __init__(self, core: AppInterface, who: str) -> None:
        self._core = core
        self._who = who

    @property
    def tools(self) -> tuple[tuple[Callable[..., CallToolResult], ToolAnnotations], ...]:
        adds = acts(destroys=False, is_idempotent=False, runs_jobs=True)
        starts_over = acts(destroys=True, is_idempotent=False, runs_jobs=True)
        stops = acts(destroys=True, is_idempotent=True)
        goes_on = acts(destroys=False, is_idempotent=True, runs_jobs=True)
        return (
            *((each, adds) for each in (self.enqueue, self.enqueue_workflow, self.run_schedule)),
            *((each, starts_over) for each in (self.retry, self.retry_all, self.retry_workflow)),
            *((each, stops) for each in (self.cancel, self.cancel_all, self.cancel_workflow)),
            *((each, stops) for each in (self.pause_queue, self.pause_schedule)),
            *((each, goes_on) for each in (self.resume_queue, self.resume_schedule)),
        )

    # Jobs

    def enqueue(
        self,
        ctx: Session,
        task: str,
        args: Annotated[dict[str, Any] | None, Field(description="Arguments by name; `tasks` shows them.")] = None,
        queue: str | None = None,
        priority: Annotated[int | None, Field(description="Higher runs first.")] = None,
        delay: Annotated[float | None, Field(description="Seconds until it may start.")] = None,
        run_at: Annotated[datetime | None, Field(description="When it may start: 2026-11-15T08:00:00Z.")] = None,
        unique: Annotated[str | None, Field(description="A key: if a live job has it, nothing is enqueued.")] = None,
        key: Annotated[str | None, Field(description="By which jobs take turns and are limited.")] = None,
        max_attempts: int | None = None,
        timeout: Annotated[float | None, Field(description="Seconds that an attempt may take.")] = None,
        name: Annotated[str | None, Field(description="A name for people to read.")] = None,
        tags: list[str] | None = None,
        unchecked: Annotated[bool, Field(description="Also a task that is not known here.")] = False,  # noqa: FBT002
    ) -> CallToolResult:
        """Enqueue (submit) a job of a task. It runs once a worker takes it; the result says if none can. Read it
        later with `status` and `result`."""
        core = self._core
        if task not in core.registry and len(core.registry) and not unchecked:
            raise UnknownTask(core.registry.missing(task))
        given = {"queue": queue, "priority": priority, "delay": delay, "run_at": run_at, "unique": unique}
        given |= {"key": key, "max_attempts": max_attempts, "timeout": timeout, "name": name, "tags": tags}
        options = {key: value for key, value in given.items() if value is not None}
        if task in core.registry:
            _check_args(core.registry.get(task), args or {})
        made = acting.enqueue(core, task, args, options, self._by(ctx))
        shape: dict[str, Any] = {"job": shapes.job(made), "duplicate": made.duplicate, "says": self._says(made.id)}
        if made.duplicate:
            shape["note"] = "a live job has this unique key; nothing was enqueued, and this is that job"
        if task not in core.registry:
            shape["note"] = "this task is not known here: neither its name nor its arguments were checked"
        return tool_result(shape)

    def enqueue_workflow(
        self,
        ctx: Session,
        name: Annotated[str, Field(description="A name for people to read.")],
        steps: Annotated[list[StepOfWorkflow], Field(min_length=1, max_length=_STEPS)],
    ) -> CallToolResult:
        """Enqueue a workflow: steps that wait for others, in one transaction, or nothing if anything is wrong with
        them. A step gets the results of those it comes after as parent_results, if its function takes them."""
        core = self._core
        row = Workflow(core.new_id(), label("a workflow's name", name, JOB_NAME_CHARS), 0)
        made = Steps(row.id, lambda _job, _number: core.new_id())
        ids = {}
        for number, step in enumerate(steps, 1):
            place = f"step {number}" if step.id is None else f"step {shown(step.id)}"
            ids[step.id or f"step {number}"] = self._add(made, step, place)
        jobs = made.finish()
        run = acting.enqueue_workflow(core, row, jobs, self._by(ctx))
        first = next(job.id for job in jobs if not job.parents)
        return tool_result({"id": run.id, "name": row.name, "steps": ids, "says": self._says(first)})

    def _add(self, made: Steps, step: StepOfWorkflow, place: str) -> str:
        given: dict[str, Any] = {"queue": step.queue, "priority": step.priority, "max_attempts": step.max_attempts}
        try:
            task = self._core.registry.get(step.task)
            _check_args(task, step.args)
            if step.key is not None:  # None would mean: no key, whatever the task makes of the arguments
                given["key"] = step.key
            enqueuer = task.using(**given, timeout=step.timeout)
            then, passes = step.on_parent_failure, step.pass_parent_results
            return made.add(enqueuer, (), step.args, step.after or None, step.id, then, passes).id
        except UnknownTask as error:
            raise UnknownTask(f"{place}: {error}; nothing was enqueued") from error
        except DrayError as error:
            raise GraphError(f"{place}: {error}; nothing was enqueued") from error

    def retry(self, ctx: Session, jobs: Ids) -> CallToolResult:
        """Start ended jobs over (requeue), with their attempts at 0."""
        return self._each(acting.retry, jobs, ctx, "retried")

    def cancel(self, ctx: Session, jobs: Ids) -> CallToolResult:
        """Cancel jobs that have not started, and ask running ones to stop."""
        return self._each(acting.cancel, jobs, ctx, "cancelled")

    def retry_all(self, ctx: Session, search: Query, expected: Expected) -> CallToolResult:
        """Start all jobs over that a search finds; failed ones, if it names no state. Nothing is done unless it finds
        just as many as expected: a refusal says how many there are."""
        return self._all("retry", "retried", search, expected, ctx)

    def cancel_all(self, ctx: Session, search: Query, expected: Expected) -> CallToolResult:
        """Cancel all jobs that a search finds; live ones, if it names no state. Nothing is done unless it finds just
        as many as expected: a refusal says how many there are."""
        return self._all("cancel", "cancelled", search, expected, ctx)

    def _each(self, act: Callable[..., Acted], parts: Sequence[str], ctx: Session, done: str) -> CallToolResult:
        core = self._core
        ids = list(dict.fromkeys(listing.job_named(core.backend, part) for part in parts))
        for job_id in ids:
            Job[Any](core, job_id).refresh()  # raises before anything is done if one is unknown
        acted = act(core, ids, self._by(ctx))
        return tool_result({done: acted.done, "refused": acted.refused})

    def _all(self, verb: BulkVerb, done: str, search: str, expected: int, ctx: Session) -> CallToolResult:
        selection = bulk.freeze(self._core, parse(search))
        action = Bulk(self._core, selection, verb, self._by(ctx), most=_MOST)
        while action.step().is_looking:
            pass
        found = len(action.ids)
        meant = selection.chosen(verb).text()
        if found != expected:
            raise ConfigError(
                f"this would {verb} {counted(found, 'job')}, not {expected:,}; nothing was done: look at them with "
                f"search(query={meant!r}), and if they are meant, pass expected={found}"
            )
        while not (progress := action.step()).is_over:
            pass
        shape = {done: progress.done, "refused": progress.refused, "first_refusals": progress.first_refusals}
        return tool_result({"search": meant, **shape, "action": action.action_id})

    # Workflows

    def cancel_workflow(self, ctx: Session, workflow: WorkflowPart) -> CallToolResult:
        """Cancel all steps of a workflow that have not started, and ask running ones to stop."""
        run_id = listing.workflow_named(self._core.backend, workflow)
        acted = acting.cancel_workflow(self._core, run_id, self._by(ctx))
        return tool_result({"id": run_id, "cancelled": len(acted.done), "refused": len(acted.refused)})

    def retry_workflow(
        self,
        ctx: Session,
        workflow: WorkflowPart,
        cancelled: Annotated[bool, Field(description="Also steps that were cancelled or expired.")] = False,  # noqa: FBT002
    ) -> CallToolResult:
        """Start the failed steps of a workflow over; steps that were cancelled because of them wait again."""
        run_id = listing.workflow_named(self._core.backend, workflow)
        acted = acting.retry_workflow(self._core, run_id, self._by(ctx), cancelled=cancelled)
        return tool_result({"id": run_id, "retried": len(acted.done), "refused": acted.refused})

    # Queues and schedules

    def pause_queue(
        self,
        ctx: Session,
        queue: str,
        note: Annotated[str | None, Field(description="Why, for others to read.")] = None,
    ) -> CallToolResult:
        """Start no more jobs of a queue; running jobs go on."""
        is_known = queue in {each.name for each in listing.queues(self._core.backend)}
        changed = acting.pause_queue(self._core, queue, self._by(ctx), note)
        told = "it was paused already" if not changed else "" if is_known else "it has not been used so far"
        return tool_result({"queue": queue, "paused": True, "note": told})

    def resume_queue(self, ctx: Session, queue: str) -> CallToolResult:
        """Let a paused queue go on."""
        changed = acting.resume_queue(self._core, queue, self._by(ctx))
        return tool_result({"queue": queue, "paused": False, "note": "" if changed else "it was not paused"})

    def pause_schedule(self, ctx: Session, schedule: str) -> CallToolResult:
        """Fire no more slots of a schedule; jobs that are enqueued already go on."""
        name = listing.schedule_named(self._core.backend, schedule)
        changed = acting.pause_schedule(self._core, name, self._by(ctx))
        return tool_result({"schedule": name, "paused": True, "note": "" if changed else "it was paused already"})

    def resume_schedule(self, ctx: Session, schedule: str) -> CallToolResult:
        """Let a paused schedule go on with its next slot."""
        name = listing.schedule_named(self._core.backend, schedule)
        changed = acting.resume_schedule(self._core, name, self._by(ctx))
        return tool_result({"schedule": name, "paused": False, "note": "" if changed else "it was not paused"})

    def run_schedule(self, ctx: Session, schedule: str) -> CallToolResult:
        """Enqueue a job of a schedule now, beside its slots."""
        name = listing.schedule_named(self._core.backend, schedule)
        made = acting.run_schedule(self._core, name, self._by(ctx))
        return tool_result({"job": shapes.job(made), "says": self._says(made.id)})

    def _says(self, job_id: str) -> list[str]:
        """Why a new job is where it is. It is enqueued even if that cannot be said any more."""
        try:
            return reading.says(self._core, job_id)
        except DrayError as error:
            return [f"It is enqueued, and could not be looked at: {error}"]

    def _by(self, ctx: Session) -> By:
        """The person, and the client that acts for them, as far as it says what it is."""
        params = ctx.session.client_params
        name = "" if params is None else escape_control(params.client_info.name)[:_CLIENT_CHARS].strip()
        return By(f"{self._who} ({name})" if name else self._who, "mcp")


def _check_args(task: Task[..., Any], args: Mapping[str, Any]) -> None:
    """Refuses arguments that do not fit a task, whatever its annotations raise."""
    try:
        task.signature.fit(args)
    except DrayError:
        raise
    except RecursionError:
        raise PayloadError("args", "they are nested too deep") from None
    except TypeError as error:
        raise ConfigError(f"{error}; tasks(task={task.name!r}) shows its arguments") from None
    except Exception as error:  # the code of a user's model reads the arguments, and may raise anything
        raise ConfigError(f"reading the arguments raised {type(error).__name__}: {error}") from error

"""The tools that only look. None of them writes a row, not even to ask a worker where its body is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from mcp_types import CallToolResult
from pydantic import Field

from dray.app_interface import AppInterface
from dray.errors import ConfigError, StorageError, UnknownWorkflow
from dray.handle.job import Job
from dray.instants import SECOND
from dray.integrations.mcp.results import PART_CHARS, named_page, page, part, tool_result
from dray.model.action import Action
from dray.model.job import FINAL, State
from dray.model.search import Search, duration_us, parse
from dray.model.values import canonical_id
from dray.ops import attention, failures, listing, shapes
from dray.ops import search as searching
from dray.ops import tasks as task_shapes
from dray.ops.doctor import examine
from dray.ops.doctor.check import Code, Subject
from dray.ops.top import Top
from dray.ops.why import why

_LOOKS = 2.0  # seconds that a search looks for jobs
_ATTEMPTS = 3  # the newest, of a job
_LOG_CHARS = 10_000  # of a message: longer than any that is stored
_FAILURES = 50  # groups
_SEQ = (1 << 63) - 1  # what a database can count to

JobPart = Annotated[str, Field(max_length=100, description="A job's id, or a part of it that only one job has.")]
WorkflowPart = Annotated[str, Field(max_length=100, description="A workflow's id, or a part that only one has.")]
Limit = Annotated[int, Field(ge=1, le=50, description="Maximum number of entries.")]
After = Annotated[str | None, Field(description="`next` of the previous result, to read on from there.")]
JobField = Literal["args", "result", "error", "headers", "attempts", "description", "tags", "progress_message"]


class Reading:
    """`code`: the app, as the doctor sees it."""

    def __init__(self, core: AppInterface, code: Code) -> None:
        self._core = core
        self._code = code

    @property
    def tools(self) -> tuple[Any, ...]:
        looks = (self.jobs, self.search, self.job, self.status, self.result, self.why, self.logs, self.stats)
        lists = (self.queues, self.workers, self.tasks, self.workflows, self.workflow, self.schedules)
        return (*looks, *lists, self.actions, self.doctor)

    # Jobs

    def jobs(
        self,
        state: Annotated[str | None, Field(description="A state, or several with commas: failed,cancelled.")] = None,
        queue: str | None = None,
        task: Annotated[str | None, Field(description="A task's name; * is any text: mail.*")] = None,
        tag: str | None = None,
        workflow: Annotated[str | None, Field(description="A workflow's id or name.")] = None,
        schedule: str | None = None,
        since: Annotated[str | None, Field(description="Enqueued since then: 1h, 7d, or 2026-11-15T08:00Z.")] = None,
        limit: Limit = 20,
        after: After = None,
    ) -> CallToolResult:
        """List jobs, newest first. States are waiting, scheduled, queued, running, completed, failed and
        cancelled."""
        asked = Search()
        filters = {"queue": queue, "task": task, "tag": tag, "workflow": workflow, "schedule": schedule}
        for key, value in {**filters, "enqueued": since}.items():
            asked = asked if value is None else asked.plus(key, value)
        asked = asked.plus("state", *(each.strip() for each in state.split(","))) if state is not None else asked
        return self._found(asked, limit, after)

    def search(
        self,
        query: Annotated[
            str, Field(description="state:failed task:mail.* error:503 since:1h; resource dray://search")
        ],
        limit: Limit = 20,
        after: After = None,
    ) -> CallToolResult:
        """Search jobs by filters and words, newest first: state: queue: task: tag: key: worker: workflow: schedule:
        reason: error: error_key: attempt: ran: since: until: enqueued: id: args.NAME: and words of the error. The
        resource dray://search describes them all."""
        return self._found(parse(query), limit, after)

    def _found(self, asked: Search, limit: int, after: str | None) -> CallToolResult:
        found = searching.search(self._core, asked, limit=limit, before=after, budget=_LOOKS)
        made = page(shapes.jobs(self._core, found.jobs), limit)
        following = found.next
        if made.has_more:  # of those that were found, not all fit
            following = searching.after(self._core, asked, found.jobs[len(made.items) - 1])
        shape: dict[str, Any] = {"jobs": made.items, "next": following}
        if not found.is_complete:
            shape["note"] = f"looked at {found.looked:,} jobs so far; go on with after=next"
        if not found.jobs and following is None:
            shape["note"] = "no job fits"
        return tool_result(shape, made.notes, "job(job=ID) shows a job with longer texts")

    def job(
        self,
        job: JobPart,
        field: Annotated[
            JobField | None, Field(description=f"Only this, as JSON text, {PART_CHARS:,} characters at a time.")
        ] = None,
        offset: Annotated[int, Field(ge=0, description="`next_offset` of the previous result; with field.")] = 0,
    ) -> CallToolResult:
        """Show everything about a job: arguments (secret ones as ***), result, its newest attempts with their
        tracebacks. Long texts are cut; read a whole one with field."""
        found = self._job(job)
        names = self._core.backend.workflows.names([found.row.workflow_id] if found.row.workflow_id else [])
        shape = shapes.whole_job(found, names.get(found.row.workflow_id or ""), is_lenient=True)
        if field is not None:
            read = {"id": found.id, "field": field, **part(shape[field], offset)}
            return tool_result(read, text_chars=PART_CHARS)
        attempts = shape["attempts"]
        notes = (
            [f"attempts: the newest {_ATTEMPTS} of {len(attempts)} are shown"] if len(attempts) > _ATTEMPTS else []
        )
        rest = f"job(job='{found.id}', field='args'), or 'result', 'attempts' …, reads all of it in parts"
        return tool_result({**shape, "attempts": attempts[-_ATTEMPTS:]}, notes, rest)

    def status(self, job: JobPart) -> CallToolResult:
        """Show a job's state and progress in short, and say in words why it waits or how it ended: also that no
        worker runs that could take it."""
        found = self._job(job)
        return tool_result({"job": shapes.jobs(self._core, [found])[0], "says": self._says(found.id)})

    def result(self, job: JobPart) -> CallToolResult:
        """Return what a completed job's function returned. Of a job that has not ended, or failed, say so."""
        found = self._job(job)
        shape: dict[str, Any] = {**listing.values_of(found.row, "id task state reason error"), "result": None}
        rest = f"job(job='{found.id}', field='result') reads all of it in parts"
        if found.row.state == State.COMPLETED:
            return tool_result({**shape, "result": shapes.result(found)}, rest=rest)
        next_ = "`why` and `job` say more" if found.row.state in FINAL else "ask again once it has ended"
        return tool_result({**shape, "says": [*self._says(found.id), f"There is no result; {next_}."]}, rest=rest)

    def why(self, job: JobPart) -> CallToolResult:
        """Explain a job: why it waits, failed, was cancelled, or what it is doing. The first cause is the most
        important one."""
        found = why(self._core.backend, self._job(job).id, registry=self._core.registry)
        return tool_result(shapes.why(found), rest=f"job(job='{found.job.id}') shows the job with its attempts")

    def logs(
        self,
        job: JobPart,
        limit: Annotated[int, Field(ge=1, le=500, description="Maximum number of lines.")] = 100,
        after: Annotated[
            int, Field(ge=0, le=_SEQ, description="`next` of the previous result: the last line's seq.")
        ] = 0,
    ) -> CallToolResult:
        """Show what was logged inside a job, oldest first."""
        found = self._job(job)
        lines = [shapes.log_line(line) for line in found.logs(after=after, limit=limit + 1)]
        made = page(lines, limit, _LOG_CHARS)
        following = made.items[-1]["seq"] if made.has_more else None
        return tool_result({"id": found.id, "lines": made.items, "next": following}, made.notes)

    def _job(self, named: str) -> Job[Any]:
        return Job[Any](self._core, listing.job_named(self._core.backend, named)).refresh()

    def _says(self, job_id: str) -> list[str]:
        return says(self._core, job_id)

    # What there is

    def stats(
        self, window: Annotated[str, Field(description="The time that rates are about: 5m, 1h, 7d.")] = "1h"
    ) -> CallToolResult:
        """Show jobs by state and queue, rates, run times, the number of live workers, and what needs attention, such
        as jobs that are queued while no worker runs."""
        window_us = duration_us(window)
        if window_us is None:
            raise ConfigError(f"window {window[:20]!r} is no duration; write 5m, 1h or 7d")
        backend = self._core.backend
        numbers = listing.stats(backend, window_us / SECOND).as_dict()
        seen = Top(backend).look()
        around = backend.overview.around(since=backend.now() - attention.SINCE_US, limit=20, most=1_000)
        groups = failures.groups(backend, since=3600.0, limit=_FAILURES)
        notices = attention.notices(backend, seen, around, groups)
        shape = {
            "database": self._core.settings.place,
            "live_workers": len(seen.workers),
            "attention": [" ".join(filter(None, (each.text, each.more))) for each in notices],
            **numbers,
        }
        return tool_result(shape, rest="`queues` lists the queues a page at a time")

    def queues(self, limit: Limit = 50, after: After = None) -> CallToolResult:
        """List queues, which are paused, and how many jobs of each state are in them."""
        found = [shapes.queue(queue) for queue in listing.queues(self._core.backend)]
        return _listed("queues", found, "name", limit, after)

    def workers(
        self,
        ended: Annotated[bool, Field(description="Also those that have ended.")] = False,  # noqa: FBT002 - by name
        limit: Limit = 20,
        after: After = None,
    ) -> CallToolResult:
        """List workers: where they run, which queues they serve and which tasks they know."""
        found = [shapes.worker(each) for each in listing.workers(self._core.backend) if ended or _is_live(each)]
        note = None if found else "no worker is alive: jobs wait until one is started, with `dray worker`"
        return _listed("workers", found, "id", limit, after, note)

    def tasks(
        self,
        task: Annotated[
            str | None, Field(description="Only this one, with the JSON Schema of its arguments.")
        ] = None,
        limit: Limit = 50,
        after: After = None,
    ) -> CallToolResult:
        """List the tasks that can be enqueued, or show one with the JSON Schema of its arguments."""
        registry = self._core.registry
        live = self._live_workers()
        if task is not None and len(registry):
            known = registry.get(task)
            shape = {**task_shapes.tasks([known], live)[0], "schema": task_shapes.argument_schema(known)}
            return tool_result({"task": shape}, rest="the resource dray://tasks/NAME has all of it")
        if len(registry):
            return _listed("tasks", task_shapes.tasks(registry, live), "name", limit, after)
        names = sorted({name for worker in live or () for name in worker.tasks if task in {None, name}})
        note = "no code was loaded here (dray mcp --app module:app): these are the names that live workers know"
        return _listed("tasks", [{"name": name} for name in names], "name", limit, after, note)

    def _live_workers(self) -> list[listing.WorkerInfo] | None:
        """None: no database says. The code of the tasks is here all the same."""
        try:
            return [each for each in listing.workers(self._core.backend) if _is_live(each)]
        except (StorageError, ConfigError):
            return None

    def workflows(self, limit: Limit = 20, after: After = None) -> CallToolResult:
        """List workflows, newest first, with their progress and the number of their jobs in each state."""
        backend = self._core.backend
        before = {} if after is None else {"before": _whole(after)}
        rows = backend.workflows.newest(limit=limit + 1, **before)
        tallies = backend.workflows.tallies([row.id for row in rows]) if rows else {}
        made = page([shapes.workflow(row, tallies[row.id]) for row in rows], limit)
        return tool_result(
            {"workflows": made.items, "next": made.items[-1]["id"] if made.has_more else None}, made.notes
        )

    def workflow(
        self,
        workflow: WorkflowPart,
        limit: Annotated[int, Field(ge=1, le=200, description="Maximum number of steps.")] = 100,
        after: Annotated[str | None, Field(description="`next` of the previous result: a step's id.")] = None,
    ) -> CallToolResult:
        """Show a workflow with its steps: what each waits for, its state and its error."""
        backend = self._core.backend
        run_id = listing.workflow_named(backend, workflow)
        found = backend.workflows.get(run_id)
        if found is None:
            raise UnknownWorkflow(f"no workflow has the id {run_id}; workflows() lists them")
        shape = shapes.whole_workflow(found[0], backend.workflows.drawing(run_id))
        made, following = named_page(shape["steps"], "id", limit, after)
        return tool_result({**shape, "steps": made.items, "next": following}, made.notes, "job(job=ID) shows a step")

    def schedules(self, limit: Limit = 20, after: After = None) -> CallToolResult:
        """List schedules: their tasks, rules, next times, and which are paused."""
        found = [shapes.schedule(info) for info in self._core.all_schedules.list()]
        shown = [{**each, "args": self._core.shown_args(each["task"], each["args"])} for each in found]
        return _listed("schedules", shown, "name", limit, after)

    def actions(self, limit: Limit = 20, after: After = None) -> CallToolResult:
        """List what people and agents did, newest first: who, when, how, to what."""
        before = None if after is None else _whole(after)
        found: list[Action] = self._core.backend.actions.newest(limit + 1, before)
        made = page([shapes.action(each) for each in found], limit)
        return tool_result(
            {"actions": made.items, "next": made.items[-1]["id"] if made.has_more else None}, made.notes
        )

    def doctor(self) -> CallToolResult:
        """Look for problems of the database, the workers and the queues, each with how to fix it. Changes nothing."""
        core = self._core
        found = [asdict(result) for result in examine(Subject(core.settings, core.backend, core.clock, self._code))]
        made = page(found, len(found), _LOG_CHARS)
        notes = [*made.notes, f"checks: {len(made.items)} of {len(found)} are shown"] if made.has_more else made.notes
        return tool_result({"checks": made.items}, notes, "`dray doctor --json` shows all")


def says(core: AppInterface, job_id: str) -> list[str]:
    """Why a job is where it is, in words."""
    return [each.text for each in why(core.backend, job_id, registry=core.registry).causes]


def _is_live(worker: listing.WorkerInfo) -> bool:
    return worker.stopped_at is None and worker.state != "dead"


def _whole(cursor: str) -> str:
    found = canonical_id(cursor)
    if found is None:
        raise ConfigError("after is no place in this list; begin at its first page")
    return found


def _listed(
    name: str, found: Sequence[dict[str, Any]], key: str, limit: int, after: str | None, note: str | None = None
) -> CallToolResult:
    made, following = named_page(found, key, limit, after)
    shape: dict[str, Any] = {name: made.items, "next": following}
    return tool_result(
        shape if note is None else {**shape, "note": note}, made.notes, f"`dray {name} --json` shows all"
    )

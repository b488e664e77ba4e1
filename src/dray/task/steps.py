"""Steps of one workflow, gathered before any of them is written: calls of tasks that wait for others.

A graph that `finish` returns is complete and can run to its end; anything wrong with it is raised before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import Any, cast

from dray.errors import ConfigError, GraphError
from dray.model.new_job import NewJob
from dray.model.values import canonical_id, check_name, shown
from dray.model.workflow import ParentPolicy, order
from dray.task.checks import choice, switch
from dray.task.job_options import HasId, JobOptions, parent_id
from dray.task.signature import PARENT_RESULTS
from dray.task.task import Enqueuer, Task

Parent = HasId | str


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was added; others run `after` it."""

    id: str
    name: str | None
    task: str
    workflow_id: str

    def __repr__(self) -> str:
        return f"<Step {self.name or self.task} {self.id}>"


class Steps:
    """The steps that are added to one workflow.

    ``find`` returns the id of a step that the workflow has already. Without it nothing is stored yet, and steps may
    name steps that are added later.
    """

    def __init__(
        self,
        workflow_id: str,
        identify: Callable[[NewJob, int], str],
        find: Callable[[str], str | None] | None = None,
    ) -> None:
        self.workflow_id = workflow_id
        self._identify = identify
        self._find = find
        self._jobs: dict[str, NewJob] = {}
        self._names: dict[str, str] = {}  # step -> job
        self._open: dict[str, list[str]] = {}  # job -> the steps it waits for that are not known so far

    def __len__(self) -> int:
        return len(self._jobs)

    def add(
        self,
        task: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        after: Sequence[Parent] | Parent | None,
        step: str | None,
        on_parent_failure: str | None,
        pass_parent_results: bool,  # noqa: FBT001 - as people give it
    ) -> Step:
        """One more step, checked as an enqueue is."""
        if not isinstance(task, Enqueuer):
            raise TypeError(f"a step is made of a task, or of task.using(...), not of {type(task).__name__}")
        enqueuer = cast("Enqueuer[..., Any]", task)
        job_options = _job_options(enqueuer.job_options, on_parent_failure)
        if step is not None and check_name("step", step) in self._names:
            raise GraphError(f"there is a step {step!r} in this workflow already; give this one another name")
        if not switch("pass_parent_results", pass_parent_results):
            kwargs = _without_parent_results(enqueuer.task, kwargs)
        job = enqueuer.task.prepare(args, kwargs, job_options, self.workflow_id)
        known, unknown = self._parents(after)
        job = replace(
            job,
            id=self._identify(replace(job, step=step), len(self._jobs)),
            workflow_id=self.workflow_id,
            step=step,
            parents=tuple(dict.fromkeys((*job.parents, *known))),
        )
        self._jobs[job.id] = job
        if step is not None:
            self._names[step] = job.id
        if unknown:
            self._open[job.id] = unknown
        return Step(job.id, step, job.task, self.workflow_id)

    def job(self, step: Step) -> NewJob:
        return self._jobs[step.id]

    def finish(self) -> list[NewJob]:
        """All steps, parents before children; `GraphError` if one waits for itself, in a circle, or for nothing."""
        if not self._open:
            return list(self._jobs.values())
        names = {job.id: job.step or f"{job.task} {job.id[-8:]}" for job in self._jobs.values()}
        parents = {names[job.id]: [names[p] for p in job.parents if p in names] for job in self._jobs.values()}
        for job_id, steps in self._open.items():
            # One that is not there stays as it is called, and is refused as such.
            parents[names[job_id]] += [names[self._names[step]] if step in self._names else step for step in steps]
        ids = {label: job_id for job_id, label in names.items()}
        return [self._finished(self._jobs[ids[label]]) for label in order(parents)]

    def _finished(self, job: NewJob) -> NewJob:
        steps = self._open.get(job.id)
        if not steps:
            return job
        return replace(job, parents=tuple(dict.fromkeys((*job.parents, *(self._names[step] for step in steps)))))

    def _parents(self, after: Sequence[Parent] | Parent | None) -> tuple[list[str], list[str]]:
        """The jobs to wait for, and the steps whose jobs are not known so far."""
        known: list[str] = []
        unknown: list[str] = []
        for parent in _several(after):
            if isinstance(parent, str) and canonical_id(parent) is None:
                found = self._named(parent)
                (unknown if found is None else known).append(parent if found is None else found)
            else:
                known.append(self._job_id(parent))
        return known, unknown

    def _named(self, step: str) -> str | None:
        found = self._names.get(check_name("step", step))
        if found is None and self._find is not None:
            found = self._find(step)
            if found is None:
                raise GraphError(f"there is no step {step!r} in this workflow to wait for; add that first")
        return found

    def _job_id(self, parent: Any) -> str:
        if isinstance(parent, Step) and parent.workflow_id != self.workflow_id:
            raise GraphError(
                f"step {shown(parent.name or parent.task)} belongs to another workflow; steps wait for those of "
                "their own workflow, and for jobs that are enqueued"
            )
        return parent_id(parent, "after takes steps, jobs, their ids and names of steps")


def _job_options(given: JobOptions, on_parent_failure: str | None) -> JobOptions:
    if given.connection is not None:
        raise ConfigError("a step has no connection of its own; give it to the workflow's enqueue()")
    if given.fields.get("on_conflict", "keep") != "keep":
        raise ConfigError("a step cannot change the job that holds its unique key; leave on_conflict out")
    if on_parent_failure is None:
        return given
    policy = choice("on_parent_failure", on_parent_failure, ParentPolicy)
    return JobOptions({**given.fields, "on_parent_failure": policy})


def _several(after: Any) -> Iterable[Any]:
    if after is None:
        return ()
    if isinstance(after, str) or hasattr(after, "id"):
        return (after,)
    if isinstance(after, Iterable):
        return cast("Iterable[Any]", after)
    raise TypeError(f"after takes a list of steps or jobs, not {type(after).__name__}")


def _without_parent_results(task: Task[..., Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Passes the value that a plain call would have, because a worker fills in nothing that is given."""
    if PARENT_RESULTS in kwargs or not task.signature.takes_parent_results:
        return kwargs
    default = task.signature.parameters[PARENT_RESULTS].default
    return {**kwargs, PARENT_RESULTS: {} if default is Parameter.empty else default}

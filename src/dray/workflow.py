"""Workflows as producers make them: steps are added, then all of it is enqueued at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dray.app_interface import AppInterface
from dray.errors import ConfigError, GraphError
from dray.handle.run import Run
from dray.model import workflow as model
from dray.model.bounds import JOB_NAME_CHARS
from dray.model.new_job import NewJob
from dray.runtime import loading
from dray.task.checks import label
from dray.task.steps import Steps
from dray.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dray.model.workflow import OnParentFailure
    from dray.task.add_step import AddStep
    from dray.task.steps import Parent, Step
    from dray.task.task import Enqueuer


class Workflow:
    """A named graph of jobs that is being made. `add` its steps, then `enqueue` it, once.

    Example:

        >>> wf = app.workflow("sums")
        >>> left = wf.add(add, 1, 2, step="left")
        >>> right = wf.add(add, 3, 4, step="right", after=[left])
        >>> run = wf.enqueue()
        >>> run.counts
        {'queued': 1, 'waiting': 1}
    """

    def __init__(self, app: AppInterface, name: str) -> None:
        self.name = label("a workflow's name", name, JOB_NAME_CHARS)
        self.id = app.new_id()
        self._app = app
        self._is_enqueued = False
        self._steps = Steps(self.id, lambda _job, _number: app.new_id())

    def __repr__(self) -> str:
        return f"<Workflow {self.name} {self.id} of {counted(len(self._steps), 'step')}>"

    if TYPE_CHECKING:

        @property
        def add(self) -> AddStep: ...

    else:

        def add(
            self,
            task: Enqueuer[..., Any],
            *args: Any,
            after: Sequence[Parent] | Parent | None = None,
            step: str | None = None,
            on_parent_failure: OnParentFailure | None = None,
            pass_parent_results: bool = True,
            **kwargs: Any,
        ) -> Step:
            """Adds a call of a task, with `task.using(...)` where it needs options.

            `after`: the steps, jobs or names that it waits for.

            ``left = wf.add(add, 1, 2, step="left")``, then ``wf.add(add.using(queue="slow"), 3, 4, after=[left])``.
            """
            self._refuse_enqueued()
            return self._steps.add(task, args, kwargs, after, step, on_parent_failure, pass_parent_results)

    def enqueue(self, *, connection: Any = None) -> Run:
        """Writes all jobs and edges in one transaction: ``run = wf.enqueue()``.

        If anything is wrong with them, nothing is written.
        """
        self._app.submit(self._finished(), connection, self._row)
        self._is_enqueued = True
        return Run(self._app, self.id)

    async def aenqueue(self, *, connection: Any = None) -> Run:
        """As `enqueue`, from a coroutine: ``await other.aenqueue()``. Takes asynchronous connections too."""
        await self._app.asubmit(self._finished(), connection, self._row)
        self._is_enqueued = True
        return Run(self._app, self.id)

    def _finished(self) -> list[NewJob]:
        loading.stop_here()
        self._refuse_enqueued()
        if not len(self._steps):
            raise GraphError(f"workflow {self.name} has no steps; add some before it is enqueued")
        return self._steps.finish()

    @property
    def _row(self) -> model.Workflow:
        return model.Workflow(self.id, self.name, 0)

    def _refuse_enqueued(self) -> None:
        if self._is_enqueued:
            raise ConfigError(
                f"workflow {self.name} is enqueued already: make another one, or add steps in the body of one of its "
                "own, with ctx.add()"
            )

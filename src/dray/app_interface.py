"""What tasks, handles, workflows, schedules and workers need of an App: one protocol, types only.

They are made before the App in the order of the layers, so they cannot name its class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from dray.backends import Backend
    from dray.clock import Clock, Ids
    from dray.handle import Job
    from dray.model.new_job import NewJob
    from dray.model.workflow import Workflow
    from dray.settings import Settings
    from dray.task import Registry, Task
    from dray.waiter import Waiter


class AppInterface(Protocol):
    """An App as the rest of Dray sees it."""

    clock: Clock
    ids: Ids
    settings: Settings
    registry: Registry
    on_enqueue: list[Callable[[Iterable[str]], None]]
    on_recall: list[Callable[[], None]]
    on_schedule: list[Callable[[], None]]

    @property
    def backend(self) -> Backend: ...
    @property
    def waiter(self) -> Waiter: ...

    def new_id(self) -> str:
        """The id of the next job or workflow."""
        ...

    def submit(
        self, new: Sequence[NewJob], connection: Any = None, workflow: Workflow | None = None
    ) -> list[Job[Any]]:
        """Writes jobs, all or none, and wakes workers. On the user's own connection the user's commit does both."""
        ...

    async def asubmit(
        self, new: Sequence[NewJob], connection: Any = None, workflow: Workflow | None = None
    ) -> list[Job[Any]]:
        """As `submit`, from a coroutine."""
        ...

    def announce(self, queues: Iterable[str]) -> None:
        """Wakes the workers of these queues, in this process and in all others."""
        ...

    def recall(self) -> None:
        """Makes the workers of this process give back claimed jobs that they have not started."""
        ...

    def decode_result(self, task: str, text: str) -> Any:
        """A stored result, in the type that the task is annotated with if it is known here."""
        ...

    def shown_args(self, task: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as people may see them: redacted ones hidden."""
        ...

    def local_context(self, task: Task[..., Any]) -> Any:
        """The Context of a plain call."""
        ...

    def load(self, more: Iterable[str] = ()) -> None:
        """Imports the modules that define tasks."""
        ...

    def declare_schedules(self, backend: Backend) -> None:
        """Writes the schedules that the code declares."""
        ...

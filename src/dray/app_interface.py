"""What tasks, handles, workflows, schedules and workers need of an App: one protocol. It loads nothing.

They are made before the App in the order of the layers, so they cannot name its class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from dray.app import App
    from dray.backends import Backend
    from dray.clock import Clock, Ids
    from dray.core import AppCore
    from dray.handle.job import Job
    from dray.hooks import Hooks
    from dray.model.action import NewAction
    from dray.model.limit import Bounds, Scope
    from dray.model.new_job import AlikeJobs, NewJob
    from dray.model.workflow import Workflow
    from dray.schedules import Schedules
    from dray.settings import Settings
    from dray.task.registry import Registry
    from dray.task.task import Task
    from dray.waiter import Waiter


class AppInterface(Protocol):
    """An App as the rest of Dray sees it; `dray.core.AppCore` says what each method does."""

    clock: Clock
    ids: Ids
    settings: Settings
    registry: Registry
    hooks: Hooks
    on_enqueue: list[Callable[[Iterable[str]], None]]
    on_recall: list[Callable[[], None]]
    on_schedule: list[Callable[[], None]]

    @property
    def backend(self) -> Backend: ...
    @property
    def waiter(self) -> Waiter: ...
    @property
    def all_schedules(self) -> Schedules: ...

    def new_id(self) -> str: ...
    def submit(
        self,
        new: Sequence[NewJob],
        connection: Any = None,
        workflow: Workflow | None = None,
        action: NewAction | None = None,
    ) -> list[Job[Any]]: ...
    async def asubmit(
        self, new: Sequence[NewJob], connection: Any = None, workflow: Workflow | None = None
    ) -> list[Job[Any]]: ...
    def submit_alike(self, jobs: AlikeJobs, connection: Any = None) -> list[Job[Any]]: ...
    async def asubmit_alike(self, jobs: AlikeJobs, connection: Any = None) -> list[Job[Any]]: ...
    def announce(self, queues: Iterable[str]) -> None: ...
    def recall(self) -> None: ...
    def pause(self, queue: str, action: NewAction | None = None) -> bool: ...
    def resume(self, queue: str, action: NewAction | None = None) -> bool: ...
    def decode_result(self, task: str, text: str) -> Any: ...
    def shown_args(self, task: str, args: Mapping[str, Any]) -> dict[str, Any]: ...
    def local_context(self, task: Task[..., Any], args: Mapping[str, Any]) -> Any: ...
    def load(self, more: Iterable[str] = ()) -> None: ...
    def declare_schedules(self, backend: Backend) -> None: ...
    def declare_limits(self, backend: Backend) -> None: ...
    def override_limits(self, scope: Scope, name: str, bounds: Bounds, action: NewAction) -> bool: ...
    def reset_limits(self, scope: Scope, name: str, action: NewAction) -> bool: ...


def core_of(app: App) -> AppCore:
    """What is behind an App: for the rest of Dray, not for users."""
    return app._core  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

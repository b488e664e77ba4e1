"""What type checkers know of ``wf.add(task, ...)`` and ``ctx.add(task, ...)``. For them alone.

Options of the step stand between the arguments of the call, where a `ParamSpec` allows none. So checkers are told the
types of up to three arguments by position, and how many there may be; arguments by name are checked when the step is
added, as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Concatenate, Protocol, TypeVar, overload

from dray.model.workflow import OnParentFailure
from dray.task.steps import Parent, Step
from dray.task.task import Enqueuer

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class AddStep(Protocol):
    """Adds a call of a task, with `task.using(...)` where it needs options; runs `after` steps, jobs or names."""

    @overload
    def __call__(
        self,
        task: Enqueuer[..., Any],
        /,
        *,
        after: Sequence[Parent] | Parent | None = None,
        step: str | None = None,
        on_parent_failure: OnParentFailure | None = None,
        pass_parent_results: bool = True,
        **kwargs: Any,
    ) -> Step: ...
    @overload
    def __call__(
        self,
        task: Enqueuer[Concatenate[A, ...], Any],
        first: A,
        /,
        *,
        after: Sequence[Parent] | Parent | None = None,
        step: str | None = None,
        on_parent_failure: OnParentFailure | None = None,
        pass_parent_results: bool = True,
        **kwargs: Any,
    ) -> Step: ...
    @overload
    def __call__(
        self,
        task: Enqueuer[Concatenate[A, B, ...], Any],
        first: A,
        second: B,
        /,
        *,
        after: Sequence[Parent] | Parent | None = None,
        step: str | None = None,
        on_parent_failure: OnParentFailure | None = None,
        pass_parent_results: bool = True,
        **kwargs: Any,
    ) -> Step: ...
    @overload
    def __call__(
        self,
        task: Enqueuer[Concatenate[A, B, C, ...], Any],
        first: A,
        second: B,
        third: C,
        /,
        *args: Any,
        after: Sequence[Parent] | Parent | None = None,
        step: str | None = None,
        on_parent_failure: OnParentFailure | None = None,
        pass_parent_results: bool = True,
        **kwargs: Any,
    ) -> Step: ...

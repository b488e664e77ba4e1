"""What an engine is given, and what a worker tells others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dray.runtime.crew import Crew
from dray.runtime.execution import Execution, Link
from dray.runtime.in_flight import End, InFlight
from dray.runtime.inbox import Inbox
from dray.runtime.notes import NoteBuffer
from dray.runtime.standbys import Standbys
from dray.task.task import Task


@dataclass(frozen=True, slots=True)
class Bodies:
    """What runs bodies, and what brings their ends and notes to the engine."""

    tasks: Mapping[str, Task[..., Any]]
    crew: Crew
    link: Link
    in_flight: InFlight
    notes: NoteBuffer
    inbox: Inbox
    standbys: Standbys


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the engine calls, on its own thread."""

    on_done: Callable[[], None]  # a job has ended
    on_idle: Callable[[], None]
    on_failure: Callable[[], None]  # no waiting can repair it


class Observer(Protocol):
    """What a worker tells of its bodies. It must not raise or take long."""

    @property
    def began(self) -> Callable[[Execution], None] | None: ...  # a body starts, on its own thread
    def ended(self, ends: Sequence[End]) -> None: ...  # these outcomes were written, on the engine's thread
    def tick(self, *, is_over: bool = False) -> None: ...  # now and then; `is_over`: for the last time

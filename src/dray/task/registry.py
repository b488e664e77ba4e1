"""The tasks that this process knows, by name: a worker runs nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dray.errors import UnknownTask
from dray.model.values import shown
from dray.wording import close_matches, counted

if TYPE_CHECKING:
    from dray.task.task import Task

_NEAR = 3  # names at most that may be meant
_LOOKED_UP = 1_000  # names that are looked up in case they are misspelled


class Registry:
    def __init__(self) -> None:
        self._tasks: dict[str, Task[..., Any]] = {}
        self._looked_up: set[str] = set()  # names that no task has

    def register(self, task: Task[..., Any]) -> None:
        """Makes a task known; `ValueError` if another has its name."""
        other = self._tasks.get(task.name)
        # A cell that is run again, at a prompt or in a notebook, replaces its task.
        is_run_again = hasattr(sys, "ps1") and other is not None and _origin(other) == _origin(task)
        if other is not None and not is_run_again:
            places = f"{other.place} and {task.place}"
            raise ValueError(f"two tasks are named {task.name}: {places}; {_advice(other, task)}")
        self._tasks[task.name] = task

    def forget(self, name: str) -> None:
        """Lets another take this name."""
        self._tasks.pop(name, None)

    def get(self, name: str) -> Task[..., Any]:
        """The task of this name; `UnknownTask` names those that are spelled alike."""
        if name in self._tasks:
            return self._tasks[name]
        raise UnknownTask(f"{self.missing(name)} Import the module that defines it")

    def missing(self, name: str) -> str:
        """The sentence on a name that no task has, with those that may be meant."""
        near, others = self._near(name), counted(len(self._tasks), "other is known", "others are known")
        meant = f"did you mean {' or '.join(near)}?" if near else f"{others}."
        return f"no task is named {shown(name)} here; {meant}"

    def misspelled(self, name: str) -> str | None:
        """The sentence on a name that is spelled like a task of the same module; once for each name."""
        if name in self._looked_up or len(self._looked_up) == _LOOKED_UP:
            return None
        self._looked_up.add(name)
        module, _, last = name.rpartition(".")
        parts = [known.rpartition(".") for known in self._tasks]
        # By the last part alone: names of a long module's tasks are all alike.
        near = close_matches(last, [part[2] for part in parts if part[0] == module])
        return f"no task is named {shown(name)} here; did you mean {name[: -len(last)]}{near[0]}?" if near else None

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._tasks))

    def _near(self, name: str) -> list[str]:
        """Names that are spelled alike, as a whole or in their last part."""
        spelled: dict[str, list[str]] = {}
        for known in self.names():
            for spelling in {known, known.rpartition(".")[2]}:
                spelled.setdefault(spelling, []).append(known)
        near = close_matches(name, spelled, _NEAR)
        found = dict.fromkeys(known for spelling in near for known in spelled[spelling])
        return list(found)[:_NEAR]

    def __contains__(self, name: object) -> bool:
        return name in self._tasks

    def __iter__(self) -> Iterator[Task[..., Any]]:
        return iter(list(self._tasks.values()))

    def __len__(self) -> int:
        return len(self._tasks)


def _advice(other: Task[..., Any], task: Task[..., Any]) -> str:
    if other.place == task.place and _origin(other) != _origin(task):
        return f"the file was imported twice, as {other.__module__} and as {task.__module__}: import it in one way"
    return "give one of them another: @app.task(name=...)"


def _origin(task: Task[..., Any]) -> tuple[str, str]:
    return task.function.__module__, task.function.__qualname__

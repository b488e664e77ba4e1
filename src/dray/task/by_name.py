"""Jobs of tasks that are known by name only: the code may be in another program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from dray.convert import to_json
from dray.model.new_job import NewJob
from dray.model.values import check_name
from dray.task.options import TaskOptions
from dray.task.registry import Registry
from dray.task.task import Task
from dray.task.using import Using, prepare


def prepare_by_name(
    registry: Registry, job_id: str, name: Any, args: Any, using: Using, timeout: float | None
) -> NewJob:
    """The job for arguments by name: as its task has it where that is known, with `timeout` and the defaults else."""
    if isinstance(name, Task):
        raise TypeError(f"enqueue() takes a task's name; with the task at hand use {name.name}.enqueue(...)")
    check_name("task", name)
    if args is not None and not isinstance(args, Mapping):
        raise TypeError(f"{name}: arguments are given by name, as a dict, not as {type(args).__name__}")
    given = dict(cast("Mapping[str, Any]", args or {}))
    if name in registry:
        task = registry.get(name)
        return prepare(job_id, task.options, task.signature.fit(given), using)
    # Nobody here knows its signature: a worker that does will check the arguments.
    return prepare(job_id, TaskOptions(name=name, timeout=timeout), to_json(given, "args"), using)

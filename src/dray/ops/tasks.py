"""Tasks: what the code here says of each, what its arguments look like, and who can run it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from inspect import Parameter
from typing import Any

from dray.convert.annotations import Schema, Schemas
from dray.convert.forms import hints
from dray.instants import SECOND
from dray.model.retry import Exponential, Fixed, Linear
from dray.ops.listing import WorkerInfo, values_of
from dray.task.options import TaskOptions
from dray.task.task import Task

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_DEFAULT_CHARS = 200  # a default that is longer says nothing more


def tasks(known: Iterable[Task[..., Any]], workers: Sequence[WorkerInfo] | None) -> list[dict[str, Any]]:
    """The tasks by name, with the ids of those of `workers` that know them; None: no database says."""
    return [_shape(task, workers) for task in sorted(known, key=lambda task: task.name)]


def _shape(task: Task[..., Any], workers: Sequence[WorkerInfo] | None) -> dict[str, Any]:
    options, rule, lines = task.options, task.options.schedule, (task.function.__doc__ or "").strip().splitlines()
    return {
        "name": task.name,
        **values_of(options, "queue priority"),  # no priority: the queue's
        "runner": options.runner.value,
        **values_of(options, "max_attempts max_crashes timeout"),
        "retry": _retry_in_words(options),
        "cron": None if rule is None else rule.cron,
        "every": None if rule is None or rule.every_us is None else rule.every_us / SECOND,
        "tz": None if rule is None or rule.cron is None else rule.tz,
        "description": options.description or next(iter(lines), "").strip() or None,
        "workers": None if workers is None else [worker.id for worker in workers if task.name in worker.tasks],
    }


def _retry_in_words(options: TaskOptions) -> str:
    """When a failed attempt is followed by another."""
    policy = options.retry
    if options.max_attempts == 1:
        return "none"
    if isinstance(policy, Fixed):
        return f"after {policy.seconds:g} s"
    if isinstance(policy, Linear):
        return f"after {policy.seconds:g} s, {policy.seconds:g} s more each time, at most {policy.cap:g} s"
    if isinstance(policy, Exponential):
        first = ", ".join(f"{policy(attempt):g}" for attempt in (1, 2, 3))
        more = f", up to {1 + policy.jitter:g} times that by chance" if policy.jitter else ""
        return f"after {first} ... at most {policy.cap:g} s{more}"
    if isinstance(policy, int | float):
        return f"after {policy:g} s"
    return f"as {getattr(policy, '__qualname__', type(policy).__name__)}(attempt) says"


def argument_schema(task: Task[..., Any]) -> Schema:
    """JSON Schema of a task's arguments by name, as `enqueue` by name takes them."""
    signature, schemas, found = task.signature, Schemas(), hints(task.function)
    properties: dict[str, Schema] = {}
    required: list[str] = []
    extra: Schema | bool = False
    filled = {*signature.contexts, "parent_results"}  # by the worker
    for name, parameter in signature.parameters.items():
        schema = schemas.of(found.get(name, Any))
        if parameter.kind is Parameter.VAR_KEYWORD:
            extra = schema
        elif parameter.kind is Parameter.VAR_POSITIONAL:
            properties[f"*{name}"] = {"type": "array", "items": schema}
        elif name not in filled:
            properties[name] = _with_default(schema, parameter, is_secret=name in task.options.redact)
            if parameter.default is Parameter.empty:
                required.append(name)
    made: Schema = {
        "$schema": _DRAFT,
        "title": task.name,
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": extra,
    }
    return {**made, "$defs": schemas.definitions} if schemas.definitions else made


def _with_default(schema: Schema, parameter: Parameter, *, is_secret: bool) -> Schema:
    default = parameter.default
    if default is Parameter.empty:
        return schema
    if default is None and schema and not _takes_null(schema):
        schema = {"anyOf": [schema, {"type": "null"}]}  # ``x: int = None``, as people write it
    if is_secret or not isinstance(default, None | bool | int | float | str):
        return schema
    if len(json.dumps(default)) > _DEFAULT_CHARS:
        return schema
    return {**schema, "default": default}


def _takes_null(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "null" or any(map(_takes_null, schema.get("anyOf", ())))

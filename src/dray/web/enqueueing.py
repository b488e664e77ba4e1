"""The form that enqueues a task: a field for each argument, made from the task's JSON Schema, and the job's options.

What was typed is kept: a form with an error is shown again as it was sent, the error beside its field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from dray.codec import step
from dray.errors import ConfigError, PayloadError
from dray.instants import SECOND
from dray.model.bounds import KEY_CHARS
from dray.model.search import duration_us
from dray.model.values import check_name
from dray.ops.tasks import argument_schema
from dray.sanitize import HIDDEN
from dray.task.checks import label
from dray.task.task import Task

ARGS = "args"  # the field of all arguments, or of those that have no field
_EMPTY = '""'  # typed for an empty text: nothing typed means nothing given
_WIDTH = 60  # characters of JSON on one line
_CHOICES = 100  # of an enum, as a list to choose from

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """One input. `kind`: text, number, checkbox, select or json."""

    name: str
    kind: str
    hint: str  # what it takes, in words
    is_required: bool = False
    choices: tuple[str, ...] = ()  # as JSON
    default: str = ""  # in words; what holds if it is left empty
    value: str = ""  # as typed
    error: str = ""
    note: str = ""

    @property
    def input_name(self) -> str:
        return f"arg:{self.name}"

    @property
    def id(self) -> str:
        return "arg-" + "".join(char if char.isalnum() else "-" for char in self.name)

    @property
    def is_checked(self) -> bool:
        return self.value == "on"


class Problem(Exception):
    """What a value cannot be; shown beside its field."""


def fields_of(task: Task[..., Any] | None) -> list[Field]:
    """Of a task whose code is not here: one field for all arguments, which are checked by the worker."""
    if task is None:
        return [Field(ARGS, "json", "a JSON object: the arguments by name")]
    schema = argument_schema(task)
    definitions: Schema = schema.get("$defs", {})
    required = set(schema["required"])
    made = [_field(name, each, definitions, name in required) for name, each in schema["properties"].items()]
    if schema["additionalProperties"] is not False:
        made.append(Field(ARGS, "json", "a JSON object: more arguments by name"))
    return made


def _field(name: str, schema: Schema, definitions: Schema, is_required: bool) -> Field:  # noqa: FBT001
    inner, takes_null = _inner(schema, definitions)
    kind, hint, choices = _kind(inner, takes_null=takes_null)
    default = schema.get("default")
    has_default = "default" in schema
    if kind == "checkbox":
        return Field(name, kind, hint, is_required, value="on" if default else "")
    shown = "its default" if not has_default else "none" if default is None else _json(default)
    return Field(name, kind, hint, is_required, choices, "" if is_required else shown)


def _inner(schema: Schema, definitions: Schema) -> tuple[Schema, bool]:
    """What it is without null, and whether null is allowed."""
    members = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    takes_null = len(members) < len(schema.get("anyOf", ()))
    found: Schema = members[0] if len(members) == 1 else schema
    if "$ref" in found:
        found = definitions.get(str(found["$ref"]).removeprefix("#/$defs/"), {})
    return found, takes_null


def _kind(schema: Schema, *, takes_null: bool) -> tuple[str, str, tuple[str, ...]]:
    enum = schema.get("enum")
    if isinstance(enum, list) and len(cast("list[Any]", enum)) <= _CHOICES:
        return "select", "one of these", tuple(_json(each) for each in cast("list[Any]", enum))
    given = schema.get("type")
    if given == "boolean":
        return ("select", "true or false", ("true", "false")) if takes_null else ("checkbox", "", ())
    if given == "integer":
        return "number", "a whole number", ()
    if given == "number":
        return "number", "a number", ()
    if given == "string":
        return (
            "text",
            {"date-time": "a time: 2026-11-15T08:00:00Z", "date": "a date: 2026-11-15"}.get(
                str(schema.get("format")), str(schema.get("format", "text"))
            ),
            (),
        )
    words = {"array": "JSON: a list", "object": "JSON: an object"}
    return "json", words.get(given, "JSON") if isinstance(given, str) else "JSON", ()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _lines(value: Any) -> str:
    """JSON to be edited: in lines, if it is long."""
    line = _json(value)
    return line if len(line) <= _WIDTH else json.dumps(value, ensure_ascii=False, indent=2)


def filled(fields: list[Field], args: Mapping[str, Any]) -> list[Field]:
    """The fields with the arguments of a job. What is redacted stays empty, and is said to."""
    known = {field.name for field in fields}
    rest = {name: value for name, value in args.items() if name not in known}
    return [_filled(field, {ARGS: rest, **args} if rest else args) for field in fields]


def _filled(field: Field, args: Mapping[str, Any]) -> Field:
    if field.name not in args:
        return field
    value = args[field.name]
    if value == HIDDEN or (isinstance(value, dict) and HIDDEN in cast("dict[str, Any]", value).values()):
        return replace(field, value="", note="It is hidden in the job that this was filled in from: fill it in.")
    if field.kind == "checkbox":
        return replace(field, value="on" if value else "")
    if field.kind == "text" and isinstance(value, str):
        return replace(field, value=value or _EMPTY)
    if value is None and field.kind in {"text", "number", "select"}:
        return replace(field, value="")
    return replace(field, value=_lines(value) if field.kind == "json" else _json(value))


def typed(fields: list[Field], form: Mapping[str, str]) -> list[Field]:
    """The fields with what was sent."""
    return [replace(field, value=form.get(field.input_name, "")) for field in fields]


def read(fields: list[Field], task: Task[..., Any] | None) -> tuple[dict[str, Any], list[Field]]:
    """The arguments, and the fields with their errors; none has one: the arguments fit the task."""
    args: dict[str, Any] = {}
    checked: list[Field] = []
    for field in fields:
        try:
            args.update(_read(field))
            checked.append(field)
        except Problem as problem:
            checked.append(replace(field, error=str(problem)))
    if task is None or any(field.error for field in checked):
        return args, checked
    return args, _fitted(checked, task, args)


def _fitted(fields: list[Field], task: Task[..., Any], args: Mapping[str, Any]) -> list[Field]:
    try:
        task.signature.fit(args)
    except PayloadError as error:
        place = next((n for n, each in enumerate(fields) if _is_at(error.path, each.name)), len(fields) - 1)
        return [replace(each, error=str(error)) if n == place else each for n, each in enumerate(fields)]
    except RecursionError:
        raise ConfigError("The arguments are nested too deep.") from None
    except TypeError as error:
        raise ConfigError(str(error)) from None
    except Exception as error:  # the code of a user's model reads the arguments, and may raise anything
        raise ConfigError(f"Reading the arguments raised {type(error).__name__}: {error}") from error
    return fields


def _is_at(path: str, name: str) -> bool:
    start = f"args{step(name)}"
    return path == start or path.startswith((f"{start}.", f"{start}["))


def _read(field: Field) -> dict[str, Any]:
    text = field.value if field.kind == "text" else field.value.strip()
    if field.kind == "checkbox":
        return {field.name: field.is_checked}
    if not text:
        if field.is_required:
            more = f", or write {_EMPTY} for an empty text" if field.kind == "text" else ""
            raise Problem(f"Fill this in{more}.")
        return {}
    if field.kind == "text":
        return {field.name: "" if text == _EMPTY else text}
    value = _parsed(text, field)
    if field.kind == "select" and text not in field.choices:
        raise Problem("Choose one of the list.")
    if field.name != ARGS:
        return {field.name: value}
    if not isinstance(value, dict):
        raise Problem("This must be a JSON object: arguments by name, in braces.")
    return cast("dict[str, Any]", value)


def _parsed(text: str, field: Field) -> Any:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise Problem("This is JSON that is nested too deep.") from None
    except ValueError as error:
        problem = f"This is not {field.hint}." if field.kind == "number" else f"This is not JSON: {error}."
        raise Problem(problem) from None
    if field.kind == "number" and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise Problem(f"This is not {field.hint}.")
    return value


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")


# Options of the job

OPTIONS = (
    ("queue", "text", "empty: the queue of the task"),
    ("delay", "text", "such as 30s, 5m, 1h30m; empty: it may start at once"),
    ("priority", "number", "a whole number, higher runs first; empty: that of the task"),
    ("unique", "text", "no other job with the same key may be live; empty: none"),
    ("key", "text", "takes turns with jobs of other keys, and limits count it; empty: that of the task, or none"),
)


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    kind: str
    hint: str  # with what holds if it is left empty
    value: str = ""
    error: str = ""


def options(values: Mapping[str, str]) -> list[Option]:
    return [Option(name, kind, hint, values.get(name, "").strip()) for name, kind, hint in OPTIONS]


def read_options(given: list[Option]) -> tuple[dict[str, Any], list[Option]]:
    """The options as `acting.enqueue` takes them, and the fields with their errors."""
    found: dict[str, Any] = {}
    checked: list[Option] = []
    for option in given:
        try:
            if option.value:
                found[option.name] = _option(option)
            checked.append(option)
        except (Problem, ConfigError) as problem:
            checked.append(replace(option, error=str(problem)))
    return found, checked


def _option(option: Option) -> Any:
    if option.name == "queue":
        return check_name("queue", option.value)
    if option.name == "key":
        return label("key", option.value, KEY_CHARS)
    if option.name == "delay":
        us = duration_us(option.value)
        if us is None:
            raise Problem("This is no duration: write seconds, or 500ms, 30s, 5m, 1h30m, 7d.")
        return us / SECOND
    if option.name == "priority":
        try:
            return int(option.value)
        except ValueError:
            raise Problem("This is not a whole number.") from None
    return option.value

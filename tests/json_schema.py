"""Whether values are what docs/reference/json.schema.json says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

DOCUMENT = json.loads((Path(__file__).parents[1] / "docs" / "reference" / "json.schema.json").read_text())

_KINDS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def faults(schema: dict[str, Any], value: Any, path: str = "$") -> Iterator[str]:
    """Where a value is not what a schema says; a name that the schema does not have is one, too."""
    if "$ref" in schema:
        yield from faults(DOCUMENT["$defs"][schema["$ref"].removeprefix("#/$defs/")], value, path)
    kinds: Any = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_KINDS[kind](value) for kind in kinds):
        yield f"{path}: {value!r} is not {' or '.join(kinds)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        yield f"{path}: {value!r} is not {schema['const']!r}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{path}: {value!r} does not look like {schema['pattern']}"
    if "anyOf" in schema:
        each = [list(faults(option, value, path)) for option in schema["anyOf"]]
        if all(each):
            yield min(each, key=len)[0]
    if isinstance(value, list):
        for number, item in enumerate(cast("list[Any]", value)):
            yield from faults(schema.get("items", {}), item, f"{path}[{number}]")
    if isinstance(value, dict) and "type" in schema:
        yield from _faults_of_names(schema, cast("dict[str, Any]", value), path)


def _faults_of_names(schema: dict[str, Any], value: dict[str, Any], path: str) -> Iterator[str]:
    known: dict[str, Any] = schema.get("properties", {})
    yield from (f"{path}: no {name}" for name in schema.get("required", []) if name not in value)
    others = schema.get("additionalProperties", not known)
    for name, each in value.items():
        if name in known:
            yield from faults(known[name], each, f"{path}.{name}")
        elif others is False:
            yield f"{path}.{name} is not documented"
        elif isinstance(others, dict):
            yield from faults(cast("dict[str, Any]", others), each, f"{path}.{name}")

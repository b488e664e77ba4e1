"""Arguments as they are typed: ``k=v``, ``k:=json`` and ``--args JSON``.

``k=v`` is JSON if it reads as JSON, and text otherwise; where the task's parameter is a ``str`` it is always text, so
that a telephone number stays one. ``k:=json`` has to be JSON, which is for values that must not be taken for text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from dray.model.values import shown

if TYPE_CHECKING:
    from dray.task import Task


def arguments(words: Sequence[str], text: str | None, task: Task[..., Any] | None) -> dict[str, Any]:
    """The arguments by name that a command line gives."""
    given = {} if text is None else _object(text)
    texts = _text_parameters(task)
    for word in words:
        name, value = _pair(word, texts)
        if name in given:
            raise click.UsageError(f"{name} is given twice")
        given[name] = value
    return given


def _pair(word: str, texts: frozenset[str]) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    is_strict = name.endswith(":")
    name = name.removesuffix(":")
    if not equals or not name:
        raise click.UsageError(f"{shown(word)} is no argument; write name=value, or name:=JSON")
    if is_strict:
        return name, _json(value, name)
    if name in texts:
        return name, value
    try:
        return name, _json(value, name)
    except click.UsageError:
        return name, value


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise click.UsageError(f"{what} is JSON that is nested too deep") from None
    except ValueError as error:
        raise click.UsageError(f"{what} is not JSON: {error}") from None


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")


def _object(text: str) -> dict[str, Any]:
    value = _json(sys.stdin.read() if text == "-" else text, "--args")
    if not isinstance(value, Mapping):
        raise click.UsageError(f"--args must be a JSON object, arguments by name, not {shown(value)}")
    return dict(cast("Mapping[str, Any]", value))


def _text_parameters(task: Task[..., Any] | None) -> frozenset[str]:
    if task is None:
        return frozenset()
    parameters = task.signature.parameters.values()
    return frozenset(parameter.name for parameter in parameters if parameter.annotation in (str, "str"))

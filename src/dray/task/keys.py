"""The key of a job, by which it takes turns with others and is limited: made of its arguments when it is enqueued."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from dray import codec
from dray.convert.forms import hints
from dray.convert.write import to_json
from dray.errors import ConfigError, PayloadError
from dray.model.new_job import check_key
from dray.model.values import shown
from dray.task.signature import PARENT_RESULTS, is_context, parameters_of

KeyGiven: TypeAlias = str | Sequence[str] | Callable[..., str | int | None]


@dataclass(frozen=True, slots=True)
class KeyOption:
    """How the jobs of a task get their keys: from one or more arguments, or from a function of arguments."""

    task: str
    names: tuple[str, ...]
    defaults: Mapping[str, Any]  # of parameters that a call may leave out, as JSON
    function: Callable[..., Any] | None = None
    takes_all: bool = False  # the function takes any argument

    def of(self, text: str) -> str | None:
        """The key for these arguments, which are JSON text; None: the job has none."""
        key = self._made_of(text)
        if key is not None:
            try:
                check_key(key)
            except PayloadError as error:
                raise PayloadError("key", f"the key of a job of task {self.task} {error.problem}") from None
        return key

    def _made_of(self, text: str) -> str | None:
        args = {**self.defaults, **codec.decode_args(text)}
        given = args if self.takes_all else {name: args.get(name) for name in self.names}
        if self.function is None:
            parts = list(given.values())
            if any(part is None for part in parts):
                return None
            if len(parts) == 1:
                return self._text(parts[0])
            return ":".join(self._text(part).replace("\\", "\\\\").replace(":", "\\:") for part in parts)
        try:
            made = self.function(**given)
        except Exception as error:
            raise PayloadError("key", f"the key function of task {self.task} raised {error!r:.200}") from error
        return None if made is None else self._text(made)

    def _text(self, value: object) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        raise PayloadError(
            "key", f"the key of a job of task {self.task} must be text or a whole number, not {shown(value)}"
        )


def key_option(
    name: str, task: str, function: Callable[..., Any], value: Any, redacted: Collection[str] = ()
) -> KeyOption:
    """What `key=` of a task says, checked; the error says which arguments there are."""
    parameters = {each.name: each for each in parameters_of(function)}
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    annotated = hints(function)
    usable = {
        each: parameter
        for each, parameter in parameters.items()
        if parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        and each != PARENT_RESULTS
        and not is_context(annotated.get(each))
    }
    asked = _asked(name, value) if callable(value) else []
    takes_all = any(each.kind is each.VAR_KEYWORD for each in asked)
    named = tuple(each.name for each in asked if each.kind is not each.VAR_KEYWORD)
    names = named if callable(value) else _names(name, value)
    for each in names:
        if each not in usable and not (takes_any and each not in parameters):
            listed = ", ".join(usable) or "none"
            problem = "is not given by callers" if each in parameters else "is no argument of the task"
            raise ConfigError(f"{name}: {shown(each)} {problem}; its arguments are {listed}")
        if each in redacted and not callable(value):
            raise ConfigError(
                f"{name}: {shown(each)} is redacted, and keys are stored and shown as they are; make the key of "
                "another argument, or of a function that returns what may be seen, such as a digest"
            )
    defaults = {
        each: to_json(parameter.default, f"{name}: the default of {each}")
        for each, parameter in usable.items()
        if (takes_all or each in names) and parameter.default is not parameter.empty
    }
    return KeyOption(task, names, defaults, value if callable(value) else None, takes_all)


def _asked(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a key function, which is called with arguments of the task by name."""
    called = (function, getattr(function, "__call__", None))  # noqa: B004 - a class may have an async one
    if any(map(inspect.iscoroutinefunction, called)):
        raise ConfigError(
            f"{name}: the function is async, and a key is made while a job is enqueued; write a plain def"
        )
    try:
        parameters = parameters_of(function)
    except ValueError:
        raise ConfigError(
            f"{name}: the arguments of {shown(function)} are not known; write a function that names those of the "
            "task that it needs, as in key=lambda account: str(account)"
        ) from None
    unnamed = [each for each in parameters if each.kind in {each.POSITIONAL_ONLY, each.VAR_POSITIONAL}]
    if unnamed:
        raise ConfigError(
            f"{name}: {unnamed[0].name} of the function cannot be given by name, as arguments of the task are: "
            "write a function such as key=lambda account: str(account)"
        )
    return parameters


def _names(name: str, value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        raise TypeError(
            f"{name} must be the name of an argument, a list of such, or a function, not {type(value).__name__}"
        )
    for each in cast("Sequence[object]", names):
        if not isinstance(each, str):
            raise TypeError(f"{name} must hold names of arguments, and {shown(each)} is none")
    return tuple(cast("Sequence[str]", names))

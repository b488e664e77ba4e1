"""A function's parameters: how a call becomes the arguments in a row, and how these become a call again.

Stored are the arguments by name: those given by position too, ``*rest`` as a list under ``"*rest"``, ``**extra``
beside the others. Defaults are not stored, so that a changed default holds for jobs that wait already. What the
worker fills in (a Context, ``parent_results``) is not asked for.

Annotations are looked at when the first call comes, because they may name what is imported later.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cached_property
from inspect import Parameter
from typing import Any, Union, get_args, get_origin

from dray import codec
from dray.codec import step
from dray.convert.annotations import Reader, reader
from dray.convert.forms import hints
from dray.convert.write import AS_IS, to_json
from dray.errors import Misfit, PayloadError
from dray.model.bounds import ARGS_BYTES
from dray.model.values import shown
from dray.task.compiled import Part, Write, writer

if sys.version_info >= (3, 14):
    import annotationlib

PARENT_RESULTS = "parent_results"
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_SHOWN = 5  # names in one message
_CONTEXT = re.compile(r"(?:dray\.)?Context(?: *\| *None)?|(?:typing\.)?Optional\[(?:dray\.)?Context\]")


class Signature:
    """What one task's function takes; made once."""

    def __init__(self, function: Callable[..., Any], task: str) -> None:
        self.task = task
        self.parameters = {parameter.name: parameter for parameter in parameters_of(function)}
        self._function = function

    @cached_property
    def contexts(self) -> tuple[str, ...]:
        """The parameters that are filled with the worker's Context."""
        named = [name for name, parameter in self.parameters.items() if parameter.kind not in _VARIADIC]
        return tuple(name for name in named if is_context(self._hints.get(name)))

    @property
    def takes_parent_results(self) -> bool:
        """Whether the results of a job's parents are filled in."""
        found = self.parameters.get(PARENT_RESULTS)
        return found is not None and found.kind not in _VARIADIC

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The arguments of a call as a row holds them; checked as they will be when the job runs."""
        try:
            text = self._write(*args, **kwargs)
        except TypeError:  # no call of this function, mostly: `bind` says what is wrong
            text = None
        return codec.encode(self.bind(args, kwargs), limit=ARGS_BYTES) if text is None else text

    @cached_property
    def _write(self) -> Write:
        if self._names is None:
            return lambda *_, **__: None
        return writer([*self._callers.parameters.values()], self._hints, self._part)

    def _part(self, name: str) -> Part:
        return lambda value: codec.write_at_once(self._written_value(name, value), ARGS_BYTES)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call, by name and in JSON's types; checked as they will be when the job runs."""
        return self._written(self._bound(args, kwargs))

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            bound = self._callers.bind(*args, **kwargs)
        except TypeError as error:
            raise self._wrong_call(str(error)) from None
        named: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if name == self._extra:
                self._refuse_taken(value)
                named.update(value)
            else:
                named[self._key(name)] = value
        return named

    def fit(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments that are by name already, as a row or a schedule holds them; otherwise as `bind`."""
        problems = self._problems(args)
        if problems:
            raise self._wrong_call(problems)
        return self._written(dict(args))

    def arrange(
        self, args: Mapping[str, Any], *, context: Any = None, parent_results: Mapping[str, Any] | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """The call that the arguments in a row stand for, with what the worker fills in; `Misfit`: there is none."""
        is_plain = tuple(args) == self._plain_names  # all there are, in their order
        problems = "" if is_plain else self._problems(args)
        if problems:
            raise self._misfit(problems)
        try:
            values = self._values(args)
        except PayloadError as error:
            raise self._misfit(str(error)) from error
        except RecursionError:
            raise self._misfit("they are nested too deep") from None
        if is_plain:
            return [*values.values()], {}
        values.update(dict.fromkeys(self.contexts, context))
        if self._needs_parent_results or (self.takes_parent_results and parent_results is not None):
            values.setdefault(PARENT_RESULTS, parent_results or {})
        return self._call(values)

    def check_names(self, names: Iterable[str]) -> None:
        """Refuses names that no argument has."""
        unknown = [name for name in names if name not in self._readers]
        if unknown and self._extra is None:
            raise self._wrong_call(f"unknown {', '.join(map(shown, unknown))}")

    def decoded(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments in a row, by name, as a body gets them; with the defaults of those that are not there."""
        named = [self.parameters[name] for name in self._readers if name in self.parameters]
        defaults = {each.name: each.default for each in named if each.default is not Parameter.empty}
        return {**defaults, **self._values(args)}

    def with_context(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], context: Callable[[Mapping[str, Any]], Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """A plain call, with a Context, made for its arguments, where it gives none."""
        if not self.contexts or not kwargs.keys().isdisjoint(self.contexts):
            return args, kwargs
        if any(is_context(type(arg)) for arg in args):
            return args, kwargs
        try:
            bound = self._callers.bind(*args, **kwargs)
        except TypeError:  # one argument too many is a Context of the caller's; all else is for Python to say
            return args, kwargs
        given = {self._key(name): value for name, value in bound.arguments.items() if name != self._extra}
        given.update(bound.arguments.get(self._extra or "", {}))
        if self._needs_parent_results:
            given.setdefault(PARENT_RESULTS, {})
        return self._call(given | dict.fromkeys(self.contexts, context(given)))

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call of the function, by name, defaults too; without its Context."""
        bound = inspect.Signature([*self.parameters.values()]).bind(*args, **kwargs)
        bound.apply_defaults()
        found = {name: value for name, value in bound.arguments.items() if name not in self.contexts}
        found.update(found.pop(self._extra, {}) if self._extra else {})
        return found

    def result(self, value: Any) -> Any:
        """A result from a row as the function's annotation has it; as it is, where it does not fit."""
        read = self._result_reader
        try:
            return value if read is None else read(value, "result")
        except PayloadError:  # annotations promise nothing: the body returned something else, and ended well
            return value

    def takes(self, name: str) -> bool:
        """Whether a caller may give an argument of this name."""
        return name in self._callers.parameters or self._extra is not None

    @property
    def _needs_parent_results(self) -> bool:
        return self.takes_parent_results and self._is_bare(PARENT_RESULTS)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return hints(self._function)

    @cached_property
    def _result_reader(self) -> Reader | None:
        return reader(self._hints.get("return", Any))

    @cached_property
    def _callers(self) -> inspect.Signature:
        """What a caller may give. `parent_results` is an option by name, as no position could be left out."""
        given = [parameter for name, parameter in self.parameters.items() if name not in self.contexts]
        optional = [
            parameter.replace(kind=Parameter.KEYWORD_ONLY, default=None)
            if parameter.name == PARENT_RESULTS and self._needs_parent_results
            else parameter
            for parameter in given
        ]
        return inspect.Signature(sorted(optional, key=lambda parameter: parameter.kind))

    @cached_property
    def _names(self) -> tuple[str, ...] | None:
        """The parameters that may be given by position; None: some may not be given by name."""
        kinds = {name: parameter.kind for name, parameter in self._callers.parameters.items()}
        if not {*kinds.values()} <= {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}:
            return None
        return tuple(name for name, kind in kinds.items() if kind is Parameter.POSITIONAL_OR_KEYWORD)

    @cached_property
    def _plain_names(self) -> tuple[str, ...] | None:
        """All parameters, where each may be given by position and by name, and the caller gives them all."""
        names = tuple(self.parameters)
        return names if names == self._names and PARENT_RESULTS not in names else None

    @cached_property
    def _exact_types(self) -> dict[str, Set[type[Any]]]:
        """For arguments annotated with one of JSON's own types, or not at all: the types that need no conversion."""
        by_annotation = [(Any, AS_IS), *((kind, {kind}) for kind in AS_IS)]
        hinted = [(name, self._hints.get(name, Any)) for name in self._readers if name in self.parameters]
        return {name: kinds for name, hint in hinted for known, kinds in by_annotation if hint is known}

    @cached_property
    def _rest(self) -> str | None:
        return self._of_kind(Parameter.VAR_POSITIONAL)

    @cached_property
    def _extra(self) -> str | None:
        return self._of_kind(Parameter.VAR_KEYWORD)

    @cached_property
    def _readers(self) -> dict[str, Reader | None]:
        """What reads each stored argument; for those of ``**extra`` there is `_extra_reader`."""
        readers: dict[str, Reader | None] = {}
        for name, parameter in self.parameters.items():
            if name == self._rest:
                readers[self._key(name)] = reader(list[self._hints.get(name, Any)])
            elif name not in (self._extra, *self.contexts):
                read = reader(self._hints.get(name, Any))
                readers[name] = _or_none(read) if read and parameter.default is None else read
        return readers

    @cached_property
    def _paths(self) -> dict[str, str]:
        return {name: _path(name) for name in self._readers}

    @cached_property
    def _extra_reader(self) -> Reader | None:
        return reader(self._hints.get(self._extra or "", Any))

    @cached_property
    def _required(self) -> Set[str]:
        named = [name for name in self._readers if name in self.parameters and name != PARENT_RESULTS]
        return dict.fromkeys(name for name in named if self._is_bare(name)).keys()  # a set in their order

    def _problems(self, args: Mapping[str, Any]) -> str:
        if self._required <= args.keys() <= self._readers.keys():
            return ""
        missing = [name for name in self._required if name not in args]
        others = [name for name in args if name not in self._readers]
        unknown = others if self._extra is None else [name for name in others if name in self.contexts]
        found = {"missing": missing, "unknown": unknown}
        return "; ".join(f"{word} {', '.join(map(shown, names[:_SHOWN]))}" for word, names in found.items() if names)

    def _written(self, args: dict[str, Any]) -> dict[str, Any]:
        """The arguments in JSON's types. Raises now what a worker would raise later, far from the caller."""
        if self._extra is not None:  # names that are not known here may be anything
            args = to_json(args, "args")
            self._values(args)
            return args
        exact = self._exact_types
        for name, value in args.items():
            if type(value) not in exact.get(name, ()):  # written and read again, the others would be the same
                args[name] = self._written_value(name, value)
        return args

    def _written_value(self, name: str, value: Any) -> Any:
        path, read = self._paths[name], self._readers[name]
        written = to_json(value, path)
        if read is not None:
            read(written, path)
        return written

    def _values(self, args: Mapping[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        exact = self._exact_types
        for name, value in args.items():
            if type(value) in exact.get(name, ()):
                values[name] = value
                continue
            read = self._readers.get(name, self._extra_reader)
            values[name] = value if read is None else read(value, self._paths.get(name) or _path(name))
        return values

    def _call(self, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        keywords = dict(values)
        rest: list[Any] = keywords.pop(self._key(self._rest), []) if self._rest else []
        positional: list[Any] = []
        has_gap = False
        for name, parameter in self.parameters.items():
            if parameter.kind not in _BY_POSITION:
                break
            if name in keywords and not has_gap:
                positional.append(keywords.pop(name))
            elif rest or parameter.kind is Parameter.POSITIONAL_ONLY:
                positional.append(parameter.default)  # what comes after it cannot be given by name
            else:
                has_gap = True
        return [*positional, *rest], keywords

    def _refuse_taken(self, extra: Mapping[str, Any]) -> None:
        taken = next((name for name in extra if name in self._readers or name in self.contexts), None)
        if taken is not None:
            raise self._wrong_call(f"{taken!r} cannot be given by name")

    def _key(self, name: str) -> str:
        return f"*{name}" if name == self._rest else name

    def _is_bare(self, name: str) -> bool:
        return self.parameters[name].default is Parameter.empty

    def _of_kind(self, kind: Any) -> str | None:
        return next((name for name, parameter in self.parameters.items() if parameter.kind is kind), None)

    def _wrong_call(self, problem: str) -> TypeError:
        return TypeError(f"{self.task}: {problem}; its arguments are {usage(self._callers)}")

    def _misfit(self, problem: str) -> Misfit:
        return Misfit(
            f"the stored arguments do not fit the function of task {self.task} here: {problem}; its arguments are "
            f"{usage(self._callers)}. Deploy the code they were made for, or cancel the job"
        )


def _path(name: str) -> str:
    return f"args{step(name)}"


def _or_none(read: Reader) -> Reader:
    """For ``x: int = None``, as people write it."""
    return lambda value, path: None if value is None else read(value, path)


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """The parameters, in order, without a look at what they are annotated with."""
    if sys.version_info >= (3, 14):
        found = inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    else:
        found = inspect.signature(function)
    return list(found.parameters.values())


def is_context(annotation: Any) -> bool:
    """Whether an annotation is Dray's Context: the class, with or without None, or its name where it is not known.

    A name is not known if it is imported for type checkers only. A Context of another library would not be JSON.
    """
    if isinstance(annotation, type) and not get_args(annotation):
        return getattr(annotation, "__dray_context__", False) is True
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", None)
    if isinstance(text, str):
        return _CONTEXT.fullmatch(text) is not None
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        return is_context(get_args(annotation)[0])
    return (origin is Union or origin is types.UnionType) and any(map(is_context, get_args(annotation)))


def usage(signature: inspect.Signature) -> str:
    """The parameters by name, with dots for defaults, which may be long."""
    names = [
        parameter.replace(
            annotation=Parameter.empty,
            default=Parameter.empty if parameter.default is Parameter.empty else _DOTS,
        )
        for parameter in signature.parameters.values()
    ]
    return str(inspect.Signature(names))


class _Dots:
    def __repr__(self) -> str:
        return "…"


_DOTS = _Dots()

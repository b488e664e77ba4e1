"""What an annotation means: compiled once, it turns JSON values into its type or says where they do not fit. Its JSON
Schema says the same: for forms, for people, for other programs.

A schema is ``{}``, which allows everything, for an annotation that is not in the table of this package or cannot be
resolved. A class or an alias that may hold itself stands once, under ``$defs``.
"""

from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum, Flag
from functools import cache, cached_property
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

from dray.codec import refusal, shorten, step
from dray.convert import forms
from dray.convert.write import AS_IS, to_json
from dray.errors import PayloadError
from dray.wording import counted

Reader: TypeAlias = Callable[[Any, str], Any]
Schema: TypeAlias = dict[str, Any]

_SHOWN = 5  # problems in one message
_FLAGS_DROP_BITS = sys.version_info < (3, 11, 4)  # unless told otherwise: Right(8) would be Right(0)
_NEVER_CONVERTED: frozenset[Any] = frozenset((bool, int, float, type(None)))
_UNKNOWN: Schema = {}
_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
}
_OF_SOURCES: dict[tuple[type[Any], ...], Any] = {
    (str,): "string",
    (int, float): "number",
    (str, int, float): ["string", "number"],
}


def reader(annotation: Any) -> Reader | None:
    """A function that turns JSON values into the annotated type or raises `PayloadError`; None: none is needed."""
    annotation = type(None) if annotation is None else annotation
    kind = forms.kind_of(annotation)
    return next((make(annotation) for fits, make, _ in _MAKERS if fits(kind)), None)


def _first(annotation: Any) -> Any:
    """What stands first in its brackets."""
    return next(iter(get_args(annotation)), Any)


def _among(kinds: Iterable[Any], members: Sequence[Any]) -> set[Any]:
    """Not an intersection: an annotation may hold what cannot be hashed."""
    return {kind for kind in kinds if any(kind is member for member in members)}


def _alias(annotation: Any) -> Reader:
    """The reader is made at first use: ``type Tree = list[Tree]`` names itself."""
    made = cache(lambda: reader(annotation.__value__))
    return lambda value, path: value if (read := made()) is None else read(value, path)


def _union(annotation: Any) -> Reader:
    """The first member that can read the value reads it. A value whose own type is a member stays as it is.

    Text is the exception: ``UUID | str`` reads a UUID where it can, and ``str | UUID`` never does.
    """
    members = get_args(annotation)
    exact = _among(_NEVER_CONVERTED, members)
    readers = [reader(member) for member in members]
    known = [read for read in readers if read is not None]

    def read(value: Any, path: str) -> Any:
        if type(value) in exact:
            return value
        for each in known:
            try:
                return each(value, path)
            except PayloadError:
                continue
        if len(known) < len(readers):
            return value
        raise forms.misfit(path, forms.name_of(annotation), value)

    return read


def _choices(annotation: Any) -> list[tuple[Any, Any]]:
    """The members of a Literal or an Enum, each as it is written; one that cannot be written never comes back."""
    is_literal = get_origin(annotation) is Literal
    pairs = ((each, each) if is_literal else (each.value, each) for each in get_args(annotation) or annotation)
    choices: list[tuple[Any, Any]] = []
    for value, member in pairs:
        with suppress(PayloadError):
            choices.append((to_json(value, "a choice"), member))
    return choices


def _choice(annotation: Any) -> Reader:
    choices = _choices(annotation)

    def read(value: Any, path: str) -> Any:
        for written, member in choices:
            if written == value and type(written) is type(value):  # True equals 1
                return member
        raise refusal(path, f"expected one of {forms.name_of(annotation)}, got something else")

    return read


def _flag(kind: type[Flag]) -> Reader:
    def read(value: Any, path: str) -> Any:
        if type(value) is not int:
            raise forms.misfit(path, kind.__name__, value)
        made: object = None
        with suppress(ValueError):
            made = kind(value)
        if made is None or (_FLAGS_DROP_BITS and getattr(made, "value", made) != value):
            raise refusal(path, f"expected the sum of values of {kind.__name__}, got another number")
        return made

    return read


def _same(kind: type[Any]) -> Reader:
    def read(value: Any, path: str) -> Any:
        if type(value) is kind:
            return value
        raise forms.misfit(path, "null" if kind is type(None) else kind.__name__, value)

    return read


def _float(annotation: Any) -> Reader:  # noqa: ARG001 - every maker is called so
    def read(value: Any, path: str) -> float:
        if type(value) is float:
            return value
        if type(value) is not int:
            raise forms.misfit(path, "float", value)
        try:
            return float(value)
        except OverflowError:
            raise refusal(path, "this int is too large for a float") from None

    return read


def _formed(kind: type[Any]) -> Reader:
    form = forms.form_of(kind)
    assert form is not None
    expected = f"{kind.__name__} ({form.example})"

    def read(value: Any, path: str) -> Any:
        if type(value) not in form.sources:
            raise forms.misfit(path, expected, value)
        try:
            return form.read(kind, value)
        except (ValueError, ArithmeticError):
            raise refusal(path, f"expected {expected}, got something else") from None

    return read


def _collection(annotation: Any) -> Reader:
    build, item = forms.COLLECTIONS[forms.kind_of(annotation)], reader(_first(annotation))
    exact = _among(AS_IS, get_args(annotation))  # such items stay as they are

    def read(value: Any, path: str) -> Any:
        items = forms.exactly(list, value, path, annotation)
        if item is not None and not exact.issuperset(map(forms.type_of, items)):
            items = [item(each, f"{path}[{index}]") for index, each in enumerate(items)]
        try:
            return items if build is list else build(items)
        except TypeError:
            raise refusal(path, f"a {build.__name__} cannot hold such items; annotate it as a list") from None

    return read


def _tuple(annotation: Any) -> Reader:
    args = get_args(annotation)
    if not args or args[-1] is Ellipsis:
        items = _collection(list[_first(annotation)])
        return lambda value, path: tuple(items(value, path))
    readers = [reader(arg) for arg in args]

    def read(value: Any, path: str) -> Any:
        items = forms.exactly(list, value, path, annotation)
        if len(items) != len(readers):
            raise refusal(path, f"expected {counted(len(readers), 'item')}, got {len(items)}")
        return tuple(
            item if each is None else each(item, f"{path}[{index}]")
            for index, (item, each) in enumerate(zip(items, readers, strict=True))
        )

    return read


def _dict(annotation: Any) -> Reader:
    read_key, read_item = (reader(arg) for arg in get_args(annotation) or (Any, Any))

    def read(value: Any, path: str) -> Any:
        return {
            key if read_key is None else read_key(key, f"{path} (a key)"): (
                item if read_item is None else read_item(item, f"{path}{step(key)}")
            )
            for key, item in forms.exactly(dict, value, path, annotation).items()
        }

    return read


@cache
def _record(kind: Any) -> Reader:
    """The reader of a class with named fields. There is one for each class, so that a class can hold itself."""
    return _named_tuple(kind) if forms.is_named_tuple(kind) else _Record(kind)


class _Record:
    """Looks at the fields when the first value comes: they may name classes that did not exist before."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        # A typed dict may hold keys that it does not name; a dataclass cannot.
        self._is_open = typing.is_typeddict(kind)

    def __call__(self, value: Any, path: str) -> Any:
        given = forms.exactly(dict, value, path, self._kind)
        required = [name for name, field in self._fields.items() if field.is_required]
        problems = [f"{name!r} is missing" for name in required if name not in given]
        if not self._is_open:
            problems += [f"{shorten(name)!r} is not known" for name in given if name not in self._fields]
        if problems:
            raise refusal(path, f"not a {self._kind.__name__}: {', '.join(problems[:_SHOWN])}")
        fields = dict(given)
        for name in given:
            if (read := self._readers.get(name)) is not None:
                fields[name] = read(given[name], f"{path}{step(name)}")
        try:
            return self._kind(**fields)
        except (TypeError, ValueError) as error:
            raise refusal(path, f"{self._kind.__name__} refused it: {error}") from None

    @cached_property
    def _fields(self) -> dict[str, forms.Field]:
        return forms.fields_of(self._kind)

    @cached_property
    def _readers(self) -> dict[str, Reader | None]:
        return {name: reader(field.hint) for name, field in self._fields.items()}


def _named_tuple(kind: Any) -> Reader:
    """The reader of a list of its fields, of which the last may be left to their defaults."""
    read_fields = _Record(kind)

    def read(value: Any, path: str) -> Any:
        items = forms.exactly(list, value, path, kind)
        if len(items) > len(kind._fields):
            raise refusal(path, f"expected {counted(len(kind._fields), 'item')}, got {len(items)}")
        return read_fields(dict(zip(kind._fields, items, strict=False)), path)

    return read


def _model(kind: Any) -> Reader:
    def read(value: Any, path: str) -> Any:
        try:
            # From JSON, not from Python's values: a strict model reads a date only from JSON.
            return kind.model_validate_json(json.dumps(value))
        except ValueError as error:
            raise refusal(path, f"not a {kind.__name__}: {_what_failed(error)}") from None

    return read


def _what_failed(error: Any) -> str:
    if not hasattr(error, "errors"):
        return str(error)
    # The error's own text would show the values.
    found: list[dict[str, Any]] = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found[:_SHOWN])


def _struct(annotation: Any) -> Reader:
    msgspec: Any = sys.modules["msgspec"]

    def read(value: Any, path: str) -> Any:
        try:
            return msgspec.convert(value, annotation, str_keys=True)
        except msgspec.ValidationError as error:
            raise refusal(path, f"not a {annotation.__name__}: {error}") from None

    return read


class Schemas:
    """Makes schemas that share one list of definitions."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}
        self._names: dict[Any, str] = {}

    def of(self, annotation: Any) -> Schema:
        """The schema of one annotation; it may refer to `definitions`."""
        annotation = type(None) if annotation is None else annotation
        kind = forms.kind_of(annotation)
        return next((make(self, annotation) for fits, _, make in _MAKERS if fits(kind)), _UNKNOWN)

    def named(self, thing: Any, make: Callable[[], Schema]) -> Schema:
        """A reference to a definition, which may refer to itself."""
        if thing not in self._names:
            name = thing.__name__
            while name in self.definitions:  # another module's class of the same name
                name += "_"
            self._names[thing] = name
            self.definitions[name] = {}
            self.definitions[name] = make()
        return {"$ref": f"#/$defs/{self._names[thing]}"}

    def foreign(self, made: Schema) -> Schema:
        """Another library's schema, its definitions added to ours; ``{}`` if two definitions share a name."""
        theirs: dict[str, Schema] = made.pop("$defs", {})
        if any(self.definitions.get(name, schema) != schema for name, schema in theirs.items()):
            return {}
        self.definitions.update(theirs)
        return made


def _union_schema(schemas: Schemas, annotation: Any) -> Schema:
    members = [schemas.of(member) for member in get_args(annotation)]
    return {"anyOf": members} if all(members) else {}


def _choice_schema(_: Schemas, annotation: Any) -> Schema:
    return {"enum": [written for written, _ in _choices(annotation)]}


def _tuple_schema(schemas: Schemas, annotation: Any) -> Schema:
    args = get_args(annotation)
    if not args or args[-1] is Ellipsis:
        return _collection_schema(schemas, annotation)
    items = [schemas.of(arg) for arg in args]
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


def _dict_schema(schemas: Schemas, annotation: Any) -> Schema:
    args = get_args(annotation)
    return {"type": "object", "additionalProperties": schemas.of(args[1] if len(args) > 1 else Any)}


def _collection_schema(schemas: Schemas, annotation: Any) -> Schema:
    return {"type": "array", "items": schemas.of(_first(annotation))}


def _record_schema(schemas: Schemas, annotation: Any) -> Schema:
    kind = forms.kind_of(annotation)
    return schemas.named(kind, lambda: _fields(schemas, kind))


def _fields(schemas: Schemas, kind: Any) -> Schema:
    fields = forms.fields_of(kind)
    properties = {name: schemas.of(field.hint) for name, field in fields.items()}
    required = [name for name, field in fields.items() if field.is_required]
    if forms.is_named_tuple(kind):
        items = [*properties.values()]
        return {"type": "array", "prefixItems": items, "minItems": len(required), "maxItems": len(items)}
    made: Schema = {"type": "object", "properties": properties, "required": required}
    return made if typing.is_typeddict(kind) else {**made, "additionalProperties": False}


def _model_schema(schemas: Schemas, annotation: Any) -> Schema:
    try:
        return schemas.foreign(annotation.model_json_schema())
    except Exception:  # noqa: BLE001 - a model's own code may raise anything
        return {}


def _formed_schema(_: Schemas, annotation: Any) -> Schema:
    form = forms.form_of(annotation)
    return {} if form is None else {"type": _OF_SOURCES[form.sources], **form.schema}


# The first entry that fits a kind counts. A kind is an annotation without what stands in its brackets.
_Maker: TypeAlias = tuple[Callable[[Any], bool], Callable[[Any], Reader | None], Callable[[Schemas, Any], Schema]]
_MAKERS: tuple[_Maker, ...] = (
    (lambda kind: kind in forms.WRAPPERS, lambda of: reader(_first(of)), lambda made, of: made.of(_first(of))),
    (lambda kind: kind is Union or kind is types.UnionType, _union, _union_schema),
    (lambda kind: kind is Literal, _choice, _choice_schema),
    (
        lambda kind: hasattr(kind, "__supertype__"),
        lambda new_type: reader(new_type.__supertype__),
        lambda made, new_type: made.of(new_type.__supertype__),
    ),
    (
        lambda kind: type(kind).__name__ == "TypeAliasType",
        _alias,
        lambda made, each: made.named(each, lambda: made.of(each.__value__)),
    ),
    (lambda kind: kind in forms.MAPPINGS, _dict, _dict_schema),
    (lambda kind: kind is tuple, _tuple, _tuple_schema),
    (lambda kind: kind is float, _float, lambda _, kind: _PLAIN[kind]),
    (lambda kind: isinstance(kind, type) and kind in forms.COLLECTIONS, _collection, _collection_schema),
    (lambda kind: kind in (str, int, bool, type(None)), _same, lambda _, kind: _PLAIN[kind]),
    (lambda kind: forms.is_class(kind, Flag), _flag, lambda _, __: {"type": "integer"}),
    (lambda kind: forms.is_class(kind, Enum), _choice, _choice_schema),
    (forms.is_model, _model, _model_schema),
    (forms.is_struct, _struct, lambda _, __: _UNKNOWN),  # msgspec may be told to write it as a list
    (forms.is_record, lambda annotation: _record(forms.kind_of(annotation)), _record_schema),
    (lambda kind: isinstance(kind, type) and forms.form_of(kind) is not None, _formed, _formed_schema),
)

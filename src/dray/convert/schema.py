"""JSON Schema of what `reader` takes for an annotation: for forms, for people, for other programs.

It is ``{}``, which allows everything, for an annotation that is not in the table of this package or cannot be
resolved. A class or an alias that may hold itself stands once, under ``$defs``.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable
from enum import Enum, Flag
from typing import Any, Literal, TypeAlias, Union, get_args

from dray.convert import forms
from dray.convert.write import to_json
from dray.errors import PayloadError

Schema: TypeAlias = dict[str, Any]

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


class Schemas:
    """Makes schemas that share one list of definitions."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}
        self._names: dict[Any, str] = {}

    def of(self, annotation: Any) -> Schema:
        """The schema of one annotation; it may refer to `definitions`."""
        annotation = type(None) if annotation is None else annotation
        kind = forms.kind_of(annotation)
        return next((make(self, annotation) for fits, make in _MAKERS if fits(kind)), _UNKNOWN)

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


def _inner(schemas: Schemas, annotation: Any) -> Schema:
    return schemas.of(next(iter(get_args(annotation)), Any))


def _union(schemas: Schemas, annotation: Any) -> Schema:
    members = [schemas.of(member) for member in get_args(annotation)]
    return {"anyOf": members} if all(members) else {}


def _choice(values: Iterable[Any]) -> Schema:
    written: list[Any] = []
    for value in values:
        try:
            written.append(to_json(value, "a choice"))
        except PayloadError:  # no stored value can be this one
            continue
    return {"enum": written}


def _tuple(schemas: Schemas, annotation: Any) -> Schema:
    args = get_args(annotation)
    if not args or args[-1] is Ellipsis:
        return {"type": "array", "items": schemas.of(args[0] if args else Any)}
    items = [schemas.of(arg) for arg in args]
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


def _object(schemas: Schemas, annotation: Any) -> Schema:
    args = get_args(annotation)
    return {"type": "object", "additionalProperties": schemas.of(args[1] if len(args) > 1 else Any)}


def _list(schemas: Schemas, annotation: Any) -> Schema:
    return {"type": "array", "items": _inner(schemas, annotation)}


def _record(schemas: Schemas, annotation: Any) -> Schema:
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


def _alias(schemas: Schemas, annotation: Any) -> Schema:
    return schemas.named(annotation, lambda: schemas.of(annotation.__value__))


def _model(schemas: Schemas, annotation: Any) -> Schema:
    try:
        return schemas.foreign(annotation.model_json_schema())
    except Exception:  # noqa: BLE001 - a model's own code may raise anything
        return {}


def _form(_: Schemas, annotation: Any) -> Schema:
    form = forms.form_of(annotation)
    return {} if form is None else {"type": _OF_SOURCES[form.sources], **form.schema}


# In the order of the table in `read`.
_MAKERS: tuple[tuple[Callable[[Any], bool], Callable[[Schemas, Any], Schema]], ...] = (
    (lambda kind: kind in forms.WRAPPERS, _inner),
    (lambda kind: kind is Union or kind is types.UnionType, _union),
    (lambda kind: kind is Literal, lambda _, annotation: _choice(get_args(annotation))),
    (lambda kind: hasattr(kind, "__supertype__"), lambda schemas, annotation: schemas.of(annotation.__supertype__)),
    (lambda kind: type(kind).__name__ == "TypeAliasType", _alias),
    (lambda kind: kind in forms.MAPPINGS, _object),
    (lambda kind: kind is tuple, _tuple),
    (lambda kind: isinstance(kind, type) and kind in forms.COLLECTIONS, _list),
    (lambda kind: isinstance(kind, type) and kind in _PLAIN, lambda _, annotation: _PLAIN[annotation]),
    (lambda kind: forms.is_class(kind, Flag), lambda _, __: {"type": "integer"}),
    (lambda kind: forms.is_class(kind, Enum), lambda _, annotation: _choice(member.value for member in annotation)),
    (forms.is_model, _model),
    (forms.is_struct, lambda _, __: _UNKNOWN),  # msgspec may be told to write it as a list
    (forms.is_record, _record),
    (lambda kind: isinstance(kind, type), _form),
)

"""What can be seen of a function's parameters from outside, without resolving what they are annotated with."""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable
from inspect import Parameter
from typing import Any, Union, get_args, get_origin

if sys.version_info >= (3, 14):
    import annotationlib


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """The parameters, in order, without a look at what they are annotated with."""
    if sys.version_info >= (3, 14):
        found = inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    else:
        found = inspect.signature(function)
    return list(found.parameters.values())


def is_context(annotation: Any) -> bool:
    """Whether an annotation is Dray's Context: the class, with or without None, or its name where it is not known.

    A name is not known if it is imported for type checkers only. A Context of somebody else's would not be JSON.
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


_CONTEXT = re.compile(r"(?:dray\.)?Context(?: *\| *None)?|(?:typing\.)?Optional\[(?:dray\.)?Context\]")


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

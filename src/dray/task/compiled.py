"""Compiles, once per task, a function that binds, checks and encodes a call in one pass.

For ``def send(order: int, to: str, lines: list[int], note: str = "")`` it is, but for longer names:

    def write(order, to, lines, note=left_out):
        if type(order) is not int or not -9223372036854775808 <= order < 9223372036854775808: return None
        if type(to) is not str or len(to) > 262144: return None
        lines = part_2(lines)
        if lines is None: return None
        text = f',"order":{order},"to":{quote(to)},"lines":{lines}'
        if note is not left_out:
            if type(note) is not str or len(note) > 262144: return None
            text += f',"note":{quote(note)}'
        return admit(f"{{{text[1:]}}}", 262144)

Python itself binds the call. The function returns None for every value that it does not know to be as annotated, and
storable as it is: `Signature` then takes the slow way, which converts the value or says what is wrong with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter
from typing import Any, cast, get_args, get_origin

from dray import codec
from dray.model.bounds import ARGS_BYTES

Write = Callable[..., str | None]
Part = Callable[[Any], str | None]  # writes one argument; None: not this way

_OURS = "dray__"  # begins the names that the generated code uses beside the parameters'
_BOUND = 1 << 63  # of ints: of larger ones the digits have to be counted
_MOST_ITEMS = 10_000  # in a list that is written before its size is known

# For each type: which values are not written this way, and how the others are.
_SCALARS: dict[Any, tuple[str, str]] = {
    int: (f"{_OURS}type({{0}}) is not {_OURS}int or not -{_BOUND} <= {{0}} < {_BOUND}", "{{{0}}}"),
    str: (f"{_OURS}type({{0}}) is not {_OURS}str or {_OURS}len({{0}}) > {ARGS_BYTES}", "{{dray__quote({0})}}"),
    float: (f"{_OURS}type({{0}}) is not {_OURS}float or not {_OURS}is_finite({{0}})", "{{{0}!r}}"),
    bool: ("{0} is not True and {0} is not False", '{{"true" if {0} else "false"}}'),
}


def writer(parameters: Sequence[Parameter], hints: Mapping[str, Any], part_of: Callable[[str], Part]) -> Write:
    """The function for these parameters, each of which can be given by name.

    `part_of` returns what writes a parameter that is annotated with anything but a number, a string, a bool or a list
    of these.
    """
    if any(parameter.name.startswith(_OURS) for parameter in parameters):
        return lambda *_, **__: None
    lines = [f"def {_OURS}write({_heading(parameters)}):", f"    {_OURS}text = ''"]
    parts: dict[str, Part] = {}
    for parameter in parameters:
        name, hint = parameter.name, hints.get(parameter.name, Any)
        is_optional = parameter.default is not Parameter.empty
        indent = " " * (8 if is_optional else 4)
        if is_optional:
            lines.append(f"    if {name} is not {_OURS}left_out:")
        if hint in _SCALARS:
            check, text = (template.format(name) for template in _SCALARS[hint])
        else:
            parts[f"{_OURS}part_{name}"] = _list_part(hint) or part_of(name)
            lines.append(f"{indent}{name} = {_OURS}part_{name}({name})")
            check, text = f"{name} is None", f"{{{name}}}"
        lines.append(f"{indent}if {check}: return None")
        lines.append(f"{indent}{_OURS}text += f',\"{name}\":{text}'")
    lines.append(f"    return {_OURS}admit(f'{{{{{{{_OURS}text[1:]}}}}}}', {ARGS_BYTES})")
    names: dict[str, Any] = {**_HELPERS, **parts}
    exec("\n".join(lines), names)  # noqa: S102 - of the user's there are names of parameters in it, nothing else
    return names[f"{_OURS}write"]


def _heading(parameters: Iterable[Parameter]) -> str:
    words: list[str] = []
    for parameter in parameters:
        if parameter.kind is Parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        words.append(parameter.name if parameter.default is Parameter.empty else f"{parameter.name}={_OURS}left_out")
    return ", ".join(words)


def _list_part(hint: Any) -> Part | None:
    """What writes a list of numbers, strings or bools; None: the annotation is another."""
    if get_origin(hint) is not list or get_args(hint)[0] not in _SCALARS:
        return None
    (kind,) = get_args(hint)
    only, (are_fine, write) = frozenset((kind,)), _ITEMS[kind]

    def part(value: Any) -> str | None:
        if type(value) is not list:
            return None
        items = cast("list[Any]", value)
        if len(items) > _MOST_ITEMS or not only.issuperset(map(type, items)) or not are_fine(items):
            return None
        return f"[{','.join(map(write, items))}]"

    return part


def _are_short_ints(items: list[int]) -> bool:
    return not items or (min(items) >= -_BOUND and max(items) < _BOUND)


def _are_short_strings(items: list[str]) -> bool:
    return sum(map(len, items)) <= ARGS_BYTES


# For each type: whether a list of it can be written this way, and how its items are.
_ITEMS: dict[Any, tuple[Callable[[list[Any]], bool], Callable[[Any], str]]] = {
    int: (_are_short_ints, int.__repr__),
    str: (_are_short_strings, codec.quote),
    float: (lambda items: all(map(math.isfinite, items)), float.__repr__),
    bool: (lambda _: True, lambda item: "true" if item else "false"),
}


_HELPERS: dict[str, Any] = {
    f"{_OURS}{name}": helper
    for name, helper in {
        "type": type,
        "len": len,
        "int": int,
        "str": str,
        "float": float,
        "is_finite": math.isfinite,
        "quote": codec.quote,
        "admit": codec.admit,
        "left_out": object(),
    }.items()
}

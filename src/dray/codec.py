"""The JSON edge: arguments and results become text here, and text becomes values again.

`convert.to_json` makes JSON's types of Python's; what is accepted here reads back equal. What no database or worker
could read is refused, with its path, before anything is written: NaN, NUL, half a character, too deep, too large.

Most values are fine, so `encode` checks them quickly and lets the C encoder do the rest; only suspicious ones are
walked slowly, to find the path. Both walks count the fewest bytes that the text can have. They stop before a gigabyte
of text is written out, or a list that holds another one twice, a hundred levels deep.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final, cast

from dray.errors import PayloadError, PayloadTooLarge

MAX_DEPTH: Final = 100
MAX_DIGITS: Final = 4_300  # Python refuses to read longer numbers

_LEEWAY = 4  # the text is built up to this multiple of the limit, so that the error can say its exact size
_INT64 = 1 << 63
_TOO_LONG = 10**MAX_DIGITS
_SCALARS = frozenset((float, bool, type(None)))
_type_of: Callable[[Any], type[Any]] = type

_write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode
quote = json.encoder.encode_basestring  # a string as JSON, as `_write` writes it


def encode(value: Any, *, path: str = "args", limit: int) -> str:
    """What `to_json` returned, as compact JSON of at most ``limit`` bytes; or a `PayloadError` with the path."""
    text, size = _written_at_once(value, limit) or _written_with_care(value, path, limit)
    if size > limit:
        raise _too_large(path, f"{size:,}", limit)
    return text


def decode(text: str, *, path: str = "args") -> Any:
    """The values in JSON text, which may come from another program."""
    try:
        return _read(text)
    except RecursionError:
        raise PayloadError(path, "the stored JSON is nested too deep to be read") from None
    except ValueError as error:
        raise PayloadError(path, f"the stored text is not JSON that can be read: {error}") from None


def decode_args(text: str) -> dict[str, Any]:
    """Arguments by name, as `decode`; what is stored may be another JSON value, written by hand."""
    args = decode(text)
    if not isinstance(args, dict):
        raise PayloadError("args", f"expected an object of arguments by name, got {type(args).__name__}")
    return cast("dict[str, Any]", args)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    # float("1e400") is infinity without a word, and infinity could not be stored again.
    number = float(digits)
    if math.isinf(number):
        raise ValueError("a number is too large for a float")
    return number


_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def _read(text: str) -> Any:
    try:
        value, end = _decoder.raw_decode(text)
    except ValueError:
        value, end = None, -1
    # The latter: with space around it, or no JSON. It knows, and takes longer.
    return value if end == len(text) else _decoder.decode(text)


def write_at_once(value: Any, limit: int) -> str | None:
    """What `to_json` returned, as JSON text that has to pass `admit`; None: it has to be written with care."""
    try:
        return _write(value) if _is_plain(value, _LEEWAY * limit) else None
    except ValueError:  # NaN, an infinity, a number with too many digits
        return None


def admit(text: str, limit: int) -> str | None:
    """JSON text that can be stored as it is; None: it has to be written with care, or to be refused."""
    if text.isascii() and len(text) <= limit and "\\u0000" not in text:
        return text  # most are such
    size = _size(text)
    return None if size is None or size > limit else text


def _written_at_once(value: Any, limit: int) -> tuple[str, int] | None:
    """The text and its size, or None if anything at all is suspicious."""
    text = write_at_once(value, limit)
    size = None if text is None else _size(text)
    return None if text is None or size is None else (text, size)


def _size(text: str) -> int | None:
    """In bytes; None: no database can store it."""
    # NUL is the one character that is written so, but a backslash before "u0000" looks the same.
    if "\\u0000" in text:
        return None
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:  # a lone surrogate
        return None


def _written_with_care(value: Any, path: str, limit: int) -> tuple[str, int]:
    _Search(path, limit).visit(value, path)
    try:
        text = _write(value)
    except ValueError as error:  # sys.set_int_max_str_digits() allows less than MAX_DIGITS
        raise PayloadError(path, f"cannot be written as JSON: {error}") from None
    return text, len(text.encode())


def _is_plain(value: Any, room: int) -> bool:  # noqa: PLR0911, PLR0912 - one flat loop, for speed
    """Whether there are only exact JSON types, less than 100 deep, that may fit into ``room`` bytes."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            kind = _type_of(item)
            if kind is str:
                room -= len(item)
            elif kind is int:
                if not -_INT64 <= item < _INT64:  # its length in digits matters
                    return False
            elif kind is dict:
                room -= 5 * len(item)
                if room < 0:
                    return False
                for key in item:
                    if type(key) is not str:
                        return False
                    room -= len(key)
                inner += item.values()
            elif kind is list or kind is tuple:
                room -= 2 * len(item)
                if room < 0:
                    return False
                inner += item
            elif kind not in _SCALARS:
                return False
        if not inner:
            return room >= 0
        level = inner
    return False


class _Search:
    """Walks a value to what cannot be stored of it, and raises the error that names the path to that."""

    def __init__(self, path: str, limit: int) -> None:
        self._root = path
        self._limit = limit
        self._spent = 0

    def visit(self, value: Any, path: str, depth: int = 0) -> None:
        if isinstance(value, str):
            self._spend(len(value), path)
            _check_text(value, path)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise refusal(path, f"{value} is not JSON; use None, or the text {str(value)!r}")
        elif isinstance(value, int):
            if not -_TOO_LONG < value < _TOO_LONG:
                raise refusal(path, f"an int of more than {MAX_DIGITS:,} digits; pass hex(value)")
            self._spend(value.bit_length() // 4, path)
        elif value is not None:
            if depth == MAX_DEPTH:
                raise too_deep(path)
            self._visit_items(value, path, depth + 1)

    def _visit_items(self, items: Any, path: str, depth: int) -> None:
        is_dict = issubclass(type(items), dict)
        self._spend((5 if is_dict else 2) * len(items), path)
        if not is_dict:
            for index, item in enumerate(items):
                self.visit(item, f"{path}[{index}]", depth)
            return
        for key, item in items.items():
            self.visit(key, f"{path} (a key)")
            self.visit(item, f"{path}{step(key)}", depth)

    def _spend(self, size: int, path: str) -> None:
        self._spent += size
        if size > _LEEWAY * self._limit:
            raise _too_large(path, f"at least {size:,}", self._limit)
        if self._spent > _LEEWAY * self._limit:
            raise _too_large(self._root, f"at least {self._spent:,}", self._limit)


def _check_text(text: str, path: str) -> None:
    at = text.find("\0")
    if at >= 0:
        raise refusal(path, f"NUL at position {at:,}, which PostgreSQL cannot store; remove it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"{text[error.start]!a} at position {error.start:,} is half a character, not text"
        raise refusal(path, f"{found}; decode the bytes it came from with errors='replace'") from None


def refusal(path: str, problem: str) -> PayloadError:
    """The error, with a path that fits on a line."""
    shown = path if len(path) <= 200 else f"{path[:100]}…{path[-99:]}"
    return PayloadError(shown, problem)


def too_deep(path: str) -> PayloadError:
    return refusal(path, f"nested more than {MAX_DEPTH} deep; flatten it, or store it elsewhere")


def _too_large(path: str, size: str, limit: int) -> PayloadTooLarge:
    advice = "store the data elsewhere and pass a reference"
    return PayloadTooLarge(path, f"{size} bytes of JSON, over the limit of {limit:,}; {advice}")


def step(key: str) -> str:
    """The path from an object to what it holds under this key: ``.key``, or ``["any key"]``."""
    shown = shorten(key)
    if shown.isidentifier():
        return f".{shown}"
    return f"[{json.dumps(shown, ensure_ascii=not shown.isprintable())}]"


def shorten(key: str) -> str:
    """A key as far as a message shows it."""
    return key if len(key) <= 40 else f"{key[:39]}…"

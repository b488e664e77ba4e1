"""Headers: strings by name that a producer stores with a job, for the worker that runs it. Kept as a JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from dray.errors import ConfigError, PayloadError, PayloadTooLarge
from dray.model.bounds import HEADER_CHARS, HEADERS, HEADERS_BYTES
from dray.model.values import shown


def encode_headers(name: str, given: Any) -> str | None:
    """The headers as a row holds them, checked; None: there are none."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must be a dict of strings by name, not {type(given).__name__}")
    headers = cast("Mapping[Any, Any]", given)
    if len(headers) > HEADERS:
        raise ConfigError(f"{name}: a job has at most {HEADERS} headers, not {len(headers)}")
    for key, value in headers.items():
        path = f"{name}[{shown(key)}]"
        if not isinstance(key, str) or not isinstance(value, str):
            kind = type(value if isinstance(key, str) else key).__name__
            raise TypeError(f"{path}: names and values of headers are strings, not {kind}; use str(…)")
        if not 1 <= len(key) <= HEADER_CHARS:
            raise PayloadError(path, f"a header's name must have 1 to {HEADER_CHARS} characters, not {len(key)}")
        if any(char == "\0" or "\ud800" <= char <= "\udfff" for char in key + value):
            raise PayloadError(path, "contains a NUL or half a character, which no database can store; take it out")
    text = json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":"))
    size = len(text.encode())
    if size > HEADERS_BYTES:
        raise PayloadTooLarge(
            name,
            f"{size:,} bytes of JSON, over the limit of {HEADERS_BYTES:,}; pass large values as arguments",
        )
    return text if headers else None


def decode_headers(text: str | None) -> dict[str, str]:
    """The headers in a row. One that another program wrote may hold anything: what is no header is left out."""
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in cast("dict[str, Any]", found).items() if isinstance(value, str)}


def add_headers(text: str | None, more: Mapping[str, str]) -> str | None:
    """Headers as a row holds them, with more added. Those that are there win; one that has no room is left out."""
    headers = decode_headers(text)
    for name, value in more.items():
        if name in headers:
            continue
        try:
            text = encode_headers("headers", {**headers, name: value})
        except (ConfigError, PayloadError):
            continue
        headers[name] = value
    return text


def check_headers(text: str) -> None:
    """Refuses text that `encode_headers` would not have made: a child process may have sent it."""
    if len(text) > HEADERS_BYTES or encode_headers("headers", json.loads(text)) != text:
        raise PayloadError("headers", "must be a JSON object of strings, as task.using(headers={…}) makes it")

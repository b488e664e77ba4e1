"""What a form sends: read with a limit, by the standard library."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.responses import PlainTextResponse, Response

if TYPE_CHECKING:
    from starlette.requests import Request

LARGEST = 1024 * 1024  # bytes
MOST_FIELDS = 2_000
_TYPE = "application/x-www-form-urlencoded"


async def read_form(request: Request) -> dict[str, str] | Response:
    """The fields of a form, of a name that was given twice the last; or the answer that refuses it."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _TYPE:
        return PlainTextResponse(f"Send a form: the content type must be {_TYPE}.", 415)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST:
            return _too_large(f"A form may have at most {LARGEST:,} bytes.")
    try:
        fields = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        return _too_large(f"A form may have at most {MOST_FIELDS:,} fields.")
    return dict(fields)


def _too_large(why: str) -> Response:
    return PlainTextResponse(why, 413, headers={"connection": "close"})

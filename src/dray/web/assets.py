"""Style, script and icon, kept in memory. Their address changes with them, so browsers may keep them for good.

htmx.min.js is dist/htmx.min.js of the package htmx.org 4.0.0 on npm, unchanged (licence 0BSD). A test pins its hash.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from starlette.exceptions import HTTPException
from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.requests import Request

_FOLDER = Path(__file__).parent / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FOR_GOOD = "public, max-age=31536000, immutable"


class _Asset(NamedTuple):
    content: bytes
    packed: bytes
    media_type: str


@cache
def _all() -> dict[str, _Asset]:
    files = [file for file in sorted(_FOLDER.iterdir()) if file.suffix in _TYPES]
    contents = [(file, file.read_bytes()) for file in files]
    return {file.name: _Asset(text, gzip.compress(text, mtime=0), _TYPES[file.suffix]) for file, text in contents}


@cache
def version() -> str:
    """Changes whenever one of the files does."""
    return hashlib.sha256(b"".join(asset.content for asset in _all().values())).hexdigest()[:12]


async def serve(request: Request) -> Response:
    asset = _all().get(request.path_params["name"])
    if asset is None:
        raise HTTPException(404)
    is_packed = "gzip" in request.headers.get("accept-encoding", "")
    is_versioned = request.query_params.get("v") == version()
    headers = {"vary": "accept-encoding", "cache-control": _FOR_GOOD if is_versioned else "no-cache"}
    if is_packed:
        headers["content-encoding"] = "gzip"
    return Response(asset.packed if is_packed else asset.content, headers=headers, media_type=asset.media_type)

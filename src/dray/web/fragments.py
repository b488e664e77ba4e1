"""Fragments that were made since the last change, for the other tabs that show the same page to the same visitor.

Kept while the feed runs: it tells when one is out of date. Each has an ETag, so that a tab that has it gets 304.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import TYPE_CHECKING

from starlette.responses import Response

from dray.web.feed import TOPICS

if TYPE_CHECKING:
    from starlette.requests import Request

    from dray.web.visit import Visit

_MOST = 64
_BYTES = 256 * 1024  # of one that is kept: 16 MiB at most of them all


class Fragments:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()  # used last, comes last

    def find(self, key: Hashable | None) -> bytes | None:
        if key is None:
            return None
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def keep(self, key: Hashable | None, body: bytes) -> None:
        if key is None or len(body) > _BYTES:
            return
        with self._lock:
            self._kept[key] = body
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)


def key_of(visit: Visit) -> Hashable | None:
    """What two visits must have in common to be shown the same; None: it is not known whether a copy is out of date.

    To be asked before the page reads anything. The token in its forms is one visitor's.
    """
    version = visit.site.feed.version(TOPICS) if visit.is_fragment else None
    if version is None:
        return None
    asked = tuple(sorted((name, tuple(values)) for name, values in visit.many.items()))  # ids are given many times
    return version, visit.root, visit.path, asked, visit.said, visit.access, visit.token


def answer(request: Request, body: bytes) -> Response:
    etag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers={"etag": etag})
    return Response(body, media_type="text/html", headers={"etag": etag})

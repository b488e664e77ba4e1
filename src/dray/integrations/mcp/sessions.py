"""How many sessions agents have open by HTTP. One more ends the one that was idle for longest.

Many agents never end theirs, and the SDK keeps each for half an hour: it would refuse new ones until then. A session
is ended as its own client would do it, by a DELETE.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST = 100
_ID = b"mcp-session-id"
_FIRST_ERROR = 400
_GONE = 404


class Sessions:
    """Around the SDK's application, in one event loop."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._used: dict[bytes, None] = {}  # ids; the one that was used last is the last
        self._requests = Counter[bytes]()  # under way, an open stream among them

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        own = _id_in(scope["headers"])
        if own is None:
            await self._open(scope, receive, send)
        else:
            await self._use(own, scope, receive, send)

    async def _open(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._make_room(scope)

        async def noting(message: Message) -> None:
            made = _id_in(message["headers"]) if _begins(message) and message["status"] < _FIRST_ERROR else None
            if made is not None:
                self._used[made] = None
            await send(message)

        await self._app(scope, receive, noting)

    async def _use(self, own: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        is_over = scope["method"] == "DELETE"

        async def noting(message: Message) -> None:
            nonlocal is_over
            is_over = is_over or (_begins(message) and message["status"] == _GONE)
            await send(message)

        self._requests[own] += 1
        try:
            await self._app(scope, receive, noting)
        finally:
            self._requests[own] -= 1
            self._requests += Counter()  # without those at 0
            if own in self._used:
                del self._used[own]
                if not is_over:
                    self._used[own] = None

    async def _make_room(self, scope: Scope) -> None:
        while len(self._used) >= MOST:
            idle = next((each for each in self._used if not self._requests[each]), None)
            if idle is None:
                return  # the server's own bound on connections holds
            del self._used[idle]
            ending: Any = {**scope, "method": "DELETE", "headers": [*_names(scope), (_ID, idle)]}
            await self._app(ending, _no_body, _unheard)


def _begins(message: Message) -> bool:
    return message["type"] == "http.response.start"


def _id_in(headers: Any) -> bytes | None:
    return next((value for name, value in headers if name.lower() == _ID), None)


def _names(scope: Scope) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in scope["headers"] if name == b"host"]


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _unheard(message: Message) -> None:
    """Whether it was still there does not matter."""

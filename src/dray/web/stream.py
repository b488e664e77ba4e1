"""`/events`: tells a page that is open which topics have changed, as server-sent events.

A stream ends when the dashboard closes, when the server that runs it wants to stop (uvicorn waits for open streams
without a limit), and when the visitor's access has changed; it is checked again once a minute.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.responses import Response, StreamingResponse

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from dray.web.access import Access
    from dray.web.feed import Listener
    from dray.web.site import Site
    from dray.web.visit import Visit

_HEARTBEAT = 15.0  # a proxy closes connections that are silent for long, often after 30 or 60 seconds
_ACCESS_EVERY = 60.0
_LOOK_UP = 1.0  # how often a stream looks whether the server wants to stop: there is nothing that would wake it
_POLL = 5  # seconds after which a page without a stream asks


def endpoint(
    site: Site,
    visit_of: Callable[[Request], Awaitable[Visit | Response]],
    access_of: Callable[[Request], Awaitable[Access | None]],
) -> Callable[[Request], Awaitable[Response]]:
    async def events(request: Request) -> Response:
        visit = await visit_of(request)
        if isinstance(visit, Response):
            return visit
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if site.is_wsgi or site.closing.is_set():
            return _refused("There is no stream here: ask for the page again.")
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed, and the stream with it
                loop.call_soon_threadsafe(woken.set)

        listener = site.feed.join(_login(visit.access, request), wake)
        if listener is None:
            return _refused("There are too many streams: ask for the page again.")

        async def is_revoked() -> bool:
            return await access_of(request) != visit.access

        return _Stream(site, listener, _events(site, listener, woken, is_revoked))

    return events


class _Stream(StreamingResponse):
    """Leaves the feed at its end, also if it never began."""

    def __init__(self, site: Site, listener: Listener, body: AsyncGenerator[bytes]) -> None:
        super().__init__(body, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._site = site
        self._listener = listener
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._site.feed.leave(self._listener)
            await self._body.aclose()


async def _events(
    site: Site, listener: Listener, woken: asyncio.Event, is_revoked: Callable[[], Awaitable[bool]]
) -> AsyncGenerator[bytes]:
    said_at = checked_at = time.monotonic()
    yield b": the topics that have changed\n\n"
    while not (listener.is_over or site.closing.is_set() or _server_is_stopping()):
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_UP):
                await woken.wait()
        woken.clear()
        now = time.monotonic()
        if now - checked_at >= _ACCESS_EVERY:
            checked_at = now
            if await is_revoked():
                return
        topics = listener.take()
        if topics:
            said_at = now
            yield f"event: topics\ndata: {' '.join(topics)}\n\n".encode()
        elif now - said_at >= _HEARTBEAT:
            said_at = now
            yield b":\n\n"


def _login(access: Access, request: Request) -> str:
    """Whose streams are counted together: a user's, or without a name those of one address."""
    address = request.client.host if request.client else ""
    return f"{access.role}:{access.user or address}"


def _refused(why: str) -> Response:
    return Response(why, 503, {"retry-after": str(_POLL)}, media_type="text/plain")


def _server_is_stopping() -> bool:
    """Whether uvicorn has been told to stop. Its handler of SIGTERM is a method of the server, which knows."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True

"""The server on a socket, by streamable HTTP. The Host, the Origin and the token of every request are checked."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from dray.app import App
from dray.integrations.mcp.serving import server
from dray.integrations.mcp.sessions import MOST, Sessions
from dray.ops.doctor.check import Code
from dray.web.guard import host_name, is_own_origin, own_hosts

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PATH = "/mcp"
_AT_ONCE = 100  # connections and requests; more are told to come back (503)
_IDLE = 30 * 60  # seconds that a session is kept without a request, unless others need the room
_BODY_BYTES = 1 << 20
_LAST_REQUESTS = 1  # second for requests under way, at the end


class Guard:
    """Around the whole server. A page of another site that has its own name point at this machine (DNS rebinding)
    sends that name as Host, and any page says in Origin where it is from."""

    def __init__(self, app: ASGIApp, is_own: Callable[[str], bool], token: str | None) -> None:
        self._app = app
        self._is_own = is_own
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refused = self._refused(Request(scope))
            if refused is not None:
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refused(self, request: Request) -> PlainTextResponse | None:
        headers = request.headers
        if not self._is_own(host_name(headers.get("host", ""))):
            return PlainTextResponse(
                "This is not served under this name: dray mcp --allow-host NAME allows it.\n", 421
            )
        if "origin" in headers and not is_own_origin(request):
            return PlainTextResponse("This request came from a page of another site.\n", 403)
        if self._token is not None and not self._is_signed(headers.get("authorization", "")):
            what = "Send the token that this server was started with: Authorization: Bearer TOKEN.\n"
            return PlainTextResponse(what, 401, {"www-authenticate": "Bearer"})
        return None

    def _is_signed(self, header: str) -> bool:
        scheme, _, given = header.partition(" ")
        own = (self._token or "").encode()
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), own)


class _Server(uvicorn.Server):
    """Signals are left to the process."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def serve_http(
    app: App,
    bound: socket.socket,
    *,
    who: str,
    write: bool,
    facts: tuple[Any, ...],
    names: Iterable[str] = (),
    token: str | None = None,
    started: Callable[[Callable[[], None]], None],
) -> None:
    """Serves an App, as `server` says, on a socket that listens.

    `facts`: the fields of the doctor's `Code`. `names`: those it may be reached by. `started` is given what stops it.
    """
    # The guard checks hosts and origins, of addresses that are numbers too; the SDK knows only lists of them.
    security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    served = server(app, who=who, write=write, code=Code(*facts)).streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=_BODY_BYTES,
        session_idle_timeout=_IDLE,
        max_sessions=MOST + _AT_ONCE,  # not reached: `Sessions` makes room first
        transport_security=security,
    )
    config = uvicorn.Config(
        Guard(Sessions(served), own_hosts({"localhost", *names}), token),
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=_AT_ONCE,
        timeout_graceful_shutdown=_LAST_REQUESTS,
    )
    serving = _Server(config)

    def stop() -> None:
        serving.should_exit = True

    started(stop)
    serving.run([bound])

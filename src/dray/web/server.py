"""Serves the dashboard by uvicorn."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from dray.web.dashboard import Dashboard

PROXY_VARIABLE = "FORWARDED_ALLOW_IPS"
_AT_ONCE = 300  # connections and requests; more are told to come back (503)
_LAST_REQUESTS = 1  # second for requests under way, at the end


class Server(uvicorn.Server):
    """Ends streams first when it stops, so that it ends within two seconds. Signals are left to the process."""

    def __init__(self, dashboard: Dashboard, bound: socket.socket) -> None:
        self._dashboard = dashboard
        self._bound = bound
        super().__init__(
            uvicorn.Config(
                dashboard,  # pyright: ignore[reportArgumentType] - an ASGI application
                http="h11",
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,  # an address may hold the code of a link
                server_header=False,
                # uvicorn believes X-Forwarded-For of any program on this machine: one that guesses the token would be
                # another visitor each time. A proxy is named by uvicorn's own variable.
                proxy_headers=PROXY_VARIABLE in os.environ,
                limit_concurrency=_AT_ONCE,
                timeout_graceful_shutdown=_LAST_REQUESTS,
            )
        )

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._dashboard.close()
        await super().shutdown(sockets)

    def serve_here(self) -> None:
        """Serves until it should exit, in this thread."""
        self.run([self._bound])

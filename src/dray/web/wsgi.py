"""The dashboard for WSGI servers. There is no stream: its pages ask every two seconds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from a2wsgi import ASGIMiddleware

from dray import forks

if TYPE_CHECKING:
    from dray.web.dashboard import Dashboard

_PATIENCE = 2.0  # seconds for requests under way, at the end


class Wsgi:
    """A WSGI application. Its event loop starts with the first request of a process: servers fork after loading."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._inherited: list[asyncio.AbstractEventLoop] = []  # of the parent, kept as they are
        self._start_over()
        forks.watch_child(self)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if not _is_readable(environ):
            start_response("400 Bad Request", [("Content-Type", "text/plain; charset=utf-8")])
            return [b"This address is not valid UTF-8."]
        served = ASGIMiddleware(self._dashboard, loop=self._running_loop())  # pyright: ignore[reportArgumentType]
        return served(environ, start_response)  # pyright: ignore[reportArgumentType] - a plain dict

    def close(self) -> None:
        """Ends the event loop. The next request starts another."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_PATIENCE)

    def after_fork_in_child(self) -> None:
        if self._loop is not None:
            self._inherited.append(self._loop)
        self._start_over()

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=[self._loop], name="dray-web", daemon=True)
                self._thread.start()
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_others())
    finally:
        loop.close()


async def _cancel_others() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def _is_readable(environ: dict[str, Any]) -> bool:
    try:
        for name in ("SCRIPT_NAME", "PATH_INFO"):
            environ.get(name, "").encode("latin-1").decode()
        environ.get("QUERY_STRING", "").encode("ascii")
    except UnicodeError:
        return False
    return True

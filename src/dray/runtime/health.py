"""Responds to HTTP probes of a worker: `/health`, whether it can work, and `/ready`, whether it claims jobs.

On its own thread, which nothing waits for, and from memory: a probe does not use the database, and works while the
database is away. `/metrics` is what its maker gives it (`ops/prometheus.py`). A few connections at a time, each for a
few seconds. One more ends the oldest, so that clients who send nothing, or do not read, keep no probe out.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from dray.backends.watch import Bell, rest
from dray.runtime.condition import Condition

_AT_ONCE = 8  # connections
_THREADS = 32  # also those whose connection was ended; more connections are refused
_LONGEST = 5.0  # seconds that one may take
_SWEEP = 1.0
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus's text format


class Endpoint:
    """Listens as soon as it is made, so that a port in use raises `OSError` before anything else happens."""

    def __init__(
        self, host: str, port: int, condition: Callable[[], Condition], metrics: Callable[[], str] | None = None
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = _Server((host, port), family, condition, metrics)
        self._bell = Bell()
        self._is_over = False
        self._thread = threading.Thread(target=self._serve, name="dray-health", daemon=True)

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_over = True
        self._bell.ring()
        self._thread.join(_SWEEP)

    def _serve(self) -> None:
        with self._server as server:
            while not self._is_over:
                wait = _SWEEP if server.open else 3600.0
                if rest((server.fileno(), self._bell.fileno()), wait):
                    server.handle_request()
                server.sweep()


class _Server(ThreadingMixIn, TCPServer):
    allow_reuse_address = True  # of closed connections; not of a port that another process listens on
    daemon_threads = True
    request_queue_size = 16
    timeout = 0

    def __init__(
        self,
        address: tuple[str, int],
        family: int,
        condition: Callable[[], Condition],
        metrics: Callable[[], str] | None,
    ) -> None:
        self.address_family = family
        self.condition = condition
        self.metrics = metrics
        self.open: dict[Any, float] = {}  # connections, the oldest first, and until when they may last
        self._ended: set[Any] = set()  # those whose threads have not noticed yet
        super().__init__(address, _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - as it is called
        oldest = list(self.open)
        if len(oldest) + len(self._ended) >= _THREADS:
            return False
        if len(oldest) >= _AT_ONCE:
            self._end(oldest[0])
        return True

    def process_request(self, request: Any, client_address: Any) -> None:
        self.open[request] = time.monotonic() + _LONGEST
        try:
            super().process_request(request, client_address)
        except (RuntimeError, MemoryError):  # no thread: the probe should be told so
            self.process_request_thread(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.open.pop(request, None)
        self._ended.discard(request)
        super().shutdown_request(request)

    def sweep(self) -> None:
        """Ends connections that take too long."""
        for request, until in list(self.open.items()):
            if time.monotonic() > until:
                self._end(request)

    def _end(self, request: Any) -> None:
        """Ends a connection. Its thread notices by itself."""
        self._ended.add(request)
        if self.open.pop(request, None) is None:  # the thread was faster
            self._ended.discard(request)
            return
        with suppress(OSError):  # the client was faster
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is not worth a log line."""


class _Handler(BaseHTTPRequestHandler):
    timeout = 2.0  # seconds of silence

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        path = self.path.partition("?")[0]
        if path == "/metrics" and self.server.metrics is not None:
            self._send(HTTPStatus.OK, METRICS_TYPE, self.server.metrics().encode())
            return
        condition = self.server.condition()
        is_well = {"/health": condition.is_healthy, "/ready": condition.is_ready}.get(path)
        if is_well is None:
            self._respond(HTTPStatus.NOT_FOUND, {"error": "there is /health, /ready and /metrics"})
        else:
            self._respond(HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE, condition._asdict())

    def do_HEAD(self) -> None:
        self.do_GET()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        if code != HTTPStatus.NOT_IMPLEMENTED:
            super().send_error(code, message, explain)
            return
        # The base class calls this for a method without a do_…. A 5xx would read as an unhealthy worker.
        self._respond(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "only GET and HEAD are answered"}, Allow="GET, HEAD")

    def _respond(self, status: HTTPStatus, content: dict[str, Any], **headers: str) -> None:
        self._send(status, "application/json", json.dumps(content).encode(), **headers)

    def _send(self, status: HTTPStatus, media_type: str, body: bytes, **headers: str) -> None:
        self.send_response(status)
        headers |= {"Content-Type": media_type, "Content-Length": str(len(body)), "Cache-Control": "no-store"}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "dray"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as it is called
        """A probe each second is not worth a log line."""

"""The dashboard as a view of Django's, under WSGI and ASGI, for staff with Django's own permissions.

Users with ``dray.view_job`` may look, with ``dray.change_job`` operate, with ``dray.delete_job`` administer;
superusers have them all. The dashboard guards its own forms, so Django's token is not asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from functools import cache
from io import BytesIO
from itertools import chain
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import NoReverseMatch, reverse
from django.views.decorators.csrf import csrf_exempt

from dray.integrations.django.core import backends
from dray.web.access import Access, Role
from dray.web.dashboard import Dashboard, dashboard

_KEY = "dray.access"
_ROLES: tuple[tuple[str, Role], ...] = (
    ("dray.delete_job", "admin"),
    ("dray.change_job", "operator"),
    ("dray.view_job", "viewer"),
)
_HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding"}


def access_of(request: HttpRequest) -> Access | None:
    """What the user of a request may do; None: nothing."""
    user: Any = getattr(request, "user", None)
    if user is None or not (user.is_active and user.is_staff):
        return None
    for permission, role in _ROLES:
        if user.has_perm(permission):
            return Access(role, user.get_username())
    return None


@cache
def _dashboard(*, is_wsgi: bool) -> Dashboard:
    """One for each kind of server: under WSGI there is no stream."""
    made = dashboard(backends.only(), access=_granted)
    if is_wsgi:
        made.wsgi()
    return made


def close() -> None:
    """Ends open streams and the event loop of WSGI; the next request makes another."""
    for is_wsgi in (True, False):
        _dashboard(is_wsgi=is_wsgi).close()
    _dashboard.cache_clear()


def _granted(request: Any) -> Access | None:
    """As the view has found it."""
    scope = request.scope
    return scope[_KEY] if _KEY in scope else scope["wsgi_environ"][_KEY]


async def _view(request: HttpRequest, path: str) -> HttpResponseBase:
    access = await sync_to_async(access_of)(request)
    if access is None:
        if await sync_to_async(_is_anonymous)(request):
            return _to_login(request)
        raise PermissionDenied("The dashboard of jobs is for staff with the permission dray.view_job.")
    root = request.path.removesuffix(path).rstrip("/")
    if not isinstance(request, ASGIRequest):
        return await sync_to_async(_through_wsgi)(request, root, access)
    query = request.META.get("QUERY_STRING", "").encode()  # Django's test client leaves it a text
    # Behind a proxy, Django knows the host and the scheme that the browser sees (USE_X_FORWARDED_HOST,
    # SECURE_PROXY_SSL_HEADER): with those of the last hop, the Origin of no form would be its own.
    others = [(name, value) for name, value in request.scope["headers"] if name.lower() != b"host"]
    scope = {
        **request.scope,
        "headers": [(b"host", request.get_host().encode("latin-1")), *others],
        "scheme": request.scheme,
        "root_path": root,
        "path": request.path,
        "query_string": query,
        _KEY: access,
    }
    return await _through_asgi(scope, request.body)


dashboard_view: Any = csrf_exempt(_view)
for _alias in connections:  # its own reads and writes are Dray's; and ATOMIC_REQUESTS takes no async view
    dashboard_view = transaction.non_atomic_requests(using=_alias)(dashboard_view)


def _is_anonymous(request: HttpRequest) -> bool:
    user: Any = getattr(request, "user", None)
    return user is None or not user.is_authenticated


def _to_login(request: HttpRequest) -> HttpResponse:
    try:
        return redirect_to_login(request.get_full_path(), reverse("admin:login"))
    except NoReverseMatch:  # there is no admin: LOGIN_URL
        return redirect_to_login(request.get_full_path())


def _through_wsgi(request: Any, root: str, access: Access) -> HttpResponseBase:
    environ = {**request.environ, _KEY: access, "wsgi.input": BytesIO(request.body)}
    environ |= {"HTTP_HOST": request.get_host(), "wsgi.url_scheme": request.scheme}  # as the browser sees them
    environ["SCRIPT_NAME"] = root.encode().decode("latin-1")  # as WSGI has texts
    environ["PATH_INFO"] = request.path.removeprefix(root).encode().decode("latin-1")
    said: list[Any] = []
    parts = iter(_dashboard(is_wsgi=True).wsgi()(environ, lambda *given: said.append(given)))
    first = next(parts, b"")  # the head is there before it
    status, headers = said[0][:2]
    response = StreamingHttpResponse(chain([first], parts), status=int(status.split()[0]))
    _set_headers(response, headers)
    return response


async def _through_asgi(scope: dict[str, Any], body: bytes) -> HttpResponseBase:
    sent: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(maxsize=1)
    received = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if received:
            return received.pop()
        await asyncio.Event().wait()  # Django cancels the response when the client is gone
        raise AssertionError

    async def send(message: Any) -> None:
        await sent.put(message)

    async def run() -> None:
        try:
            await _dashboard(is_wsgi=False)(scope, receive, send)
        except Exception:
            await sent.put(None)
            raise
        await sent.put(None)

    running = asyncio.create_task(run())
    head = await sent.get()
    if head is None:
        await running  # raises what it failed with
        raise AssertionError("the dashboard has sent nothing")
    response = StreamingHttpResponse(_body(sent, running), status=head["status"])
    given = [(name, value) for name, value in head["headers"] if name.lower() not in _HOP_BY_HOP]
    _set_headers(response, [(name.decode("latin-1"), value.decode("latin-1")) for name, value in given])
    return response


async def _body(sent: asyncio.Queue[dict[str, Any] | None], running: asyncio.Task[None]) -> AsyncGenerator[bytes]:
    try:
        while (part := await sent.get()) is not None:
            yield part.get("body", b"")
            if not part.get("more_body", False):
                return
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def _set_headers(response: HttpResponseBase, headers: Iterable[tuple[str, str]]) -> None:
    del response.headers["Content-Type"]
    for name, value in headers:
        response.headers[name] = value

"""Who may use `dray web`: the person who opens the link that it prints, or knows the token it was started with.

A session is a signed cookie, so nothing grows with the number of visitors, and it ends after twelve hours.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from dray.errors import ConfigError
from dray.web import assets
from dray.web.forms import read_form
from dray.web.guard import is_own_origin
from dray.web.link import Link
from dray.web.scraping import WITHOUT_TOKEN, bearer_token, is_scrape

if TYPE_CHECKING:
    from jinja2 import Environment
    from starlette.requests import Request

    from dray.web.access import Access

_SESSION_LASTS = 12 * 3600.0
_SHORTEST_TOKEN = 16  # characters
_WINDOW = 60.0  # seconds in which failed attempts are counted
_MOST_EACH, _MOST = 5, 100  # failed attempts of one address, and of all


class Login:
    """`tell` prints a new link, when the last one is used or too old and a visitor is at the door; None: no links."""

    def __init__(
        self,
        access: Access,
        port: int,
        *,
        token: str | None = None,
        key: bytes | None = None,
        link: Link | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        if token is not None and len(token) < _SHORTEST_TOKEN:
            raise ConfigError(
                f"the token must have at least {_SHORTEST_TOKEN} characters, and be hard to guess, such as that of "
                "`openssl rand -hex 24`"
            )
        self._access = access
        self.cookie = f"dray-{port}"  # browsers send a cookie to every port of a host
        self._token = token
        # With a token, any process that was started with it knows the sessions of the others.
        self._key = key or (secrets.token_bytes(32) if token is None else hashlib.sha256(token.encode()).digest())
        self._link = link
        self._tell = tell
        self._lock = threading.Lock()
        self._failed: deque[tuple[float, str]] = deque(maxlen=_MOST)

    def routes(self, templates: Callable[[], Environment]) -> list[Route]:
        async def show(request: Request) -> Response:
            return self._shown(request, templates())

        async def enter(request: Request) -> Response:
            return await self._entered(request, templates())

        return [Route("/login", show, methods=["GET"]), Route("/login", enter, methods=["POST"])]

    def access(self, request: Request) -> Access | None:
        """The access rule of `dray web`."""
        token = bearer_token(request)
        if token is not None:
            return self._access if self._is_token(request, token) else None
        session, _, signature = request.cookies.get(self.cookie, "").rpartition(".")
        if not _same(signature, self._sign(session)):
            return None
        return self._access if int(session.partition(".")[0]) > time.time() else None

    def _is_token(self, request: Request, token: str) -> bool:
        if self._token is None or self._must_wait(request):
            return False
        if not _same(token, self._token):
            self._note_failure(request)
            return False
        return True

    def ask(self, request: Request) -> Response:
        """The answer to a visitor who has not signed in."""
        path = quote(request.url.path, safe="/:%")
        if is_scrape(request) and "text/html" not in request.headers.get("accept", ""):
            headers = {"www-authenticate": "Bearer"}
            return Response(WITHOUT_TOKEN, 401, media_type="text/plain", headers=headers)
        if request.method in {"GET", "HEAD"} and not path.endswith(".json") and "hx-request" not in request.headers:
            query = f"?{request.url.query}" if request.url.query else ""
            to = "" if path + query == "/" else f"?{urlencode({'to': path + query})}"
            return RedirectResponse(f"/login{to}", 303)
        return Response("Sign in first: open the dashboard's /login.", 401, media_type="text/plain")

    def _shown(self, request: Request, templates: Environment) -> Response:
        code = request.query_params.get("code")
        to = request.query_params.get("to", "/")
        if self.access(request) is not None:
            return RedirectResponse(_inside(to), 303)
        if code is None or request.method == "HEAD" or "prefetch" in request.headers.get("sec-purpose", ""):
            return self._page(templates, 200, to)
        if self._must_wait(request):
            return self._refused(templates, to)
        with self._lock:
            link = self._link
            is_right = link is not None and link.is_live() and _same(code, link.code) and link.use()
            if is_right:
                self._link = None
        if is_right:
            return self._welcome(request, "/")
        self._note_failure(request)
        return self._page(templates, 403, to, "This link was used before, or is older than ten minutes.")

    async def _entered(self, request: Request, templates: Environment) -> Response:
        form = await read_form(request)
        if isinstance(form, Response):
            return form
        to = form.get("to", "/")
        if not is_own_origin(request):
            return self._page(templates, 403, to, "This request came from another site.")
        if self._must_wait(request):
            return self._refused(templates, to)
        if self._token is None or not _same(form.get("token", ""), self._token):
            self._note_failure(request)
            return self._page(templates, 403, to, "This is not the token.")
        return self._welcome(request, to)

    def _welcome(self, request: Request, to: str) -> Response:
        answer = RedirectResponse(_inside(to), 303)
        session = f"{int(time.time() + _SESSION_LASTS)}.{secrets.token_urlsafe(16)}"
        answer.set_cookie(
            self.cookie,
            f"{session}.{self._sign(session)}",
            max_age=int(_SESSION_LASTS),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    def _page(self, templates: Environment, status: int, to: str, said: str | None = None) -> Response:
        with self._lock:
            is_new = self._tell is not None and (self._link is None or not self._link.is_live())
            if self._tell is not None and is_new:
                self._link = Link.new()
                self._tell(self._link.code)
        given: dict[str, Any] = {
            "said": said,
            "has_token": self._token is not None,
            "has_links": self._tell is not None,
            "is_new": is_new,
            "to": to,
            "assets": assets.version(),
        }
        return Response(templates.get_template("login.html").render(**given), status, media_type="text/html")

    def _refused(self, templates: Environment, to: str) -> Response:
        answer = self._page(templates, 429, to, "Too many attempts: wait a minute.")
        answer.headers["retry-after"] = str(int(_WINDOW))
        return answer

    def _must_wait(self, request: Request) -> bool:
        since, who = time.monotonic() - _WINDOW, _address(request)
        with self._lock:
            while self._failed and self._failed[0][0] < since:
                self._failed.popleft()
            mine = sum(each == who for _, each in self._failed)
            return mine >= _MOST_EACH or len(self._failed) >= _MOST

    def _note_failure(self, request: Request) -> None:
        with self._lock:
            self._failed.append((time.monotonic(), _address(request)))

    def _sign(self, text: str) -> str:
        # With the role: a server that shows all and one that may do all may share a token.
        signed = f"session:{self._access.role}:{text}".encode("utf-8", "replace")
        return hmac.new(self._key, signed, hashlib.sha256).hexdigest()


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _inside(to: str) -> str:
    """A path of this dashboard, and never another site: `//example.com` is one to a browser."""
    return "/" + to.lstrip("/\\")

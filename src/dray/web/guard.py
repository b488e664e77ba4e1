"""What keeps a stranger's page from acting: the Host, headers on every answer, and what a POST must show."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse

from dray.errors import ConfigError
from dray.log import log
from dray.model.values import shown

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from dray.web.page import Post
    from dray.web.site import Site
    from dray.web.visit import Visit

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors "
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer, browsers send `Origin: null` with our own forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_OTHER_NAME = (
    "This dashboard is not served under this name. Those who run it can allow it: dray web --allow-host NAME, or "
    "hosts= of dray.dashboard."
)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")
_ANCESTOR = re.compile(r"'none'|'self'|[A-Za-z][A-Za-z0-9+.-]*:|(https?://)?[A-Za-z0-9*_.-]+(:[0-9*]+)?")


class Guard:
    """Around the whole dashboard: every answer passes it, those to requests that fail too."""

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self._app = app
        self._site = site
        self._headers = {**_HEADERS, "content-security-policy": _POLICY + site.frame_ancestors}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_head = scope["method"] == "HEAD"
        has_started = False

        async def guarded(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                headers.setdefault("cache-control", "no-store")
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        refused = self._refused(scope)
        if refused is not None:
            await refused(scope, receive, guarded)
            return
        try:
            await self._app(with_one_slash(scope), receive, guarded)
        except ClientDisconnect:  # the visitor has closed the connection
            pass
        except Exception:
            # Without the query: it may hold a code to sign in with.
            log.exception("the dashboard failed at %s %s", scope["method"], shown(scope["path"]))
            if not has_started:
                answer = PlainTextResponse("Dray's dashboard failed; its log says why.", 500)
                await answer(scope, receive, guarded)

    def _refused(self, scope: Scope) -> PlainTextResponse | None:
        hosts = self._site.hosts
        if hosts is not None and not hosts(host_name(Headers(scope=scope).get("host", ""))):
            return PlainTextResponse(_OTHER_NAME, 421)
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:  # which no name has, and no text on PostgreSQL
            return PlainTextResponse("An address cannot hold a NUL.", 400)
        return None


def with_one_slash(scope: Scope) -> Scope:
    """A request whose path below the mount has single slashes and none at its end: `//jobs/` is `/jobs`."""
    root = scope.get("root_path", "").rstrip("/")
    path: str = scope["path"]
    below = path[len(root) :] if path == root or path.startswith(f"{root}/") else path
    below = "/" + "/".join(filter(None, below.split("/")))
    return {**scope, "root_path": root, "path": root + below}


def refusal(site: Site, visit: Visit, request: Request, form: Mapping[str, str], post: Post) -> str | None:
    """Why a POST is not carried out; None: it is."""
    if not is_own_origin(request):
        return "This request came from another site, or does not say where it came from."
    if not site.is_signed(f"form:{visit.access.role}:{visit.access.user}", form.get("token")):
        return "This form has expired: go back, load the page again and repeat it."
    if site.is_read_only:
        return "This database can only be read."
    if not visit.may(post.verb):
        return f"You may not {post.verb} here: your role is {visit.access.role}."
    if post.is_whole and visit.access.queues is not None:
        return "This concerns the whole database: you may act on some queues alone."
    return None


def is_own_origin(request: Request) -> bool:
    """Whether a form was sent by a page of this very host.

    A proxy may have ended TLS: a page loaded by https may then post to what looks like http here, not the reverse.
    """
    scheme, _, host = request.headers.get("origin", "").lower().partition("://")
    own = request.headers.get("host", "").lower()
    if scheme not in {request.url.scheme, "https"} or scheme not in _DEFAULT_PORTS or not own:
        return False
    port = _DEFAULT_PORTS[scheme]
    return host.removesuffix(port) == own.removesuffix(port)


# Which hosts


def named_hosts(names: Iterable[str]) -> Callable[[str], bool]:
    """For `hosts=`: these names, on any port."""
    if isinstance(names, str):
        raise TypeError("hosts must be several names, not one string: hosts=['ops.example.com']")
    known = frozenset(_checked_name(name) for name in names)
    if not known:
        raise ConfigError("hosts= is empty: nothing could be reached; name the hosts, or leave it out")
    return known.__contains__


def own_hosts(names: Iterable[str]) -> Callable[[str], bool]:
    """For a server of our own: these names, and every address that is a number.

    A page of another site that has its own name point at this machine (DNS rebinding) sends that name.
    """
    known = frozenset(_checked_name(name) for name in names)
    return lambda host: host in known or is_address(host)


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _checked_name(name: str) -> str:
    plain = name.strip().lower().removeprefix("[").removesuffix("]").rstrip(".")
    if _NAME.fullmatch(plain) is None and not is_address(plain):
        raise ConfigError(f"{shown(name)} is no host's name; write it without scheme, port and path: ops.example.com")
    return plain


def host_name(header: str) -> str:
    """The name in a Host header, without the port."""
    host = header.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def checked_ancestors(given: str | Iterable[str] | None) -> str:
    """For `frame_ancestors=`: one source or several, in the words of the header."""
    if given is None:
        return "'none'"
    sources = [given] if isinstance(given, str) else list(given)
    for source in sources:
        if _ANCESTOR.fullmatch(source) is None:
            raise ConfigError(
                f"frame_ancestors: {shown(source)} is no source; write \"'self'\" or 'https://portal.example.com'"
            )
    return " ".join(sources) or "'none'"

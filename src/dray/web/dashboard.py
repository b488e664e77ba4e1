"""`dray.dashboard(app, access=…)`: an ASGI application that shows an App's jobs and acts on them.

Each request: `access` says who it is, the page's function runs on a thread (it reads the database), its template is
rendered whole, or without the frame for a page that is open already, or its shape goes out as JSON.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from dray.web.extra import MISSING

try:
    import anyio.to_thread
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import RedirectResponse, Response, StreamingResponse
    from starlette.routing import Route
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(MISSING, name=error.name) from None

from dray import __version__
from dray.app_interface import core_of
from dray.errors import (
    ConfigError,
    DrayError,
    SchemaMissing,
    StorageError,
    UnknownJob,
    UnknownSchedule,
    UnknownTask,
    UnknownWorkflow,
)
from dray.instants import iso
from dray.web import assets, fragments, guard, pages, scraping, stream
from dray.web.access import Access, AccessRule, granted
from dray.web.forms import read_form
from dray.web.page import Done, Download, Goto, NotFound, Page, Post, Refused, View
from dray.web.show import from_path
from dray.web.site import Site
from dray.web.visit import Visit
from dray.web.wsgi import Wsgi

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from dray.app import App

_THREADS = 8  # that read the database at once
_SAID = 1_000  # characters of what an action says
_UNKNOWN = (NotFound, UnknownJob, UnknownSchedule, UnknownTask, UnknownWorkflow)

Endpoint = Callable[[Request], Awaitable[Response]]


def dashboard(
    app: App,
    *,
    access: AccessRule | None = None,
    hosts: Iterable[str] | None = None,
    frame_ancestors: str | Iterable[str] | None = None,
) -> Dashboard:
    """The dashboard of an App, to be mounted in an ASGI application, or `.wsgi()` in a WSGI one.

    `access(request)` says for each request who may do what: "viewer", "operator", "admin", `dray.Access(role, user,
    queues)`, or None to refuse. There is no default: a dashboard without it would be open to the world.
    `hosts`: the names it is served under; other requests are refused. None: what it is mounted in checks that.
    `frame_ancestors`: which sites may show it in a frame ("'self'", "https://portal.example.com"); None: no site.

    Example:

        >>> site = dray.dashboard(app, access=lambda request: "viewer")
        >>> site.close()
    """
    if access is None:
        raise ConfigError(
            "dray.dashboard(app) needs access=: a function of the request that returns 'viewer', 'operator', "
            "'admin', dray.Access(role, user), or None to refuse"
        )
    if not callable(access):
        raise ConfigError(f"access= must be a function of the request, not {type(access).__name__}")
    return Dashboard(
        Site(
            core_of(app),
            access,
            hosts=None if hosts is None else guard.named_hosts(hosts),
            frame_ancestors=guard.checked_ancestors(frame_ancestors),
        )
    )


class Dashboard:
    """An ASGI application. It needs no lifespan of what it is mounted in."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._wsgi: Wsgi | None = None
        routes = [
            Route("/static/{name}", assets.serve),
            Route("/events", stream.endpoint(site, self._visit, self._access)),
            scraping.ForScrapers("/metrics", self._scraped),
            Route("/metrics.txt", self._scraped),
        ]
        if site.login is not None:
            routes += site.login.routes(lambda: site.templates)
        for page in pages.PAGES:
            show = self._page(page)
            routes += [Route(f"{page.path.rstrip('/') or '/overview'}.json", show), Route(page.path, show)]
        routes += [Route(post.path, self._post(post), methods=["POST"]) for post in pages.POSTS]
        handlers: Any = {Exception: self._failed, HTTPException: self._missing}
        inner = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)
        inner.router.redirect_slashes = False  # the guard has removed them
        self._app: ASGIApp = guard.Guard(inner, site)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def wsgi(self) -> Wsgi:
        """The same as a WSGI application, for Flask and Django."""
        if self._wsgi is None:
            self._wsgi = Wsgi(self)
            self.site.is_wsgi = True
        return self._wsgi

    def close(self) -> None:
        """Ends open streams, and the event loop of `.wsgi()`. The App stays open."""
        self.site.close()
        if self._wsgi is not None:
            self._wsgi.close()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncGenerator[None]:
        """Where it is not mounted, but served as it is."""
        yield
        self.close()

    def _page(self, page: Page) -> Endpoint:
        async def answer(request: Request) -> Response:
            visit = await self._visit(request)
            if isinstance(visit, Response):
                return visit
            if not visit.is_fragment:
                return await self._shown(visit, page)
            key = fragments.key_of(visit)
            body = self.site.fragments.find(key)
            if body is None:
                shown = await self._shown(visit, page)
                if shown.status_code != 200 or isinstance(shown, StreamingResponse):
                    return shown
                body = bytes(shown.body)
                self.site.fragments.keep(key, body)
            return fragments.answer(request, body)

        return answer

    async def _shown(self, visit: Visit, page: Page) -> Response:
        why_not = _why_not(visit, page)
        if why_not is not None:
            return await self._told(visit, 403, why_not)
        try:
            view = await self._on_thread(page.show, visit)
        except _UNKNOWN as error:
            return await self._told(visit, 404, str(error))
        except (StorageError, ConfigError) as error:
            is_away = isinstance(error, StorageError | SchemaMissing)
            return await self._told(visit, 503 if is_away else 400, str(error))
        if isinstance(view, Goto | Download):
            return _instead(visit, view)
        if visit.path.endswith(".json"):
            return _json(view.shape, view.status)
        return await self._rendered(visit, view, page)

    async def _scraped(self, request: Request) -> Response:
        access = await self._access(request)
        if access is None and self.site.login is not None:
            return self.site.login.ask(request)
        return scraping.refusal(access) or scraping.answer(await self._on_thread(self.site.exporter.text))

    def _post(self, post: Post) -> Endpoint:
        async def act(request: Request) -> Response:
            visit = await self._visit(request)
            if isinstance(visit, Response):
                return visit
            form = await read_form(request)
            if isinstance(form, Response):
                return form
            why_not = await self._on_thread(guard.refusal, self.site, visit, request, form, post)
            if why_not is not None:
                return await self._told(visit, 403, why_not)
            try:
                done = await self._on_thread(post.do, visit, form)
            except _UNKNOWN as error:
                return await self._told(visit, 404, str(error))
            except (Refused, DrayError) as error:
                return await self._told(visit, 409, str(error))
            finally:
                self.site.forget()
            return await self._rendered(visit, done, None) if isinstance(done, View) else self._gone_on(visit, done)

        return act

    def _gone_on(self, visit: Visit, done: Done) -> Response:
        """To the next page, which shows what was done. That is signed: a link could make the page say anything."""
        said = done.said[:_SAID]
        where = visit.url(done.where, said=said, signed=self.site.sign(_said(visit.access, said)))
        return RedirectResponse(where, status_code=303)

    async def _visit(self, request: Request) -> Visit | Response:
        access = await self._access(request)
        if access is None and self.site.login is not None:
            return self.site.login.ask(request)
        if access is None:
            return Response("You may not see this dashboard.", 403, media_type="text/plain")
        await self._on_thread(self.site.open)
        root = request.scope.get("root_path", "")
        said = request.query_params.get("said")
        is_ours = said is not None and self.site.is_signed(_said(access, said), request.query_params.get("signed"))
        path = request.scope["path"].removeprefix(root)
        return Visit(
            site=self.site,
            access=access,
            path=path,
            root=root,
            params={name: from_path(str(value)) for name, value in request.path_params.items()},
            query={name: value for name, value in request.query_params.items() if name not in {"said", "signed"}},
            is_fragment=request.headers.get("hx-request") == "true" and not path.endswith(".json"),
            said=said if is_ours else None,
            many={name: request.query_params.getlist(name) for name in request.query_params},
        )

    async def _access(self, request: Request) -> Access | None:
        rule = self.site.access
        if inspect.iscoroutinefunction(rule):
            return granted(await rule(request))
        answer = await self._on_thread(rule, request)  # it may read a session from a database
        return granted(await answer if inspect.isawaitable(answer) else answer)

    async def _on_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await anyio.to_thread.run_sync(function, *args, limiter=self._threads)

    async def _rendered(self, visit: Visit, view: View, page: Page | None) -> Response:
        topics = view.topics if view.topics is not None or page is None else page.topics

        def render() -> str:
            given: dict[str, Any] = {
                "visit": visit,
                "url": visit.url,
                "title": view.title,
                "nav": page.nav if page else view.nav,
                "topics": " ".join(sorted(topics or ())),
                "frame": "fragment.html" if visit.is_fragment else "base.html",
                "version": __version__,
                "assets": assets.version(),
                "place": self.site.core.settings.place,
                "menu": {} if page is None or visit.is_fragment else self.site.menu(visit.access),
            }
            return self.site.templates.get_template(view.template).render(**given, **view.data)

        text = await self._on_thread(render)
        return Response(text, view.status, media_type="text/html")

    async def _told(self, visit: Visit, status: int, text: str) -> Response:
        if visit.path.endswith(".json"):
            return _json({"error": text}, status)
        title = {404: "Not found", 503: "Out of reach"}.get(status, "Not done")
        view = View("told.html", title, {"text": text, "status": status}, None, status)
        return await self._rendered(visit, view, None)

    async def _missing(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        visit = await self._visit(request)
        if isinstance(visit, Response):
            return visit
        texts = {404: "There is no such page.", 405: f"This address does not take {request.method}."}
        answer = await self._told(visit, error.status_code, texts.get(error.status_code, error.detail))
        answer.headers.update(error.headers or {})
        return answer

    async def _failed(self, request: Request, error: Exception) -> Response:  # noqa: ARG002 - Starlette's signature
        return Response("Dray's dashboard failed; its log says why.", 500, media_type="text/plain")


def _said(access: Access, text: str) -> str:
    return f"said:{access.role}:{access.user}:{text}"


def _instead(visit: Visit, made: Goto | Download) -> Response:
    """What a page sends in its place."""
    if isinstance(made, Goto):
        return RedirectResponse(visit.url(made.where), status_code=303)
    headers = {"content-disposition": f'attachment; filename="{made.name}"'}
    return StreamingResponse(made.parts, media_type=made.media_type, headers=headers)


def _why_not(visit: Visit, page: Page) -> str | None:
    """Why a visitor may not see a page; None: they may."""
    if page.is_whole and visit.access.queues is not None:
        return "This page is of the whole database: you see some queues alone."
    if page.verb is not None and not visit.may(page.verb):
        return f"You may not {page.verb} here: your role is {visit.access.role}."
    return None


def _json(shape: Any, status: int) -> Response:
    text = json.dumps(shape, default=lambda value: iso(value) if hasattr(value, "astimezone") else str(value))
    return Response(text, status, media_type="application/json")

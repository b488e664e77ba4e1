"""`/events`: what a browser hears while a page is open, and when that ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dray import Access, App, dashboard
from dray.web import feed, stream
from dray.web.dashboard import Dashboard
from tests.web.browsing import Visitor

PATIENCE = 20.0


class Answer:
    """An answer as it arrives."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.text = ""
        self.is_over = False
        self._news = asyncio.Event()

    async def take(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.text += message.get("body", b"").decode()
            self.is_over = not message.get("more_body", False)
        self._news.set()

    async def until(self, holds: Callable[[Answer], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not holds(self):
                await self._news.wait()
                self._news.clear()


@asynccontextmanager
async def listening(site: Dashboard) -> AsyncGenerator[Answer]:
    """Asks for the stream as a server does; leaving it closes the connection."""
    gone, answer = asyncio.Event(), Answer()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/events",
        "raw_path": b"/events",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"testserver")],
        "client": ("127.0.0.1", 1),
        "server": ("testserver", 80),
    }
    request = asyncio.create_task(site(scope, receive, answer.take))  # pyright: ignore[reportArgumentType]
    try:
        await answer.until(lambda it: it.status != 0)
        yield answer
    finally:
        gone.set()
        async with asyncio.timeout(PATIENCE):
            await request


def seen_by(app: App, role: Any = "admin") -> Dashboard:
    return dashboard(app, access=lambda _: Access(role, "ann"))


def test_a_stream_tells_topics_and_nothing_else(app: App) -> None:
    site = seen_by(app)

    async def listen() -> None:
        async with listening(site) as answer:
            assert answer.status == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["cache-control"] == "no-store"
            await answer.until(lambda it: "schedules" in it.text)  # the first look
            said = len(answer.text)
            await asyncio.to_thread(app.pause, "secret-name")
            await answer.until(lambda it: "queues" in it.text[said:])
            assert answer.text[said:] == "event: topics\ndata: queues\n\n"

    asyncio.run(listen())


def test_a_silent_stream_has_a_heartbeat(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_HEARTBEAT", 0.1)
    monkeypatch.setattr(stream, "_LOOK_UP", 0.05)
    site = seen_by(app)

    async def listen() -> None:
        async with listening(site) as answer:
            await answer.until(lambda it: it.text.count("\n:\n\n") >= 2)

    asyncio.run(listen())


def test_streams_end_at_once_when_the_dashboard_closes(app: App) -> None:
    site = seen_by(app)

    async def listen() -> None:
        async with listening(site) as one, listening(site) as other:
            site.site.close()
            await one.until(lambda it: it.is_over)
            await other.until(lambda it: it.is_over)
        async with listening(site) as late:
            assert late.status == 503

    asyncio.run(listen())


def test_streams_end_when_the_server_wants_to_stop(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn waits for open responses before it tells the application anything."""

    class Server:
        should_exit = False

        def handle_exit(self, *_: object) -> None:
            self.should_exit = True

    server = Server()
    monkeypatch.setattr(stream.signal, "getsignal", {signal.SIGTERM: server.handle_exit}.get)
    site = seen_by(app)

    async def listen() -> None:
        async with listening(site) as answer:
            server.handle_exit()
            await answer.until(lambda it: it.is_over)

    asyncio.run(listen())


def test_a_stream_ends_when_access_is_taken_away(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_ACCESS_EVERY", 0.0)
    monkeypatch.setattr(stream, "_LOOK_UP", 0.05)
    granted: list[str | None] = ["operator"]
    site = dashboard(app, access=lambda _: granted[0])  # pyright: ignore[reportArgumentType]

    async def listen() -> None:
        async with listening(site) as answer:
            await answer.until(lambda it: "jobs" in it.text)
            assert not answer.is_over
            granted[0] = "viewer"
            await answer.until(lambda it: it.is_over)
        granted[0] = None
        async with listening(site) as refused:
            assert refused.status == 403

    asyncio.run(listen())


def test_more_streams_than_a_login_may_have_are_asked_to_come_back(app: App) -> None:
    site = seen_by(app)

    async def listen(left: int) -> None:
        if left:
            async with listening(site) as answer:
                assert answer.status == 200
                await listen(left - 1)
            return
        async with listening(site) as beyond:
            assert beyond.status == 503
            assert beyond.headers["retry-after"] == "5"

    asyncio.run(listen(feed.STREAMS_OF_LOGIN))

    async def listen_again() -> None:
        async with listening(site) as answer:
            assert answer.status == 200

    asyncio.run(listen_again())


def test_below_wsgi_there_is_no_stream_and_the_page_polls(app: App, visitor: Visitor) -> None:
    site = seen_by(app)
    site.site.is_wsgi = True
    below_wsgi = Visitor(site, Access("admin", "ann"))

    assert below_wsgi.client.get("/events").status_code == 503
    assert 'data-events=""' in below_wsgi.page("/queues")
    assert 'data-poll="2"' in below_wsgi.page("/queues")
    assert 'data-events="/events"' in visitor.page("/queues")


# Fragments


def _fragment(visitor: Visitor, etag: str = "") -> Any:
    return visitor.client.get("/queues", headers={"hx-request": "true", "if-none-match": etag})


def test_a_fragment_that_has_not_changed_is_not_sent_again(app: App, visitor: Visitor) -> None:
    first = _fragment(visitor)
    assert _fragment(visitor, first.headers["etag"]).status_code == 304

    app.pause("mail")
    visitor.come_later()  # a second later
    assert "mail" in _fragment(visitor, first.headers["etag"]).text


def test_while_the_feed_runs_tabs_that_show_the_same_share_one_reading(
    app: App, visitor_as: Callable[..., Visitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = seen_by(app)
    tab, other = Visitor(site, Access("admin", "ann")), Visitor(site, Access("admin", "ann"))
    readings = list[str]()
    monkeypatch.setattr(site, "_rendered", _counted(site._rendered, readings))

    async def listen() -> None:
        async with listening(site) as answer:
            await answer.until(lambda it: "schedules" in it.text)
            first = await asyncio.to_thread(_fragment, tab)
            assert (await asyncio.to_thread(_fragment, other)).text == first.text
            assert (await asyncio.to_thread(_fragment, other, first.headers["etag"])).status_code == 304
            assert len(readings) == 1

            said = len(answer.text)
            await asyncio.to_thread(app.pause, "mail")
            await answer.until(lambda it: "queues" in it.text[said:])
            assert "mail" in (await asyncio.to_thread(_fragment, tab, first.headers["etag"])).text
            assert len(readings) == 2

    asyncio.run(listen())


def _counted(render: Callable[..., Awaitable[Any]], readings: list[str]) -> Callable[..., Awaitable[Any]]:
    async def rendered(visit: Any, *given: Any) -> Any:
        readings.append(visit.path)
        return await render(visit, *given)

    return rendered


def test_visitors_with_other_rights_share_nothing(app: App) -> None:
    app.pause("mail")
    app.pause("reports")
    rights = {"ann": Access("viewer", "ann"), "ben": Access("viewer", "ben", ["mail"])}
    site = dashboard(app, access=lambda request: rights[request.headers["x-user"]])

    async def listen() -> None:
        async with asyncio.timeout(PATIENCE):
            while site.site.feed.version({"jobs"}) is None:
                await asyncio.sleep(0.01)

    heard = site.site.feed.join("cem", lambda: None)
    assert heard is not None
    asyncio.run(listen())
    client = Visitor(site, rights["ann"]).client
    pages = {
        user: client.get("/queues", headers={"hx-request": "true", "x-user": user}).text for user in ("ann", "ben")
    }
    site.site.close()

    assert "reports" in pages["ann"]
    assert "reports" not in pages["ben"]

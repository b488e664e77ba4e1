"""The dashboard inside other applications, under a prefix. tests_integrations/web does the same in frameworks."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from dray import Access, App, dashboard
from dray.web.dashboard import Dashboard
from tests.web import mounted
from tests.web.mounted import HOME, PREFIX, Browser, access


def in_starlette(made: Dashboard) -> Browser:
    async def home(_: Request) -> PlainTextResponse:
        return PlainTextResponse(HOME)

    return Browser(asgi=Starlette(routes=[Mount(PREFIX, made), Route("/", home)]))


def in_plain_wsgi(made: Dashboard) -> Browser:
    jobs = made.wsgi()

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        """As docs/how-to/dashboard.md has it."""
        if f"{environ['PATH_INFO']}/".startswith(f"{PREFIX}/"):
            environ["SCRIPT_NAME"] += PREFIX
            environ["PATH_INFO"] = environ["PATH_INFO"].removeprefix(PREFIX)
            return jobs(environ, start_response)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [HOME.encode()]

    return Browser(wsgi=application)


@pytest.fixture
def made(app: App) -> Generator[Dashboard]:
    app.queue("mail", priority=0)
    dashboard_of_app = dashboard(app, access=access)
    yield dashboard_of_app
    dashboard_of_app.close()


@pytest.fixture(params=[in_starlette, in_plain_wsgi])
def browser(request: pytest.FixtureRequest, made: Dashboard) -> Browser:
    return request.param(made)


def test_it_lives_below_its_prefix_and_leaves_the_rest_alone(browser: Browser, made: Dashboard, app: App) -> None:
    mounted.lives_below_its_prefix(browser, made, app)


def test_a_stranger_sees_nothing_of_it(browser: Browser) -> None:
    mounted.shows_nothing_to_a_stranger(browser)


def test_wsgi_pages_ask_again_instead_of_streaming(made: Dashboard) -> None:
    mounted.asks_again_instead_of_streaming(in_plain_wsgi(made), made)


def test_wsgi_refuses_an_address_that_is_no_text(made: Dashboard) -> None:
    said: list[str] = []
    environ = {"PATH_INFO": "/\xff", "QUERY_STRING": "", "REQUEST_METHOD": "GET"}

    def start_response(status: str, _: object) -> None:
        said.append(status)

    made.wsgi()(environ, start_response)

    assert said == ["400 Bad Request"]


def seen(wsgi: Any) -> str:
    return Browser(wsgi=wsgi).get("/queues")[1]


def test_wsgi_works_in_processes_that_were_forked_after_its_first_request(made: Dashboard) -> None:
    """As servers do that load the application first."""
    wsgi = made.wsgi()
    assert "mail" in seen(wsgi)
    child = os.fork()
    if child == 0:
        os._exit(0 if "mail" in seen(wsgi) else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "mail" in seen(wsgi)


def test_wsgi_can_be_closed_and_used_again(made: Dashboard) -> None:
    wsgi = made.wsgi()
    for _ in range(2):
        assert "mail" in seen(wsgi)
        made.close()
        made.close()


def test_an_access_rule_may_be_a_coroutine(app: App) -> None:
    async def rule(request: Request) -> Access | None:
        return access(request)

    client = TestClient(dashboard(app, access=rule))

    assert client.get("/queues").status_code == 403
    assert client.get("/queues", headers={"x-user": "ann"}).status_code == 200


def test_served_as_it_is_its_lifespan_ends_the_streams(app: App) -> None:
    made = dashboard(app, access=access)

    with TestClient(made) as client:
        assert client.get("/queues", headers={"x-user": "ann"}).status_code == 200
        assert not made.site.closing.is_set()

    assert made.site.closing.is_set()

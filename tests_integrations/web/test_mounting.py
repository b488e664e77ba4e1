"""The dashboard inside the frameworks, under a prefix: the real ones, asked in this process."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import django
import flask
import pytest
from django.conf import settings as django_settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path as django_path
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from dray import App, dashboard
from dray.web.dashboard import Dashboard
from tests.web import mounted
from tests.web.mounted import HOME, PREFIX, Browser, access


def django_home(_: HttpRequest) -> HttpResponse:
    return HttpResponse(HOME.encode())


urlpatterns = [django_path("", django_home)]


def configure_django() -> None:
    if not django_settings.configured:
        django_settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x", USE_TZ=True)
        django.setup()


def in_fastapi(made: Dashboard) -> Browser:
    api = FastAPI()

    @api.get("/")
    def home() -> str:
        return HOME

    api.mount(PREFIX, made)
    return Browser(asgi=api)


def in_django_asgi(made: Dashboard) -> Browser:
    return Browser(asgi=Starlette(routes=[Mount(PREFIX, made), Mount("/", get_asgi_application())]))


def in_flask(made: Dashboard) -> Browser:
    site = flask.Flask(__name__)

    @site.get("/")
    def home() -> str:
        return HOME

    return Browser(wsgi=DispatcherMiddleware(site.wsgi_app, {PREFIX: made.wsgi()}))


def in_django_wsgi(made: Dashboard) -> Browser:
    jobs, rest = made.wsgi(), get_wsgi_application()

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        """As docs/how-to/dashboard.md has it."""
        if f"{environ['PATH_INFO']}/".startswith(f"{PREFIX}/"):
            environ["SCRIPT_NAME"] += PREFIX
            environ["PATH_INFO"] = environ["PATH_INFO"].removeprefix(PREFIX)
            return jobs(environ, start_response)
        return rest(environ, start_response)

    return Browser(wsgi=application)


ASGI, WSGI = (in_fastapi, in_django_asgi), (in_flask, in_django_wsgi)


@pytest.fixture
def app(made_url: str) -> Generator[App]:
    with App(made_url) as opened:
        opened.queue("mail", priority=0)
        yield opened


@pytest.fixture
def made(app: App) -> Generator[Dashboard]:
    dashboard_of_app = dashboard(app, access=access)
    yield dashboard_of_app
    dashboard_of_app.close()


@pytest.fixture(params=[*ASGI, *WSGI])
def browser(request: pytest.FixtureRequest, made: Dashboard) -> Generator[Browser]:
    configure_django()
    # Another test may have been the first to configure it in this process.
    with override_settings(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"]):
        yield request.param(made)


def test_it_lives_below_its_prefix_and_leaves_the_rest_alone(browser: Browser, made: Dashboard, app: App) -> None:
    mounted.lives_below_its_prefix(browser, made, app)


def test_a_stranger_sees_nothing_of_it(browser: Browser) -> None:
    mounted.shows_nothing_to_a_stranger(browser)


@pytest.mark.parametrize("mount", WSGI)
def test_wsgi_pages_ask_again_instead_of_streaming(made: Dashboard, mount: Callable[[Dashboard], Browser]) -> None:
    mounted.asks_again_instead_of_streaming(mount(made), made)


def test_an_access_rule_can_read_the_session_of_flask(app: App) -> None:
    site = flask.Flask(__name__)
    site.secret_key = "x"

    @site.get("/login")
    def login() -> str:
        flask.session["role"] = "operator"
        return ""

    def by_session(request: Request) -> Any:
        with site.request_context(request.scope["wsgi_environ"]):
            return flask.session.get("role")

    made = dashboard(app, access=by_session)
    client = Client(DispatcherMiddleware(site.wsgi_app, {PREFIX: made.wsgi()}))
    try:
        assert "may not see" in client.get(f"{PREFIX}/queues").text
        client.get("/login")
        assert "operator" in client.get(f"{PREFIX}/queues").text
    finally:
        made.close()

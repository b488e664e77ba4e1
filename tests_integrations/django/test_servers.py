"""A real Django server, with the settings of connections that projects have: what a view has enqueued stands or falls
with its rows, also when the server is killed beside the commit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from dray import App
from tests.backends import beside
from tests_integrations.django.conftest import postgres, sqlite
from tests_integrations.django.test_runners import SHOP
from tests_integrations.serving import served

SETTINGS = '''
import json, os, signal, sys
if "ONLY_PSYCOPG2" in os.environ:  # Django takes psycopg 3 where it finds it, and Dray needs it
    sys.modules["psycopg"] = None
    import django.db.backends.postgresql.base
    del sys.modules["psycopg"]

SECRET_KEY = "x"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["dray.integrations.django", "shop"]
MIDDLEWARE = ["settings.killing"]
DATABASES = {"default": json.loads(os.environ["SHOP_DATABASE"])}
TASKS = {"default": {"BACKEND": "dray.integrations.django.DrayBackend", "QUEUES": []}}


def killing(get_response):
    """Outside the transaction of ATOMIC_REQUESTS."""
    def respond(request):
        response = get_response(request)
        if request.path == "/after":
            os.kill(os.getpid(), signal.SIGKILL)
        return response
    return respond
'''
URLS = """
import os, signal
from django.db import connection
from django.http import JsonResponse
from django.urls import path
from shop.models import Order
from shop.tasks import send_receipt


def buy(request, moment):
    order = Order.objects.create(what="tea")
    result = send_receipt.enqueue(order.pk)
    if moment == "fail":
        raise ValueError("out of stock")
    if moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    return JsonResponse({"receipt": result.id, "driver": type(connection.connection).__module__.partition(".")[0]})


urlpatterns = [path("<str:moment>", buy)]
"""
KINDS: dict[str, dict[str, Any]] = {  # beside ATOMIC_REQUESTS; OPTIONS are added to those of the address
    "sqlite": {},
    "postgres": {},
    "pool": {"OPTIONS": {"pool": {"min_size": 1, "max_size": 2}}},
    "CONN_MAX_AGE": {"CONN_MAX_AGE": 600, "CONN_HEALTH_CHECKS": True},
    "psycopg2": {},
}


class Site:
    """A project in a folder of its own, its tables made."""

    def __init__(self, folder: Path, kind: str, url: str) -> None:
        self.url, self.folder, given = url, folder, KINDS[kind]
        if url.startswith("sqlite"):
            database = sqlite(url.removeprefix("sqlite:///"))
        else:
            database = postgres(url)
            server, _, schema = url.partition("&schema=")
            with psycopg.connect(server, autocommit=True) as connection:
                connection.execute(f'CREATE SCHEMA "{schema}"'.encode())
        options = {**database["OPTIONS"], **given.get("OPTIONS", {})}
        database |= {"ATOMIC_REQUESTS": True, **given, "OPTIONS": options}
        self.environ = {"SHOP_DATABASE": json.dumps(database), "DJANGO_SETTINGS_MODULE": "settings"}
        if kind == "psycopg2":
            self.environ["ONLY_PSYCOPG2"] = "1"
        shutil.copytree(SHOP / "shop", folder / "shop", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "settings.py").write_text(SETTINGS)
        (folder / "urls.py").write_text(URLS)
        self.run("migrate", "-v0")

    def run(self, *words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "django", *words],
            cwd=self.folder,
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def served(self) -> Any:
        words = ("django", "runserver", "127.0.0.1:{port}", "--noreload", "--skip-checks")
        return served(*words, folder=self.folder, port=None, **self.environ)

    def orders(self) -> list[str]:
        return [row[0] for row in beside.rows(self.url, "SELECT receipt FROM shop_order ORDER BY id")]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def site(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Site:
    url = request.getfixturevalue("sqlite_url" if kind == "sqlite" else "postgres_url")
    return Site(tmp_path, kind, url)


def test_a_server_that_is_killed_between_commit_and_answer_loses_nothing(site: Site, kind: str) -> None:
    with closing(App(site.url)) as app:
        with site.served() as server:
            assert server.client.get("/fail").status_code == 500
            assert (app.jobs(), site.orders()) == ([], [])
            for _ in range(3):  # each goes on where the one before has ended
                made = server.client.get("/well").json()
                assert app.job(made["receipt"]).state == "queued"
                assert made["driver"] == {"sqlite": "sqlite3", "psycopg2": "psycopg2"}.get(kind, "psycopg")
            with pytest.raises(httpx2.TransportError):
                server.client.get("/after")
            assert server.wait() == -9
        assert (len(app.jobs(state="queued")), site.orders()) == (4, [""] * 4)

        site.run("dray_worker", "--burst")

        assert [job.state for job in app.jobs()] == ["completed"] * 4
        assert site.orders() == ["1 tea"] * 4


@pytest.mark.parametrize("kind", ["sqlite", "postgres"], indirect=True)
def test_a_server_that_is_killed_before_the_commit_leaves_neither_an_order_nor_a_job(site: Site) -> None:
    with closing(App(site.url)) as app, site.served() as server:
        with pytest.raises(httpx2.TransportError):
            server.client.get("/before")
        assert server.wait() == -9
        assert (app.jobs(), site.orders()) == ([], [])

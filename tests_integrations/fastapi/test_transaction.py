"""A session whose commit comes before the response, in a real server and in this process."""

import signal
import sqlite3
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import httpx2
import psycopg
import pytest
from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, text

from dray import App
from dray.errors import ConfigError
from dray.integrations import fastapi as integration
from dray.integrations.fastapi import transaction
from tests_integrations.serving import PATIENCE, served, until

SHOP = """
import os, pathlib, time
from typing import Annotated
import dray
from dray.integrations.fastapi import transaction
from fastapi import FastAPI
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session, sessionmaker

jobs = dray.App(os.environ["SHOP_URL"], migrate=True)
engine = create_engine(os.environ["SHOP_URL"])


@jobs.task(name="confirm")
def confirm(order: int) -> None: ...


def hold(*_):
    pathlib.Path("held").touch()
    deadline = time.monotonic() + 60
    while not pathlib.Path("go on").exists() and time.monotonic() < deadline:
        time.sleep(0.02)


event.listen(*((engine, "commit") if os.environ["HOLD"] == "before" else (Session, "after_commit")), hold)
web = FastAPI(lifespan=jobs.lifespan())


@web.post("/orders")
def place_order(session: Annotated[Session, transaction(sessionmaker(engine))]) -> str:
    return confirm.using(connection=session).enqueue(7).id
"""
UVICORN = ("uvicorn", "shop:web", "--port", "{port}")


def test_a_client_has_the_id_of_a_job_only_once_that_is_committed(shop_url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    with (
        ThreadPoolExecutor(1) as pool,
        served(*UVICORN, folder=tmp_path, SHOP_URL=shop_url, HOLD="before") as server,
        App(shop_url) as app,
    ):
        answer = pool.submit(server.client.post, "/orders")
        until((tmp_path / "held").exists)  # its commit has begun, and takes long
        assert not wait([answer], timeout=0.5).done
        assert app.jobs() == []

        (tmp_path / "go on").touch()

        assert app.job(answer.result(PATIENCE).json()).state == "queued"


def test_a_server_that_is_killed_between_commit_and_answer_loses_no_job(shop_url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    with (
        ThreadPoolExecutor(1) as pool,
        served(*UVICORN, folder=tmp_path, SHOP_URL=shop_url, HOLD="after") as server,
        App(shop_url) as app,
    ):
        answer = pool.submit(server.client.post, "/orders")
        until((tmp_path / "held").exists)
        server.tell(signal.SIGKILL)
        with pytest.raises(httpx2.TransportError):
            answer.result(PATIENCE)

        ran: list[int] = []
        app.task(name="confirm")(_remember(ran))
        assert app.worker().run_until_idle() == 1
        assert ran == [7]


def _remember(ran: list[int]) -> Callable[[int], None]:
    def confirm(order: int) -> None:
        ran.append(order)

    return confirm


@pytest.fixture
def app(shop_url: str) -> Generator[App]:
    with App(shop_url) as opened:
        opened.init()
        yield opened


def site(app: App, opened: Callable[[], Any]) -> TestClient:
    """Enqueues in a transaction, and then ends as it is told to."""
    web = FastAPI()

    @web.post("/{ending}")
    def enqueue(ending: str, connection: Annotated[Any, transaction(opened)]) -> str:
        job = app.enqueue("confirm", {"order": 7}, connection=connection)
        if ending == "refuse":
            raise HTTPException(409)
        if ending == "fail":
            raise ZeroDivisionError
        return job.id

    return TestClient(web, raise_server_exceptions=False)


def test_a_plain_connection_of_sqlalchemy_does_too(app: App, shop_url: str) -> None:
    engine = create_engine(shop_url)
    browser = site(app, engine.connect)

    assert browser.post("/refuse").status_code == 409
    assert browser.post("/fail").status_code == 500
    assert app.jobs() == []
    assert app.job(browser.post("/succeed").json()).state == "queued"
    engine.dispose()


def test_a_connection_of_sqlite3_does_too(sqlite_url: str) -> None:
    path = sqlite_url.removeprefix("sqlite:///")
    with App(sqlite_url) as app:
        app.init()
        browser = site(app, lambda: closing(sqlite3.connect(path, check_same_thread=False)))

        assert browser.post("/refuse").status_code == 409
        assert app.jobs() == []
        assert app.job(browser.post("/succeed").json()).state == "queued"


def test_a_connection_of_psycopg_does_too(postgres_url: str) -> None:
    with App(postgres_url) as app:
        app.init()
        browser = site(app, lambda: psycopg.connect(postgres_url.partition("&schema")[0]))

        assert browser.post("/refuse").status_code == 409
        assert app.jobs() == []
        assert app.job(browser.post("/succeed").json()).state == "queued"


def test_a_commit_that_fails_is_an_error_to_the_client(app: App, shop_url: str) -> None:
    engine = create_engine(shop_url)
    reference = "INTEGER REFERENCES customers DEFERRABLE INITIALLY DEFERRED"
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE customers (id INTEGER PRIMARY KEY)"))
        connection.execute(text(f"CREATE TABLE orders (customer {reference})"))
    web = FastAPI()

    @web.post("/orders")
    def place_order(connection: Annotated[Any, transaction(engine.connect)]) -> str:
        if engine.name == "sqlite":
            connection.execute(text("PRAGMA foreign_keys = ON"))
        connection.execute(text("INSERT INTO orders VALUES (1)"))
        return app.enqueue("confirm", {"order": 7}, connection=connection).id

    assert TestClient(web, raise_server_exceptions=False).post("/orders").status_code == 500
    assert app.jobs() == []
    engine.dispose()


def test_what_opens_no_session_is_refused() -> None:
    def get_session() -> Generator[int]:
        yield 1

    with pytest.raises(ConfigError, match=r"write Depends\(get_session, scope='function'\)"):
        transaction(get_session)
    with pytest.raises(ConfigError, match="not a Engine"):
        transaction(create_engine("sqlite://"))  # pyright: ignore[reportArgumentType]

    async def connect() -> int:
        return 1

    web = FastAPI()

    @web.get("/")
    def show(session: Annotated[Any, transaction(connect)]) -> None: ...

    with pytest.raises(ConfigError, match="returns a coroutine"):
        TestClient(web).get("/")


def test_a_fastapi_without_scopes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integration, "Depends", lambda dependency: dependency)  # as before 0.121

    with pytest.raises(ConfigError, match=r"use 0\.121 or newer"):
        transaction(lambda: None)

"""`app.lifespan()` in FastAPI, served by a real uvicorn."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient

from dray import App
from tests_integrations.serving import PATIENCE, served, until

SHOP = """
import os, pathlib, time
import dray
from fastapi import FastAPI

jobs = dray.App(os.environ["SHOP_URL"], migrate=True)


@jobs.task(name="slow")
def slow() -> str:
    pathlib.Path("began").touch()
    deadline = time.monotonic() + 60
    while not pathlib.Path("go on").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return "completed"


web = FastAPI(lifespan=jobs.lifespan(worker=True, grace=60))


@web.post("/slow")
def enqueue() -> str:
    return slow.enqueue().id
"""


def test_sigterm_of_the_server_lets_a_running_job_complete(url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    with served("uvicorn", "shop:web", "--port", "{port}", folder=tmp_path, SHOP_URL=url) as server:
        job_id = server.client.post("/slow").json()
        until((tmp_path / "began").exists)

        server.tell(signal.SIGTERM)
        server.client.close()
        with App(url) as app:
            assert app.job(job_id).state == "running"
            (tmp_path / "go on").touch()

            assert server.wait() == -signal.SIGTERM  # how uvicorn ends
            job = app.job(job_id)
            assert (job.state, job.result(timeout=0)) == ("completed", "completed")
            assert active(app) == []
    assert "Application shutdown complete" in server.log


def test_each_process_of_a_server_has_a_worker_and_all_stop_with_it(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    with (
        App(sqlite_url) as app,
        served(
            "uvicorn", "shop:web", "--port", "{port}", "--workers", "2", folder=tmp_path, SHOP_URL=sqlite_url
        ) as server,
    ):
        until(lambda: len(active(app)) == 2)

        server.tell(signal.SIGTERM)

        server.wait()
        assert active(app) == []


def active(app: App) -> list[str]:
    return [each.id for each in app.workers() if each.state == "active"]


def test_a_server_whose_tables_are_missing_does_not_start(postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.replace(", migrate=True", ""))
    done = subprocess.run(
        [sys.executable, "-m", "uvicorn", "shop:web", "--port", "0"],
        cwd=tmp_path,
        env={"SHOP_URL": postgres_url},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert done.returncode == 3
    assert "dray db init" in done.stderr
    assert "Application startup failed" in done.stderr


def test_routers_may_have_lifespans_too(url: str) -> None:
    """FastAPI enters those of routers inside that of the application."""
    app = App(url, migrate=True)

    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    router = APIRouter(lifespan=app.lifespan(worker=True))
    web = FastAPI(lifespan=app.lifespan())
    web.include_router(router)

    with TestClient(web):
        assert add.enqueue(1, 2).result(timeout=PATIENCE) == 3
    app.close()

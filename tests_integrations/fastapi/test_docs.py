"""The page about FastAPI runs as shown."""

import re
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "fastapi.md"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """All names of its code, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.+?)```", PAGE.read_text(), re.S))
    names: dict[str, Any] = {"__name__": "shop"}
    exec(compile(code, "shop.py", "exec"), names)
    return names


def test_its_application_runs_without_a_worker(page: dict[str, Any]) -> None:
    page["test_an_order_is_confirmed"]()

    web: FastAPI = page["web"]
    with TestClient(web) as browser:
        assert browser.get("/ops/jobs/jobs").status_code == 403
        assert "orders.confirm" in browser.get("/ops/jobs/jobs", headers={"x-remote-user": "ann"}).text
    page["jobs"].close()
    page["engine"].dispose()


def test_its_server_with_a_worker_runs_jobs(page: dict[str, Any]) -> None:
    with TestClient(page["with_worker"]):
        assert page["confirm"].enqueue(1).result(timeout=30) == "order 1 is confirmed"
    page["jobs"].close()
    page["engine"].dispose()

"""The page about Flask, and the example, run as shown."""

from __future__ import annotations

import importlib.util
import re
import sqlite3
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flask.testing import FlaskClient

from dray.testing import drain
from tests_integrations.flask.commands import flask_dray

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "flask.md").read_text()
EXAMPLE = ROOT / "examples" / "flask" / "shop.py"


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("shop", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text("\n".join(re.findall(r"```python\n(.+?)```", PAGE, re.S)))
    return loaded(tmp_path / "shop.py")


def test_the_page_runs_as_shown(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    page.test_an_order_is_confirmed()

    shop = page.create_app()
    with sqlite3.connect("shop.db") as connection:
        connection.execute("CREATE TABLE orders (customer TEXT)")
    connection.close()
    job = page.jobs.job(page.place_order_with("ann")["job"])
    assert job.state == "queued"
    dashboard_is_for_roles(shop.test_client())
    labelled = page.label.enqueue("ann")

    flask_dray(Path.cwd(), "shop", "worker", "--burst")
    assert job.result(timeout=0) == "mail from shop@example.com to ann"
    assert labelled.result(timeout=0) == "shop: for ann"

    monkeypatch.setenv("DRAY_APP", "")  # `flask dray` sets it
    runner = shop.test_cli_runner()
    words = re.findall(r"shop (dray jobs .+)", PAGE)[0].split()
    failed, why = runner.invoke(args=words), runner.invoke(args=["dray", "why", job.id])
    assert (failed.exit_code, failed.output, why.exit_code) == (0, "", 0)
    assert "completed" in why.output
    page.jobs.close()
    page.engine.dispose()


def test_the_example_enqueues_and_shows_its_dashboard(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_URL", url)
    example: Any = loaded(EXAMPLE)
    browser: FlaskClient = example.create_app().test_client()

    job = browser.post("/orders", data={"customer": "ann"}).get_json()["job"]

    assert drain(example.jobs) == 1
    assert example.jobs.job(job).result() == "mail from shop@example.com to ann"
    dashboard_is_for_roles(browser)
    example.jobs.close()


def dashboard_is_for_roles(browser: FlaskClient) -> None:
    assert browser.get("/ops/jobs/jobs").status_code == 403
    with browser.session_transaction() as session:
        session["role"] = "viewer"
    assert "orders.confirm" in browser.get("/ops/jobs/jobs").text

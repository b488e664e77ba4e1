"""The examples run, through the framework that they show."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from fastapi.testclient import TestClient

from tests_integrations.serving import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples" / "fastapi"
Load = Callable[[str], ModuleType]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Imports an example, once more if another test has done so."""
    monkeypatch.syspath_prepend(EXAMPLES)

    def load(name: str) -> ModuleType:
        module = importlib.import_module(name)
        del sys.modules[name]
        return module

    return load


@pytest.fixture
def load(shop_url: str, fresh: Load, monkeypatch: pytest.MonkeyPatch) -> Load:
    """As `fresh`, on a database of its own without tables."""
    monkeypatch.setenv("SHOP_URL", shop_url)
    return fresh


@pytest.mark.parametrize("name", ["shop", "shop_async"])
def test_an_order_and_its_job_are_one_transaction(load: Load, name: str) -> None:
    _place_orders(load(name))


@pytest.mark.parametrize("name", ["shop_async", "shop_asyncpg"])
def test_an_order_and_its_job_are_one_transaction_of_asyncpg(
    fresh: Load, postgres_database: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_URL", postgres_database.replace("+psycopg", ""))
    _place_orders(fresh(name))


@pytest.mark.filterwarnings("ignore:.*declarative base already contains a class")  # one example, twice in a process
def test_an_order_and_its_job_are_one_transaction_with_sqlmodel(load: Load) -> None:
    from sqlmodel import SQLModel

    SQLModel.metadata.clear()
    _place_orders(load("shop_sqlmodel"))


def _place_orders(shop: ModuleType) -> None:
    with TestClient(shop.web) as browser:
        placed = browser.post("/orders", params={"customer": "ann@example.com", "pieces": 2})
        assert placed.status_code == 201
        too_many = browser.post("/orders", params={"customer": "bob@example.com", "pieces": 101})
        assert too_many.status_code == 409

        (job,) = shop.jobs.jobs()
        assert job.id == placed.json()["job"]
        assert job.task == "orders.confirm"
        assert job.result(timeout=PATIENCE) == "2 pieces for ann@example.com"
        assert browser.get("/orders/1").json()["customer"] == "ann@example.com"
        assert browser.get("/orders/2").status_code == 404
    shop.jobs.close()


def test_the_dashboard_of_the_shop_is_open_to_those_who_are_signed_in(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_WORKER", "0")
    shop = load("shop")
    with TestClient(shop.web) as browser:
        browser.post("/orders", params={"customer": "ann@example.com", "pieces": 2})
        assert not browser.get("/orders/1").json()["is_confirmed"]

        assert browser.get("/ops/jobs/jobs").status_code == 403
        assert "orders.confirm" in browser.get("/ops/jobs/jobs", headers={"x-remote-user": "ann"}).text

        assert shop.jobs.worker().run_until_idle() == 1
        assert browser.get("/orders/1").json()["is_confirmed"]
    shop.jobs.close()

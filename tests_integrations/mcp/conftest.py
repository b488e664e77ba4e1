"""An App on either database, with tasks, a busy past, and an agent that asks its MCP server."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any

import pytest

from dray import App, Context
from tests_integrations.mcp.agent import Agent

SECRET = "hunter2-xyzzy"


@pytest.fixture
def app(made_url: str) -> Generator[App]:
    with App(made_url) as made:
        add_tasks(made)
        yield made


@pytest.fixture(autouse=True)
def _quiet() -> Generator[None]:
    """The SDK sets up logging for the whole process, unless there is a handler."""
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    yield
    root.removeHandler(handler)


@pytest.fixture
def agent(app: App) -> Agent:
    """One that may only look."""
    return Agent(app)


@pytest.fixture
def actor(app: App) -> Agent:
    """One that may act."""
    return Agent(app, write=True)


def add_tasks(app: App) -> None:
    @app.task(name="shop.add")
    def add(a: int, b: int = 2) -> int:
        """Adds two numbers.

        The second is 2 if it is left out.
        """
        logging.getLogger("shop").warning("adding %s and %s", a, b)
        return a + b

    @app.task(name="shop.total")
    def total(parent_results: dict[str, int]) -> int:
        """Adds up what the steps before returned."""
        return sum(value for name, value in parent_results.items() if "-" not in name)  # by step, not by id

    @app.task(name="shop.charge", redact=["card"], max_attempts=1)
    def charge(ctx: Context, amount: int, card: str = SECRET) -> None:
        raise ConnectionError(f"the bank said no to {amount}")


def seed(app: App) -> dict[str, str]:
    """A job of most kinds, by what it is; worked on where it can be."""
    tasks: dict[str, Any] = {task.name: task for task in app._core.registry}
    ids = {
        "completed": tasks["shop.add"].enqueue(1).id,
        "failed": tasks["shop.charge"].enqueue(5, card=SECRET).id,
    }
    flow = app.workflow("etl")
    first = flow.add(tasks["shop.add"], 1, 1, step="first")
    flow.add(tasks["shop.total"], after=first, step="sum")
    ids["workflow"] = flow.enqueue().id
    app.schedule("nightly", "shop.charge", every=3600, args={"amount": 1, "card": SECRET})
    app.worker(concurrency=1).run_until_idle()
    ids["queued"] = tasks["shop.add"].using(queue="mail").enqueue(3).id
    ids["scheduled"] = tasks["shop.charge"].using(delay=3600).enqueue(7, card=SECRET).id
    ids["unknown"] = app.enqueue("other.task", {"password": SECRET}).id
    cancelled = tasks["shop.add"].enqueue(9)
    cancelled.cancel()
    ids["cancelled"] = cancelled.id
    app.pause("slow")
    return ids

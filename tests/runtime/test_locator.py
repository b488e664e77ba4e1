"""Tasks that child processes find through the locator of their App, and not in the module of their function."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

import dray
from dray.app_interface import core_of
from dray.runtime import loading
from tests.runtime import located
from tests.runtime.stage import Stage
from tests.runtime.watching import sql

pytestmark = pytest.mark.usefixtures("shared_forker")


@pytest.fixture
def app(url: str) -> Generator[dray.App]:
    """The App on the worker's database, which differs from the one that its code names."""
    with located.make() as app:
        core_of(app).change_settings(url=url)
        app.init()
        yield app


def test_a_task_without_a_decorator_runs_in_a_child(app: dray.App) -> None:
    job = app.enqueue("located.doubled", {"number": 21})
    app.worker().run_until_idle()

    assert job.result() == 42


def test_a_task_that_crashed_its_worker_is_isolated_in_a_child(app: dray.App) -> None:
    first, second = app.enqueue("who am I"), app.enqueue("who am I")
    sql(app, f"UPDATE dray_jobs SET crashes = 1 WHERE id = '{second.id}'")
    app.worker().run_until_idle()

    assert first.result() == os.getpid()
    assert second.result() != os.getpid()


def test_without_a_locator_it_cannot_run_there() -> None:
    app = dray.App("sqlite:///unused.db")
    task = core_of(app).define(located.bodies.doubled, {"name": "located.doubled"})

    assert "not to be found in module" in str(loading.locate(task))


def test_an_app_that_is_kept_in_its_module_is_found_too() -> None:
    with Stage() as stage:
        assert stage.result(core_of(located.Kept.app).registry.get("located.doubled"), number=4) == 8


@pytest.mark.parametrize(
    ("locator", "says"),
    [
        ("tests.runtime.located:gone", "there is no gone in tests.runtime.located as a child process sees it"),
        ("tests.runtime.located:nothing", "nothing is no App, and no function that returns one"),
        ("tests.runtime.nowhere:app", "No module named 'tests.runtime.nowhere'"),
        ("dray:App", "no task is named 'located.doubled' here"),
    ],
)
def test_what_a_locator_does_not_lead_to_is_an_error_of_the_attempt(locator: str, says: str) -> None:
    task = core_of(located.make(locator)).registry.get("located.doubled")
    with Stage() as stage:
        settlement = stage.run(task, number=1)

    assert settlement.outcome == "error"
    assert says in (settlement.error_message or "")

"""`flask dray …`: all that `dray` does, with the App of the Flask application."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import click
import flask
import pytest

from dray import App
from dray.cli.root import root
from dray.errors import ConfigError
from dray.integrations import flask as integration
from dray.integrations.flask import init_app
from tests_integrations.flask.commands import flask_dray

SHOP = Path(__file__).parents[2] / "examples" / "flask" / "shop.py"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `flask dray` sets, it sets for the whole process."""
    for name in ("DRAY_APP", "FLASK_APP"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def site(url: str) -> Generator[flask.Flask]:
    jobs = App(url, migrate=True)
    made = flask.Flask(__name__)
    init_app(made, jobs)

    @jobs.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    jobs.init()
    yield made
    jobs.close()


def typed(site: flask.Flask, *words: str) -> str:
    done = site.test_cli_runner().invoke(args=["dray", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_commands_work_with_the_app(site: flask.Flask) -> None:
    job = typed(site, "enqueue", "add", "a=1", "b=2").strip()

    assert job in typed(site, "jobs")
    assert "add" in typed(site, "tasks")
    assert job in typed(site, "job", "cancel", job)
    assert site.extensions["dray"].job(job).state == "cancelled"


def test_every_command_is_there(sqlite_url: str) -> None:
    site = flask.Flask(__name__)
    init_app(site, App(sqlite_url))
    commands = root.list_commands(click.Context(root))
    assert len(commands) > 20
    for name in commands:
        assert f"Usage: dray {name}" in typed(site, name, "--help")
    assert "Usage: dray [OPTIONS] COMMAND" in typed(site)


def test_a_failure_has_the_exit_code_of_dray(site: flask.Flask) -> None:
    runner = site.test_cli_runner()

    assert runner.invoke(args=["dray", "job", "show", "ffffffff"]).exit_code == 5
    assert runner.invoke(args=["dray", "jobs", "--nothing"]).exit_code == 2


def test_an_application_without_an_app_is_told_what_to_do() -> None:
    with flask.Flask("shop").app_context(), pytest.raises(ConfigError, match="init_app"):
        _ = integration.app


def test_the_worker_of_a_factory_gives_its_context_to_threads_and_child_processes(url: str, tmp_path: Path) -> None:
    jobs = App(url, migrate=True)
    confirmed = jobs.enqueue("orders.confirm", {"customer": "ann"})
    labelled = jobs.enqueue("orders.label", {"customer": "ann"})

    flask_dray(tmp_path, str(SHOP), "worker", "--burst", SHOP_URL=url)

    assert confirmed.result(timeout=0) == "mail from shop@example.com to ann"
    assert labelled.result(timeout=0) == "shop: for ann"
    jobs.close()

"""An App: its address, its options, and when it opens the database."""

from __future__ import annotations

import stat
import subprocess
import sys
import textwrap
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.address import SqliteAddress, parse_address
from dray.app import App
from dray.app_interface import core_of
from dray.errors import ConfigError, SchemaMissing, StorageUnavailable


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DRAY_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def path_of(app: App) -> Path:
    address = parse_address(app.url)
    assert isinstance(address, SqliteAddress)
    return address.path


def test_without_an_address_it_is_a_file_in_the_current_directory(here: Path) -> None:
    assert path_of(App()) == here / "dray.db"


def test_the_environment_names_the_database(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAY_URL", "sqlite:///other.db")
    assert path_of(App()) == here / "other.db"
    assert path_of(App("mine.db")) == here / "mine.db"

    monkeypatch.setenv("DRAY_URL", "")
    assert path_of(App()) == here / "dray.db"


@pytest.mark.parametrize("name", ["plain.db", "100%.db", "a b?.db", "übung#1.db"])
def test_a_path_works_whatever_is_in_it(here: Path, name: str) -> None:
    with App(here / name) as app:
        app.enqueue("x")
        assert path_of(app) == here / name
        assert path_of(App(app.url)) == here / name
        assert (here / name).exists()


def test_a_relative_path_is_resolved_when_the_app_is_made(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("sqlite:///jobs.db")
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    with app:
        app.enqueue("x")

    assert (here / "jobs.db").exists()
    assert list((here / "elsewhere").iterdir()) == []


def test_nothing_is_opened_before_it_is_used(here: Path) -> None:
    app = App()

    @app.task(name="add")
    def add(a: int) -> int:
        return a

    assert add(1) == 1
    assert repr(app) == f"<App sqlite:///{here}/dray.db>"
    app.close()
    assert list(here.iterdir()) == []


def test_it_opens_again_after_close(app: App) -> None:
    first = app.enqueue("x")
    app.close()
    app.close()

    assert app.job(first.id).state == "queued"
    assert app.enqueue("x").id != first.id


def test_a_server_that_nobody_uses_need_not_be_there() -> None:
    app = App("postgresql://ann:secret@nowhere.invalid/jobs")

    assert "secret" not in repr(app)
    assert app.url == "postgresql://ann:secret@nowhere.invalid/jobs"


def test_tables_are_made_as_it_says(empty_url: str) -> None:
    with App(empty_url, migrate=False) as app, pytest.raises((SchemaMissing, StorageUnavailable), match="dray db"):
        app.enqueue("x")
    with App(empty_url, migrate=True) as app:
        assert app.enqueue("x").state == "queued"


def test_the_file_has_the_mode_that_was_asked_for(here: Path) -> None:
    for mode in (0o600, 0o660):
        with App(f"{mode:o}.db", file_mode=mode) as app:
            app.enqueue("x")
        assert stat.S_IMODE((here / f"{mode:o}.db").stat().st_mode) == mode


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"url": 7}, TypeError, "url must be an address such as sqlite:///jobs.db, a path, or libpq's parameters"),
        ({"url": "mysql://x"}, ConfigError, "no database address that Dray knows"),
        ({"url": ":memory:"}, ConfigError, "names no file"),
        ({"durability": "strong"}, ConfigError, "durability must be one of full, default, normal, not 'strong'"),
        ({"default_timeout": 0}, ConfigError, "default_timeout must be more than 0"),
        ({"default_timeout": "5"}, TypeError, "default_timeout must be a number of seconds"),
        ({"imports": "shop.jobs"}, TypeError, "imports must be a list of module names, not str"),
        ({"imports": ["shop/jobs.py"]}, ConfigError, "'shop/jobs.py' is no module's name"),
        ({"imports": [7]}, ConfigError, "7 is no module's name"),
        ({"locator": "shop.jobs"}, ConfigError, "'shop.jobs' names no App; write module:object"),
        ({"locator": "shop/jobs.py:app"}, ConfigError, "names no App"),
        ({"locator": "shop.jobs:"}, ConfigError, "names no App"),
        ({"locator": 7}, TypeError, "locator must be a string"),
        ({"file_mode": "600"}, TypeError, "file_mode must be a number such as 0o660"),
        ({"file_mode": 600}, ConfigError, "file_mode must be permissions .* not 0o1130"),
        ({"file_mode": 0o440}, ConfigError, "let the owner read and write"),
        ({"migrate": "yes"}, TypeError, "migrate must be True or False"),
        ({"busy_timeout": -1}, ConfigError, "busy_timeout must be between 0"),
        ({"notify": 1}, TypeError, "notify must be True or False"),
        ({"listen_url": "postgresql://h/d"}, ConfigError, "a SQLite file needs none"),
        ({"url": "postgresql://h/d", "listen_url": "jobs.db"}, ConfigError, "listen_url must be a PostgreSQL"),
        ({"url": "postgresql://h/d", "listen_url": 7}, TypeError, "listen_url must be an address"),
        ({"retention": 7}, TypeError, "unexpected keyword argument 'retention'"),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(
    here: Path, options: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        App(**options)
    assert list(here.iterdir()) == []


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_modules_with_tasks_are_loaded_when_asked_for(importable: Path) -> None:
    (importable / "shop_jobs.py").write_text("LOADED = True")
    (importable / "more_jobs.py").write_text("LOADED = True")
    app = App(importable / "jobs.db", imports=["shop_jobs"])
    assert "shop_jobs" not in sys.modules

    core_of(app).load(["more_jobs"])

    assert {"shop_jobs", "more_jobs"} <= set(sys.modules)


def test_a_module_that_is_not_there_is_told_from_one_that_it_misses(importable: Path) -> None:
    (importable / "broken_jobs.py").write_text("import not_installed_here")
    app = App(importable / "jobs.db")

    with pytest.raises(ConfigError, match=r"no module 'no_such\.jobs' to import tasks from; run this where"):
        core_of(app).load(["no_such.jobs"])
    with pytest.raises(ModuleNotFoundError, match="not_installed_here"):
        core_of(app).load(["broken_jobs"])


def test_a_forked_child_uses_the_app_of_its_parent(url: str) -> None:
    code = """
        import os, sys, dray

        app = dray.App(sys.argv[1])
        os.write(1, f"{app.enqueue('x').id}\\n".encode())
        child = os.fork()
        os.write(1, f"{app.enqueue('x').id}\\n".encode())
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    """
    script = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), url]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)

    assert done.stderr == ""
    made = done.stdout.split()
    assert len(made) == len(set(made)) == 3
    with App(url) as app:
        assert {job.id for job in app.jobs()} == set(made)


def test_the_version_is_the_one_that_is_installed() -> None:
    from importlib.metadata import version

    assert dray.__version__ == version("dray")


def test_a_program_may_leave_its_app_open_though_warnings_are_errors(url: str) -> None:
    """As modules do. Python 3.13 warns of each connection that nothing has closed."""
    program = """
        import sys, dray
        app = dray.App(sys.argv[1])
        app.enqueue("x")
        print(app.stats() is not None, [job.state for job in app.jobs()])
    """
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(program), url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True ['queued']\n", "")

"""Where the database is: a new file in an unexpected folder, and an address in code beside DRAY_URL, are told of."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

import dray
from dray import settings
from dray.app import App
from dray.app_interface import core_of
from dray.backends import Backend
from dray.cli import main
from dray.errors import ConfigError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DRAY_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(settings, "_told", [])
    return tmp_path


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_plain_script_sees_once_where_its_new_file_is(here: Path) -> None:
    script = [sys.executable, "-c", "import dray; dray.App().enqueue('mail.send')"]
    said = [subprocess.run(script, capture_output=True, text=True, check=True).stderr for _ in range(2)]

    assert said == [
        f"created {here}/dray.db (App() has no address, and DRAY_URL is not set)\n",
        "",
    ]


def test_a_file_that_is_named_is_made_without_a_word(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with App("jobs.db") as app:
        app.enqueue("x")
    monkeypatch.setenv("DRAY_URL", "sqlite:///other.db")
    with App() as app:
        app.enqueue("x")
    monkeypatch.delenv("DRAY_URL")
    with App() as app:
        core_of(app).change_settings(url=f"sqlite:///{here}/scratch.db")  # as a test's own database
        app.enqueue("x")

    assert warnings(caplog) == []
    assert {"jobs.db", "other.db", "scratch.db"} <= {path.name for path in here.iterdir()}
    assert not (here / "dray.db").exists()


def test_an_address_in_code_comes_before_the_environment_and_says_so_once(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DRAY_URL", "postgresql://ann:hidden@db.example.com/production")
    for name in ("a.db", "a.db", "b.db"):
        with App(name) as app:
            app.enqueue("x")

    (said,) = warnings(caplog)
    assert said.startswith(f"sqlite:///{here}/a.db is used, as the code says: App(…); ")
    assert said.endswith("DRAY_URL names postgresql://ann:***@db.example.com/production")


@pytest.mark.parametrize(
    ("code", "variable"),
    [
        ("jobs.db", "sqlite:///jobs.db"),
        ("postgresql://h/d", "postgres://h/d"),
        (None, "sqlite:///jobs.db"),
        ("jobs.db", ""),
    ],
)
def test_there_is_nothing_to_tell_where_both_name_the_same(
    here: Path, monkeypatch: pytest.MonkeyPatch, code: str | None, variable: str
) -> None:
    monkeypatch.setenv("DRAY_URL", variable)

    assert core_of(App(code)).settings.passed_over is None


def test_a_variable_that_is_no_address_is_not_repeated(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAY_URL", "postgresql://ann:hid@den@h/d")

    assert core_of(App("jobs.db")).settings.passed_over == "something that is no address"


def test_a_fact_is_noted_once_for_each_database(backend: Backend) -> None:
    assert backend.note_once("told_of_something", "1")
    assert not backend.note_once("told_of_something", "2")
    assert backend.note_once("told_of_more", "1")
    assert backend.jobs.newest() == []
    assert [backend.noted(name) for name in ("told_of_something", "told_of_nothing")] == ["1", None]


def test_a_database_knows_whether_it_can_be_written(url: str) -> None:
    with App(url) as app:
        assert core_of(app).backend.is_writable()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "sqlite+aiosqlite:///shop.db",
            r"its own \(sqlite3\); write sqlite:///file.db for the same database",
        ),
        ("sqlite+pysqlite:///shop.db", "write sqlite:///file.db for the same"),
        ("postgresql+asyncpg://ann:hidden@h/d", r"its own \(psycopg 3\); write postgresql:// for the same database"),
        ("postgresql+psycopg2://ann:hidden@h/d", "write postgresql:// for the same"),
        ("mysql://ann:hidden@h/d", "use SQLite .* or PostgreSQL"),
        ("mysql+pymysql://ann:hidden@h/d", "use SQLite .* or PostgreSQL"),
        ("redis://h/0", "use SQLite .* or PostgreSQL"),
        (":memory:", r"outlive its process.*`with dray\.testing\.database\(app\):`"),
        ("sqlite://", r"dray\.testing\.database"),
        ("sqlite:///:memory:", r"dray\.testing\.database"),
        ("file::memory:?cache=shared", r"dray\.testing\.database"),
        ("sqlite:///file:jobs?mode=memory&cache=shared", r"dray\.testing\.database"),
    ],
)
def test_an_address_from_elsewhere_is_refused_with_the_one_to_use(here: Path, url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        App(url)

    assert "hidden" not in str(caught.value)
    assert list(here.iterdir()) == []


def test_windows_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delitem(vars(dray), "App", raising=False)  # as if it had not been used yet
    sentence = "Dray does not run on Windows yet: use WSL 2, a container, Linux or macOS"

    with pytest.raises(ImportError) as caught:
        _ = dray.App
    with pytest.raises(SystemExit) as ended:
        main(["worker"])

    assert str(caught.value) == sentence
    assert ended.value.code == f"dray: {sentence}"
    assert dray.__version__

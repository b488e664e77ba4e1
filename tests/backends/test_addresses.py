"""Addresses: what users may write, what it means, and that no message shows a password."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

import psycopg
import pytest

from dray.address import PostgresAddress, SqliteAddress, parse_address
from dray.backends import open_backend
from dray.errors import ConfigError, DrayError, StorageUnavailable
from dray.sanitize import redact
from dray.settings import Settings
from tests.backends.processes import enqueue, job_ids, raw_sql

SECRET = "s3cret"


def path_of(url: str) -> Path:
    address = parse_address(url)
    assert isinstance(address, SqliteAddress)
    return address.path


# Files


@pytest.mark.parametrize(
    "url", ["jobs.db", "./jobs.db", "sqlite:///jobs.db", "sqlite:///./jobs.db", "sub/../jobs.db"]
)
def test_a_relative_path_is_one_of_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)

    assert path_of(url) == tmp_path / "jobs.db"


def test_a_relative_path_stays_what_it_was_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backend = open_backend("sqlite:///jobs.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    made = enqueue(backend)

    backend.close()
    assert job_ids(str(tmp_path / "jobs.db")) == [made]


@pytest.mark.parametrize("prefix", ["", "sqlite:///", "file://"])
def test_an_absolute_path_is_taken_as_it_is(tmp_path: Path, prefix: str) -> None:
    assert path_of(f"{prefix}{tmp_path}/jobs.db") == tmp_path / "jobs.db"


@pytest.mark.parametrize("url", ["~/jobs.db", "sqlite:///~/jobs.db"])
def test_a_tilde_is_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    assert path_of(url) == tmp_path / "jobs.db"


def test_the_home_of_an_unknown_user_is_one_clear_line() -> None:
    with pytest.raises(ConfigError, match="nobody-of-that-name"):
        parse_address("~nobody-of-that-name/jobs.db")


def test_an_encoded_character_stands_for_itself(tmp_path: Path) -> None:
    assert path_of(f"sqlite:///{tmp_path}/my%20jobs%23%25.db") == tmp_path / "my jobs#%.db"


@pytest.mark.parametrize(
    "url",
    [
        "",
        " ",
        "\t\n",
        "sqlite://",
        "sqlite:///",
        "sqlite:///%20 ",
        ":memory:",
        "sqlite:///:memory:",
        "sqlite://:memory:",
        "file://",
    ],
)
def test_an_address_without_a_file_is_refused_because_a_queue_outlives_its_process(url: str) -> None:
    with pytest.raises(ConfigError, match="names no file") as caught:
        parse_address(url)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("query", ["mode=ro", "cache=shared", "nolock=1", "vfs=unix-none", "immutable=1"])
def test_no_setting_of_sqlite_can_be_smuggled_in(tmp_path: Path, query: str) -> None:
    with pytest.raises(ConfigError):
        open_backend(f"sqlite:///{tmp_path}/jobs.db?{query}")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    [
        "a\0b.db",
        "sqlite:///a\0b.db",
        "sqlite:///a%00b.db",
        "postgresql://u@h/d\0b",
        "postgresql://u@h/db?schema=a%00b",
        "postgresql://u@h/db?schema=a\0b",
    ],
)
def test_a_nul_character_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(url)


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://root:{SECRET}@host/db",
        f"redis://:{SECRET}@host/0",
        f"http://u:{SECRET}@h/",
        "sqlite3:///jobs.db",
    ],
)
def test_an_unknown_kind_of_database_is_refused_with_those_that_are_known(url: str) -> None:
    with pytest.raises(ConfigError, match="postgresql://") as caught:
        open_backend(url)

    assert "sqlite:///" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert SECRET not in everything_said(caught.value)


MISTYPED = [
    f"host=127.0.0.1 port=1 password={SECRET}",
    f"dbname=x\npassword = '{SECRET}'",
    f"password={SECRET}://x",
    f"postgresql:/u:{SECRET}@h/db",
    f"postgresql+psycopg:/u:{SECRET}@h/db",
    f"POSTGRESQL:u:{SECRET}@h/db",
    f"postgres:u:{SECRET}@h/db",
    f"postgresql:/u:{SECRET}://x@h/db",
    f"postgresql//u:{SECRET}@h/db",
    f" postgres:/u:{SECRET}@h/db",
    f"//u:{SECRET}@h/db",
    f"u:{SECRET}@h/db",
    "sqlite:/jobs.db",
    "sqlite:jobs.db",
]


@pytest.mark.parametrize("url", MISTYPED)
def test_a_mistyped_address_is_no_path_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match="write postgresql://user:password@host:port/database") as caught:
        open_backend(url)

    assert SECRET not in everything_said(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a=b.db", "my:jobs.db", "a@b.db", "postgres.db", "postgres/jobs.db", "./host=x.db"])
def test_a_path_with_odd_characters_is_still_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)

    assert path_of(name) == tmp_path / name


@pytest.mark.parametrize("url", [url for url in MISTYPED if not url.startswith("//")])
def test_what_looks_like_a_servers_address_can_be_a_files_name_and_shows_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)

    assert path_of(f"sqlite:///{url}") == tmp_path / url
    if "postgres" in url.lower() or "password" in url:
        assert SECRET not in redact(f"{url}: no such file")
        if "resql//" not in url:  # in a path it is just another folder
            assert SECRET not in Settings.of(f"sqlite:///{url}").place


# Servers


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_all_spellings_of_postgres_lead_to_the_server(postgres_url: str, scheme: str) -> None:
    backend = open_backend(postgres_url.replace("postgresql", scheme, 1))

    assert backend.migrate() == 7
    made = enqueue(backend)

    backend.close()
    assert job_ids(postgres_url) == [made]


def test_the_schema_is_ours_and_all_other_settings_are_the_servers() -> None:
    address = parse_address("postgresql://u:p%40w@h:5433/db?sslmode=require&schema=jobs&application_name=my+app")

    assert isinstance(address, PostgresAddress)
    assert address.schema == "jobs"
    assert address.conninfo.startswith("postgresql://u:p%40w@h:5433/db?")
    assert "schema" not in address.conninfo
    assert "sslmode=require" in address.conninfo


def test_a_space_in_a_setting_stays_one(postgres_server: str) -> None:
    """As in libpq, a plus sign stays a plus sign."""
    url = f"{postgres_server}&options=-c%20statement_timeout%3D12345"
    address = parse_address(url)
    assert isinstance(address, PostgresAddress)

    with psycopg.connect(address.conninfo) as connection:
        assert connection.execute("SHOW statement_timeout").fetchall() == [("12345ms",)]


def test_an_address_may_leave_host_and_user_to_the_defaults() -> None:
    address = parse_address("postgresql:///db?host=/run/postgresql")

    assert address == PostgresAddress("postgresql:///db?host=/run/postgresql", None)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@/db?host=/nosuch/x&schema=jobs",
        f"postgresql://u:{SECRET}@/db?host=%2Fnosuch%2Fx&schema=jobs",
        f"postgres://u:{SECRET}@/db?schema=jobs&host=/nosuch%2fx",
        f"postgresql+psycopg://u:{SECRET}@/db?host=%2Fnosuch/x&schema=jobs",
    ],
)
def test_a_servers_address_is_shown_in_one_form_however_it_is_written(url: str) -> None:
    place = "postgresql://u:***@/db?host=/nosuch/x&schema=jobs"

    assert Settings.of(url).place == place
    with pytest.raises(StorageUnavailable) as caught:
        open_backend(url).jobs.newest()
    assert str(caught.value).startswith(f"{place}: cannot be reached: ")


def test_what_would_end_a_setting_stays_encoded_where_it_is_shown() -> None:
    url = "postgresql:///db?options=-c%20a%3Db%26c&password=%40%2F%26secret&user=a%40b%23c"

    place = Settings.of(url).place

    assert place == "postgresql:///db?options=-c%20a%3Db%26c&password=***&user=a%40b%23c"


@pytest.mark.parametrize("schema", ["select", "user", "_x1", "a" * 63])
def test_any_plain_name_can_be_a_schema(postgres_server: str, schema: str) -> None:
    url = f"{postgres_server}&schema={schema}"
    backend = open_backend(url)
    try:
        assert backend.schema_version() is None
        assert backend.migrate() == backend.schema_version() == 7
        made = enqueue(backend)
        assert [job.id for job in backend.jobs.newest()] == [made]
    finally:
        backend.close()
        raw_sql(postgres_server, f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "Jobs",
        "my%20jobs",
        "my-jobs",
        "1jobs",
        "a.b",
        "a%0A",
        "%C3%BCber",
        "a" * 64,
        "%22",
        "x%22%3B%20DROP%20TABLE%20dray_jobs%3B%20--",
        "public%22.dray_jobs%3B--",
        "a'b",
        "%24user",
        "public,other",
    ],
)
def test_a_hostile_schema_name_is_refused_before_any_connection(schema: str) -> None:
    with pytest.raises(ConfigError, match="schema") as caught:
        open_backend(f"postgresql://u:{SECRET}@127.0.0.1:1/db?schema={schema}")

    assert "\n" not in str(caught.value)
    assert SECRET not in everything_said(caught.value)


# Passwords


def everything_said(error: BaseException) -> str:
    """Returns the message and everything that a traceback in a log would show."""
    return "".join(traceback.format_exception(error))


def complaint(url: str, caplog: pytest.LogCaptureFixture) -> str:
    """Returns everything that a user or a log sees of an address that does not work."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(DrayError) as caught:
        open_backend(url).jobs.newest()
    assert "\n" not in str(caught.value)
    return everything_said(caught.value) + caplog.text


@pytest.fixture
def closed_port() -> int:
    """Returns a port on which nothing listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.parametrize(
    "form",
    [
        f"postgresql://u:{SECRET}@127.0.0.1:PORT/db",
        f"postgresql+psycopg://u:{SECRET}@127.0.0.1:PORT/db",
        f"postgresql://127.0.0.1:PORT/db?user=u&password={SECRET}",
        f"postgresql://u:x%40{SECRET}@127.0.0.1:PORT/db",
        f"postgresql://:{SECRET}@127.0.0.1:PORT/db",
        f"postgresql://u:{SECRET}@nowhere.invalid:PORT/db",
        f"postgresql://u:{SECRET}@127.0.0.1:PORT,127.0.0.1:PORT/db",
        f"postgresql:///db?host=/nowhere&password={SECRET}",
    ],
)
def test_a_server_that_cannot_be_reached_is_named_without_its_password(
    form: str, closed_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = time.monotonic()
    backend = open_backend(form.replace("PORT", str(closed_port)))

    for use in (backend.jobs.newest, backend.migrate, backend.schema_version, lambda: enqueue(backend)):
        with pytest.raises(StorageUnavailable, match="cannot be reached") as caught:
            use()
        assert "\n" not in str(caught.value)
        assert SECRET not in everything_said(caught.value)

    assert time.monotonic() - before < 12
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "password",
    [
        f"{SECRET}%zz",
        f"{SECRET}%",
        f"{SECRET}#x",
        f"{SECRET}?x",
        f"{SECRET}/x",
        f"{SECRET}@x",
        f"x#{SECRET}",
        f"x?{SECRET}",
        f"x/{SECRET}",
        f"x@{SECRET}",
        f"[{SECRET}",
        f"{SECRET}]",
        f"x {SECRET}",
    ],
)
def test_a_password_that_should_have_been_encoded_is_not_shown_either(
    password: str, closed_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert SECRET not in complaint(f"postgresql://u:{password}@127.0.0.1:{closed_port}/db", caplog)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@h:notaport/db",
        f"postgresql://u:{SECRET}@h:99999/db",
        f"postgresql://u:{SECRET}@h/db?no_such_option=1",
        f"postgresql://u:{SECRET}@h/db?sslmode=maybe",
        f"postgresql://u:{SECRET}@h/db?connect_timeout=soon",
        f"postgresql://u:{SECRET}@[::1/db",
    ],
)
def test_an_address_the_driver_cannot_read_is_one_clear_line(url: str, caplog: pytest.LogCaptureFixture) -> None:
    assert SECRET not in complaint(url, caplog)


def test_a_server_that_says_nothing_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        before = time.monotonic()
        url = f"postgresql://u:{SECRET}@127.0.0.1:{port}/db?connect_timeout=2"

        with pytest.raises(StorageUnavailable) as caught:
            open_backend(url).jobs.newest()

    assert time.monotonic() - before < 6
    assert SECRET not in everything_said(caught.value)


def test_postgres_without_its_driver_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from dray.backends import open_backend\n"
        "try:\n    open_backend('postgresql://u@127.0.0.1/db')\n"
        "except ValueError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "PostgreSQL needs psycopg 3: pip install 'dray[postgres]'\n"

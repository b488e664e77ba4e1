"""A Django project in this process, on a new database for each test. Other tests may have set Django up too."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator
from typing import Any

import django
import pytest
from asgiref.local import Local
from django.apps import apps
from django.conf import settings as django_settings
from django.utils.functional import empty

from dray.address import PostgresAddress, parse_address

APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "dray.integrations.django",
    "tests_integrations.django.shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
BACKEND = "dray.integrations.django.DrayBackend"


@pytest.fixture(scope="package")
def _django() -> Generator[None]:
    before = django_settings._wrapped
    django_settings._wrapped = empty  # pyright: ignore[reportAttributeAccessIssue]
    django_settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "/nowhere/db.sqlite3"}},
        INSTALLED_APPS=APPS,
        MIDDLEWARE=MIDDLEWARE,
        TEMPLATES=TEMPLATES,
        ROOT_URLCONF="tests_integrations.django.urls",
        SECRET_KEY="x",
        ALLOWED_HOSTS=["*"],
        USE_TZ=True,
        TASKS={"default": {"BACKEND": BACKEND, "QUEUES": []}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    )
    was_ready = apps.ready
    if was_ready:
        apps.set_installed_apps(APPS)
    else:
        django.setup()
    yield
    if was_ready:
        apps.unset_installed_apps()
    _forget_connections()
    django_settings._wrapped = before


def _forget_connections() -> None:
    from django.db import connections

    connections.close_all()
    connections._settings = None
    connections.__dict__.pop("settings", None)
    connections._connections = Local(connections.thread_critical)


class Project:
    """The database that DATABASES["default"] leads to, and what is in it."""

    def __init__(self, database: dict[str, Any]) -> None:
        from django.db import connection

        use(database)
        self.connection: Any = connection
        self.is_sqlite = connection.vendor == "sqlite"

    @property
    def tasks(self) -> Any:
        return importlib.import_module("tests_integrations.django.shop.tasks")

    @property
    def orders(self) -> Any:
        return importlib.import_module("tests_integrations.django.shop.models").Order.objects

    @property
    def app(self) -> Any:
        from dray.integrations.django import app

        return app

    def make_tables(self) -> None:
        from dray.integrations.django.tables import make_on

        with self.connection.schema_editor() as editor:
            make_on(editor.connection)
        self.make_orders()

    def make_orders(self) -> None:
        from tests_integrations.django.shop.models import Order

        with self.connection.schema_editor() as editor:
            editor.create_model(Order)


def use(database: dict[str, Any]) -> None:
    """Leads DATABASES["default"] elsewhere, as test runners do."""
    from django.db import connections

    connections.close_all()
    _forget_connections()
    connections.settings = connections.configure_settings({"default": database})


def sqlite(path: Any, **options: Any) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {"transaction_mode": "IMMEDIATE", **options},
    }


def postgres(url: str, **options: Any) -> dict[str, Any]:
    """The settings that lead to the schema of an address; connections begin there."""
    from psycopg.conninfo import conninfo_to_dict

    address = parse_address(url)
    assert isinstance(address, PostgresAddress)
    found = conninfo_to_dict(address.conninfo)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": found["dbname"],
        "USER": found.get("user", ""),
        "PASSWORD": found.get("password", ""),
        "HOST": found.get("host", ""),
        "PORT": found.get("port", ""),
        "OPTIONS": {"options": f"-c search_path={address.schema}", **options},
    }


Make = Callable[..., Project]


@pytest.fixture
def make_project(_django: None, tmp_path: Any, request: pytest.FixtureRequest) -> Generator[Make]:
    """Makes a project on "sqlite", "memory" or "postgres", its tables made."""

    def make(kind: str, *, tables: bool = True, **options: Any) -> Project:
        if kind == "postgres":
            import psycopg

            url: str = request.getfixturevalue("postgres_url")
            schema = url.rpartition("schema=")[2]
            with psycopg.connect(request.getfixturevalue("postgres_server"), autocommit=True) as connection:
                connection.execute(f'CREATE SCHEMA "{schema}"'.encode())
            project = Project(postgres(url, **options))
        else:
            name = "file:memorydb_default?mode=memory&cache=shared" if kind == "memory" else tmp_path / "db.sqlite3"
            project = Project(sqlite(name, **options))
        if tables:
            project.make_tables()
        return project

    yield make
    from dray.integrations.django import backends

    backends.close()
    _close_for_good()


def _close_for_good() -> None:
    """Also a database in memory, which Django keeps."""
    from django.db import connections

    for each in connections.all(initialized_only=True):
        if each.connection is not None:
            each.connection.close()
            each.connection = None


@pytest.fixture(params=["sqlite", "postgres"])
def project(request: pytest.FixtureRequest, make_project: Make) -> Project:
    return make_project(request.param)

"""The pytest plugin `dray`: fixtures for the App that `dray_app` names in pytest's settings.

pytest loads this in every run where Dray is installed, so nothing of Dray is loaded before a fixture is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

import dray
from dray import testing

if TYPE_CHECKING:
    from dray.app import App
    from dray.testing.moving import ClockControl

_INI = "dray_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(_INI, 'the App that the dray_… fixtures use, as "module:app"', default="")


@pytest.fixture(scope="session")
def dray_app(pytestconfig: pytest.Config) -> App:
    """The App that `dray_app` names in pytest's settings. Override this fixture where a factory makes the App."""
    return find_app(str(pytestconfig.getini(_INI)).strip())


def find_app(given: str) -> App:
    """The App of ``module:app``, or a failure that says what to write."""
    module, _, name = given.partition(":")
    if not (module and name):
        is_given = f"is {given!r}" if given else "is not set"
        where = f'write {_INI} = "module:app" under [tool.pytest.ini_options] in pyproject.toml'
        pytest.fail(f"{_INI} {is_given}: {where}, or override the fixture {_INI}", pytrace=False)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there; something that it imports is not
        pytest.fail(f"{_INI} is {given!r}, and there is no module {module!r} to import", pytrace=False)
    for part in name.split("."):
        if not hasattr(found, part):
            pytest.fail(f"{_INI} is {given!r}: {part} is not there", pytrace=False)
        found = getattr(found, part)
    if not isinstance(found, dray.App):
        pytest.fail(f"{_INI} is {given!r}, which is no dray.App but {type(found).__name__}", pytrace=False)
    return found


@pytest.fixture
def dray_database(dray_app: App) -> Generator[App]:
    """The App on a database of its own, which is removed after the test: see `dray.testing.database`."""
    with testing.database(dray_app) as app:
        yield app


@pytest.fixture
def dray_drain(dray_database: App) -> Callable[..., int]:
    """Runs what is enqueued to its end, in `dray_database`: see `dray.testing.drain`."""

    def drain(**options: Any) -> int:
        return testing.drain(dray_database, **options)

    return drain


@pytest.fixture
def dray_clock(dray_database: App) -> Generator[ClockControl]:
    """The App's time in `dray_database`, which stands still until ``dray_clock.advance(seconds)``."""
    with testing.clock(dray_database) as control:
        yield control

"""`import dray` is cheap and loads no third-party module."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dray
from dray import errors

HEAVY = {"asyncio", "hashlib", "http", "psycopg", "socket", "sqlite3", "ssl", "subprocess", "unittest"}

ERRORS = {name for name, value in vars(errors).items() if getattr(value, "__module__", "") == "dray.errors"}

TASKS = """
import dray

app = dray.App("postgresql://nobody@nowhere.invalid/none")

@app.task(queue="mail", retry=dray.exponential(), max_attempts=5)
def send(to: str, ctx: dray.Context) -> None: ...
"""


def modules(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


def roots(loaded: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in loaded}


def test_importing_dray_loads_itself_and_little_else() -> None:
    loaded = modules("import dray") - modules("import typing, importlib")

    assert {name for name in loaded if name.startswith("dray")} == {"dray"}
    assert len(loaded) <= 5


@pytest.mark.parametrize("code", ["import dray", "import dray; dray.App()", TASKS])
def test_a_module_of_tasks_opens_and_loads_nothing_heavy(code: str) -> None:
    loaded = roots(modules(code) - modules("pass"))  # Debian's Python loads a module of its own at start-up

    assert loaded & HEAVY == set()
    assert {name for name in loaded - set(sys.stdlib_module_names) if not name.startswith("_")} <= {"dray"}


def test_every_name_is_where_it_is_said_to_be() -> None:
    for name in dray.__all__:
        assert getattr(dray, name).__name__ == name
        assert name in dir(dray)


def test_every_error_is_public() -> None:
    assert set(dray.__all__) >= ERRORS
    assert {name for name in ERRORS if not issubclass(getattr(errors, name), errors.DrayError)} == set()


def test_every_error_is_drawn_in_the_tree() -> None:
    assert errors.__doc__ is not None
    assert {name for name in ERRORS if f" {name} " not in errors.__doc__.replace("\n", " ")} == set()


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'dray' has no attribute 'Jbo'"):
        getattr(dray, "Jbo")  # noqa: B009 - type checkers know that the name does not exist

"""The examples in the docstrings of public names run, each on a database of its own, all in this process."""

from __future__ import annotations

import doctest
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import dray
from dray import testing
from dray.runtime.worker import Worker

# Never raised for programs to see, or only with a full disk, a lost server, a damaged file: no short code shows them.
NOT_SHOWN = {
    *(
        "DatabaseClosed",
        "FileMissing",
        "ForkedConnection",
        "Misfit",
        "MoveError",
        "ProcessDied",
        "SchemaMissing",
        "SchemaTooNew",
    ),
    *(
        "StaleClaim",
        "StorageDamaged",
        "StorageError",
        "StorageFull",
        "StorageLocked",
        "StorageUnavailable",
        "Timeout",
    ),
    *("UnknownTask", "Unstorable", "WorkerDied"),
}
PUBLIC: dict[str, Any] = {
    **{name: getattr(dray, name) for name in dray.__all__ if name not in NOT_SHOWN},
    **{name: getattr(testing, name) for name in testing.__all__},
    "Worker": Worker,
}


@pytest.fixture
def names(url: str) -> Generator[dict[str, Any]]:
    """What an example may use without saying where it comes from."""
    with dray.App(url) as app:

        @app.task(name="add")
        def add(a: int, b: int) -> int:
            return a + b

        @app.task(name="fail", max_attempts=1)
        def fail() -> None:
            raise ValueError("no such customer")

        tools = {name: getattr(testing, name) for name in testing.__all__}
        yield {
            "__name__": "shop",
            "dray": dray,
            "app": app,
            "add": add,
            "fail": fail,
            "UTC": UTC,
            "datetime": datetime,
            **tools,
        }


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_public_name_runs(
    name: str, names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PUBLIC[name].__doc__ or ""
    example = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    assert example.examples, f"the docstring of {name} has no example"

    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append, clear_globs=False)

    assert result.failed == 0, "".join(said)
    if (made := example.globs["app"]) is not names["app"]:
        made.close()

"""Which functions can be tasks, and under which names."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dray.errors import InvalidName
from dray.task.options import task_name
from dray.task.task import AsyncTask, define
from tests.tasks.fakes import doubled, options

# The functions are defined here because their names begin with this module's.


def add(a: int, b: int = 2) -> int:
    return a + b


async def fetch(url: str) -> dict[str, Any]:
    return {"url": url}


class Shop:
    def method(self) -> None: ...

    @classmethod
    def of_class(cls) -> None: ...

    @staticmethod
    def static(a: int) -> None: ...


def numbers() -> Iterator[int]:
    yield 1


async def stream() -> AsyncIterator[int]:
    yield 1


@doubled
def decorated(n: int) -> int:
    return n


@functools.lru_cache
def cached(n: int) -> int:
    return n


def test_a_task_is_named_by_its_module_and_function() -> None:
    assert task_name(add) == f"{__name__}.add"
    assert task_name(fetch) == f"{__name__}.fetch"
    assert task_name(json.dumps) == "json.dumps"


def test_a_decorated_function_keeps_its_name() -> None:
    assert task_name(decorated) == f"{__name__}.decorated"
    assert task_name(cached) == f"{__name__}.cached"


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (lambda: None, "write it as a def"),
        (Shop.method, "write a function that is passed an id"),
        (Shop().method, "write a function that is passed an id"),
        (Shop.of_class, "write a function that is passed an id"),
        (Shop.static, "is defined inside a class; move it"),
        (staticmethod(add), "write a function"),
        (Shop, "is a class; write a function"),
        (len, "write a def that calls it"),
        ("abc".upper, "write a def that calls it"),
        (functools.partial(add, 1), "write a def that calls the function"),
        (numbers, "return a list instead"),
        (stream, "return a list instead"),
        (5, "is not a Python function"),
    ],
    ids=lambda each: re.sub("0x[0-9a-f]+", "", str(each))[:30],
)
def test_what_no_worker_could_call_is_refused_with_what_to_do(function: Any, advice: str) -> None:
    with pytest.raises(TypeError, match=advice):
        task_name(function)
    if function is not Shop.static:
        with pytest.raises(TypeError, match=advice):
            options(function, name="shop.task")


def test_a_function_inside_another_needs_a_name() -> None:
    def inner() -> None: ...

    with pytest.raises(TypeError, match=r"inside a function; move it .* @app.task\(name=...\)"):
        task_name(inner)
    assert options(inner, name="shop.inner").name == "shop.inner"
    assert options(Shop.static, name="shop.static").name == "shop.static"


def test_a_task_is_no_function_for_another(app: Any) -> None:
    with pytest.raises(TypeError, match="is a task already"):
        define(define(add, app), app)


def test_a_name_that_is_too_long_is_refused() -> None:
    def naive() -> None: ...

    naive.__qualname__ = "naïve"
    assert task_name(naive).endswith(".naïve")
    naive.__qualname__ = "x" * 201
    with pytest.raises(InvalidName, match=r"give it another: @app.task\(name=...\)"):
        task_name(naive)
    with pytest.raises(InvalidName):
        options(name="no\nlines")


SCRIPT = """
from dray.task.options import task_name
def work(): ...
if __name__ == "__main__":
    print(task_name(work))
"""


def test_a_script_counts_under_its_file_name(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "jobs.py").write_text(SCRIPT)
    (folder / "__main__.py").write_text(SCRIPT)

    def printed(*command: str, typed: str = "") -> str:
        ran = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, input=typed, capture_output=True, text=True, check=True
        )
        return ran.stdout.strip()

    assert printed("shop/jobs.py") == "jobs.work"
    assert printed("-m", "shop.jobs") == "shop.jobs.work"
    assert printed("-m", "shop") == "shop.work"
    assert printed("-c", SCRIPT) == "work"
    assert printed("-", typed=SCRIPT) == "work"


def test_a_task_of_a_coroutine_function_is_told_apart(app: Any) -> None:
    assert isinstance(define(fetch, app), AsyncTask)
    assert not isinstance(define(add, app), AsyncTask)


def test_a_task_looks_like_its_function(app: Any) -> None:
    task = define(add, app, name="shop.add")

    assert (task.__name__, task.__module__, task.__wrapped__) == ("add", __name__, add)  # type: ignore[attr-defined]
    assert repr(task) == "<Task shop.add>"
    assert task.place.startswith(f"{__file__}:")

"""Reads an app's files without running them: pyproject.toml, its tasks, its database, its other modules.

For shell completion, which must be quick and harmless, and for `dray dev`, whose parent process must not load the
user's code. It sees only literals: ``App("sqlite:///jobs.db")``, ``@app.task(name="mail.send")``,
``imports=["shop.jobs"]``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, cast

from dray.cli.exits import Failure
from dray.model.values import shown

APP_FILES = ("tasks.py", "app.py")
_PROJECT = Path("pyproject.toml")
_MODULES = 20
_FILES = 50  # that are looked at for an App
_BYTES = 1 << 20  # of one file


def project_settings() -> dict[str, Any]:
    """Returns [tool.dray] of pyproject.toml in the current directory; empty if there is none."""
    if not _PROJECT.is_file():
        return {}
    import tomllib  # noqa: PLC0415 - only where there is such a file

    try:
        found = tomllib.loads(_PROJECT.read_text(encoding="utf-8")).get("tool", {}).get("dray", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Failure(f"{_PROJECT} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise Failure(f'{_PROJECT}: tool.dray must be a table: [tool.dray], then app = "shop.jobs:app"')
    return cast("dict[str, Any]", found)


def configured_app() -> str | None:
    spec = project_settings().get("app")
    if spec is not None and not isinstance(spec, str):
        raise Failure(f'{_PROJECT}: [tool.dray] app must be a string such as "shop.jobs:app", not {shown(spec)}')
    return spec


@dataclass(frozen=True, slots=True)
class Source:
    """What was found. ``has_url``: the code names a database; ``url``: which one, if that is a literal."""

    modules: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    has_url: bool = False
    url: str | None = None


def read_source(named: str | None, more: tuple[str, ...] = ()) -> Source:
    """Reads the app that is named as module:object, or the one of the current directory, and ``more`` modules."""
    first = _module(named)
    waiting = [*([] if first is None else [first]), *more]
    modules: list[str] = []
    tasks: list[str] = []
    urls: list[str | None] = []
    while waiting and len(modules) < _MODULES:
        module = waiting.pop(0)
        file = _file(module)
        if module in modules or file is None:
            continue
        modules.append(module)
        tree = _parsed(file)
        for app in _apps(tree):
            waiting += _imports(app)
            urls += map(_literal, (*app.args[:1], *(word.value for word in app.keywords if word.arg == "url")))
        tasks += _tasks(tree, module)
    return Source(tuple(modules), tuple(sorted(set(tasks))), bool(urls), next(iter(urls), None))


def find_module(name: str) -> ModuleSpec | None:
    """Finds a module, in the current directory first, without running its packages as an import would."""
    path = [str(Path.cwd()), *sys.path]
    found: ModuleSpec | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        found = PathFinder.find_spec(".".join(parts[:depth]), path)
        if found is None:
            return None
        path = list(found.submodule_search_locations or ())
    return found


def _module(named: str | None) -> str | None:
    if named is not None:
        return named.partition(":")[0].removesuffix(".py").replace("/", ".")
    return next((file.removesuffix(".py") for file in APP_FILES if mentions_dray(Path(file))), None)


def mentions_dray(file: Path) -> bool:
    """Whether a file may have an App. Many projects have an app.py: it must not be run on suspicion."""
    return file.is_file() and b"dray" in file.read_bytes()


def modules_with_an_app() -> list[str]:
    """Returns the modules of the current directory that make an App, of the first files there."""
    files = [file for file in sorted(Path().glob("*.py"))[:_FILES] if file.stem.isidentifier()]
    fit = [file for file in files if file.is_file() and file.stat().st_size <= _BYTES and mentions_dray(file)]
    return [file.stem for file in fit if next(_apps(_parsed(file)), None) is not None]


def _file(module: str) -> Path | None:
    spec = find_module(module) if all(part.isidentifier() for part in module.split(".")) else None
    file = None if spec is None or spec.origin is None else Path(spec.origin)
    return file if file is not None and file.suffix == ".py" and file.stat().st_size <= _BYTES else None


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # half written
        return ast.Module([], [])


def _apps(tree: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            if name == "App":
                yield node


def _literal(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _imports(app: ast.Call) -> list[str]:
    lists = [word.value for word in app.keywords if word.arg == "imports"]
    items = [item for each in lists if isinstance(each, ast.List | ast.Tuple) for item in each.elts]
    return [text for item in items if (text := _literal(item)) is not None]


def _tasks(tree: ast.Module, module: str) -> Iterator[str]:
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            call = decorator.func if isinstance(decorator, ast.Call) else decorator
            if isinstance(call, ast.Attribute) and call.attr == "task":
                words = decorator.keywords if isinstance(decorator, ast.Call) else []
                names = [_literal(word.value) for word in words if word.arg == "name"] or [f"{module}.{node.name}"]
                if names[0] is not None:
                    yield names[0]

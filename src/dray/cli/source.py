"""What an app's files say of it, read without running them: its tasks, its database, its other modules.

For those who must be quick and harmless (a shell that completes a word) or must stay free of the user's code (the
parent of a worker that is to be started anew). Only what is written out is seen: ``App("sqlite:///jobs.db")``,
``@app.task(name="mail.send")``, ``imports=["shop.jobs"]``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

_FILES = ("tasks.py", "app.py")
_MODULES = 20
_BYTES = 1 << 20  # of one file


@dataclass(frozen=True, slots=True)
class Source:
    """What was found. ``has_url``: the code names a database; ``url`` is which, where it is written out."""

    modules: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    has_url: bool = False
    url: str | None = None


def read_source(named: str | None, more: tuple[str, ...] = ()) -> Source:
    """The app that is named as module:object, or the one that the current directory has, and further modules."""
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
            urls += _url(app)
        tasks += _tasks(tree, module)
    return Source(tuple(modules), tuple(sorted(set(tasks))), bool(urls), next(iter(urls), None))


def find_module(name: str) -> ModuleSpec | None:
    """Where a module is, in the current directory first; its packages are not run, as an import would."""
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
    return next((file.removesuffix(".py") for file in _FILES if _speaks_of_dray(Path(file))), None)


def _speaks_of_dray(file: Path) -> bool:
    return file.is_file() and file.stat().st_size <= _BYTES and b"dray" in file.read_bytes()


def _file(module: str) -> Path | None:
    spec = find_module(module) if all(part.isidentifier() for part in module.split(".")) else None
    file = None if spec is None or spec.origin is None else Path(spec.origin)
    return file if file is not None and file.suffix == ".py" and file.stat().st_size <= _BYTES else None


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # it is being written
        return ast.Module([], [])


def _apps(tree: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            if name == "App":
                yield node


def _url(app: ast.Call) -> list[str | None]:
    given = [*app.args[:1], *(word.value for word in app.keywords if word.arg == "url")]
    return [node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None for node in given]


def _imports(app: ast.Call) -> list[str]:
    lists = [word.value for word in app.keywords if word.arg == "imports"]
    items = [item for each in lists if isinstance(each, ast.List | ast.Tuple) for item in each.elts]
    return [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]


def _tasks(tree: ast.Module, module: str) -> Iterator[str]:
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            call = decorator.func if isinstance(decorator, ast.Call) else decorator
            if isinstance(call, ast.Attribute) and call.attr == "task":
                words = decorator.keywords if isinstance(decorator, ast.Call) else []
                names = [word.value for word in words if word.arg == "name"]
                given = names[0] if names else ast.Constant(f"{module}.{node.name}")
                if isinstance(given, ast.Constant) and isinstance(given.value, str):
                    yield given.value

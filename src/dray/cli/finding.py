"""Finds the App: by the name it is given, in pyproject.toml, or in tasks.py and app.py of the current directory."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from dray.app import App
from dray.cli.exits import Code, Failure
from dray.model.values import shown

FILES = ("tasks.py", "app.py")
_PROJECT = Path("pyproject.toml")


def find(named: str | None) -> App | None:
    """The App; None: nothing names one, and no file here has one."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    spec = named or configured()
    if spec is not None:
        return _load(spec)
    for file in FILES:
        if _speaks_of_dray(Path(file)):
            found = _apps_in(imported(file.removesuffix(".py")))
            if found:
                return _only(file, found)
    return None


def project_settings() -> dict[str, Any]:
    """[tool.dray] of pyproject.toml in the current directory; empty: there is none."""
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


def configured() -> str | None:
    """The app that pyproject.toml names."""
    spec = project_settings().get("app")
    if spec is not None and not isinstance(spec, str):
        raise Failure(f'{_PROJECT}: [tool.dray] app must be a string such as "shop.jobs:app", not {shown(spec)}')
    return spec


def name_of(app: App) -> str | None:
    """An App that was found, as module:object."""
    for module_name, module in list(sys.modules.items()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is app:
                return f"{module_name}:{name}"
    return None


def _speaks_of_dray(file: Path) -> bool:
    """Whether a file may have an App; anybody's app.py is not to be run on suspicion."""
    return file.is_file() and b"dray" in file.read_bytes()


def _load(spec: str) -> App:
    module_name, _, path = spec.partition(":")
    module_name = module_name.removesuffix(".py").replace("/", ".")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise Failure(f"{shown(spec)} names no app; write module:object, such as shop.jobs:app", Code.USAGE)
    module = imported(module_name)
    if not path:
        return _only(module_name, _apps_in(module))
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, App):
        what = "is not there" if found is None else f"is not an App but {_kind(found)}"
        raise Failure(f"{spec}: {path} {what}", Code.USAGE)
    return found


def _kind(found: object) -> str:
    return f"a {type(found).__name__}"


def imported(name: str) -> ModuleType:
    """A module of the user's; the failure says in one sentence why it cannot be had."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.split(".")[: error.name.count(".") + 1] == error.name.split("."):
            where = f"looked in {Path.cwd()} and on Python's path"
            raise Failure(f"there is no module {error.name} ({where})", Code.USAGE) from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> Failure:
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
    else:
        theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
        where = f"{theirs[-1].filename}:{theirs[-1].lineno}"
    what = "".join(traceback.format_exception_only(error)[-1:]).strip()
    return Failure(f"{name} cannot be imported: {what} ({where}); commands that only look work with --url alone")


def _apps_in(module: ModuleType) -> dict[str, App]:
    return {name: value for name, value in vars(module).items() if isinstance(value, App)}


def _only(where: str, found: dict[str, App]) -> App:
    if not found:
        raise Failure(f"{where} has no App in it; write app = dray.App() there", Code.USAGE)
    if len({id(app) for app in found.values()}) == 1 or "app" in found:
        return found.get("app") or next(iter(found.values()))
    raise Failure(f"{where} has several apps: {', '.join(found)}; name one as module:object", Code.USAGE)

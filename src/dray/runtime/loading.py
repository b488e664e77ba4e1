"""How a child process loads a task: from the module or script that defines it, never from anything in a row.

A module is imported. The script that was started is run again as ``__mp_main__``, as multiprocessing does, so that
the code under ``if __name__ == "__main__"`` is left out. The task is then looked up by its name in the registry of
every App that the module knows. An App with a locator is found by that instead, and has the task in its registry.

Scripts mostly define their tasks first, and then enqueue or start a worker, often without
``if __name__ == "__main__"``. A child that did the same would enqueue everything twice and start a worker inside a
worker's child. So the first such call of a script ends its loading: App and Worker call `stop_here` first.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from dray.app_interface import core_of

if TYPE_CHECKING:
    from dray.app_interface import AppInterface
    from dray.task.task import Task

_IMPORT = "<frozen importlib._bootstrap>"
_MAIN = "__main__"
_COPY = "__mp_main__"
_depth = 0
_apps: dict[str, AppInterface] = {}  # in a child: what was found, by locator


class _Enough(BaseException):
    """Unwinds the script."""


def is_under_way() -> bool:
    """Whether a module is being imported, or a script run again for what it defines."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - who calls?
    while frame is not None and frame.f_code.co_filename != _IMPORT:
        frame = frame.f_back
    return frame is not None or _depth > 0


def stop_here() -> None:
    """Ends the loading of a script: it is about to do what the process that was started does already."""
    if _depth:
        raise _Enough


class TaskLocation(NamedTuple):
    """Where a child finds a task."""

    module: str  # "__main__" for the script that was started
    file: str | None  # of the script, or of a module outside sys.path
    name: str | None = None  # of the script, if it was started with -m
    locator: str | None = None  # of the App that has the task: "shop.jobs:app"; then `module` is empty if unknown


def locate(task: Task[..., Any]) -> TaskLocation | str:
    """Where a child finds this task, or why it cannot."""
    name = task.function.__module__
    module = sys.modules.get(name)
    locator = task.app.settings.locator
    if locator is not None:
        found = "" if module is None else _locate_module(name, module)
        location = TaskLocation("", None) if isinstance(found, str) else found
        return location._replace(locator=locator)
    if module is None:
        return f"its module {name} is not loaded under that name"
    if _task_in(module, task.name) is not task:
        return (
            f"it is not to be found in module {name}: define it, or the App that it belongs to, at the top of that "
            "module, so that a child process which imports the module has it too"
        )
    return _locate_module(name, module)


def locate_middleware(function: Any) -> TaskLocation | str:
    """Where a child finds the module that registers this middleware, or why it cannot."""
    name = inspect.unwrap(function).__module__
    module = sys.modules.get(name)
    return f"its module {name} is not loaded under that name" if module is None else _locate_module(name, module)


def _locate_module(name: str, module: ModuleType) -> TaskLocation | str:
    file: str | None = getattr(module, "__file__", None)
    spec = getattr(module, "__spec__", None)
    if name in {_MAIN, _COPY}:
        return _locate_script(file, None if spec is None else spec.name)
    if spec is None:
        return f"its module {name} was not imported, so that a child process cannot import it either"
    return TaskLocation(name, file)


def _locate_script(file: str | None, name: str | None) -> TaskLocation | str:
    if name is not None:
        return TaskLocation(_MAIN, file, name)
    if file is None or not Path(file).is_file():
        return "it was written at a prompt, in a notebook or into standard input; put it into a file"
    return TaskLocation(_MAIN, str(Path(file).absolute()))


def load_task(location: TaskLocation, task_name: str) -> Task[..., Any]:
    """In a child: the task. Raises `LookupError`, or whatever the module raises when it is imported."""
    if location.locator is not None:
        return _task_of_app(location, location.locator, task_name)
    task = _task_in(load_module(location), task_name)
    if task is None:
        guard = "; is it under an if __name__ == '__main__'?" if location.module == _MAIN else ""
        raise LookupError(
            f"no task {task_name} in {location.file or location.module} as a child process sees it{guard}"
        )
    return task


def _task_of_app(location: TaskLocation, locator: str, task_name: str) -> Task[..., Any]:
    app = _apps.get(locator)
    if app is None:
        app = _app_at(locator)
        app.load()
        _apps[locator] = app
    if task_name not in app.registry and location.module:
        load_module(location)  # the worker has imported it, by itself or because it was told to
    if task_name not in app.registry:
        raise LookupError(
            f"{app.registry.missing(task_name)} The App {locator} does not define it in a child process"
        )
    return app.registry.get(task_name)


def _app_at(locator: str) -> AppInterface:
    module_name, _, path = locator.partition(":")
    found: Any = importlib.import_module(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            raise LookupError(f"locator={locator!r}: there is no {name} in {module_name} as a child process sees it")
        found = getattr(found, name)
    if not _is_app(found) and callable(found):
        found = found()
    if not _is_app(found):
        raise LookupError(f"locator={locator!r}: {path} is no App, and no function that returns one")
    return core_of(found)


def _is_app(value: Any) -> bool:
    return hasattr(getattr(value, "_core", None), "registry")


def load_module(location: TaskLocation) -> ModuleType:
    """In a child: the module or script. Raises whatever it raises when it is imported."""
    return _script(location) if location.module == _MAIN else _module(location)


def _task_in(module: ModuleType, task_name: str) -> Task[..., Any] | None:
    """The task of this name among those of all Apps that a module knows."""
    return next((found[task_name] for found in _registries(module) if task_name in found), None)


def _registries(module: ModuleType) -> Iterator[dict[str, Task[..., Any]]]:
    from dray.task.registry import Registry  # noqa: PLC0415 - `dray list` loads this module, and no tasks
    from dray.task.task import Task  # noqa: PLC0415 - `dray list` loads this module, and no tasks

    for value in list(vars(module).values()):
        owner = value.app if isinstance(value, Task) else value
        registry = inspect.getattr_static(owner, "registry", None)  # runs no code of objects that are not ours
        if isinstance(registry, Registry):
            yield {task.name: task for task in registry}
        elif isinstance(value, Task):
            yield {value.name: value}


def _module(location: TaskLocation) -> ModuleType:
    try:
        return importlib.import_module(location.module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{location.module}.".startswith(f"{error.name}.") or location.file is None:
            raise
    # The worker has loaded it by its path.
    spec = importlib.util.spec_from_file_location(location.module, location.file)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module {location.module} and none in {location.file}", name=location.module)
    module = importlib.util.module_from_spec(spec)
    sys.modules[location.module] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[location.module]
        raise
    return module


def _script(location: TaskLocation) -> ModuleType:
    """The script that the worker was started with, run again up to where it starts to do its work."""
    if _COPY in sys.modules:
        return sys.modules[_COPY]
    module = ModuleType(_COPY)
    code = _code(location, module)
    before = sys.modules.get(_MAIN)
    sys.modules[_MAIN] = sys.modules[_COPY] = module
    try:
        _run_definitions(code, vars(module))
    except BaseException:
        del sys.modules[_COPY]
        if before is not None:
            sys.modules[_MAIN] = before
        raise
    return module


def _run_definitions(code: CodeType, names: dict[str, Any]) -> None:
    global _depth  # noqa: PLW0603 - one main thread loads
    _depth += 1
    try:
        with suppress(_Enough):
            exec(code, names)  # noqa: S102 - the very file that the worker was started with
    finally:
        _depth -= 1


def _code(location: TaskLocation, module: ModuleType) -> Any:
    if location.name is not None:
        spec = importlib.util.find_spec(location.name)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"no module {location.name}", name=location.name)
        module.__spec__, module.__package__, module.__file__ = spec, spec.parent, spec.origin
        path = spec.origin
    else:
        assert location.file is not None
        module.__file__ = path = location.file
    return compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)

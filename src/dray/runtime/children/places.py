"""Where a task is written, so that a child finds the same one: a module, never anything that a row says.

A module is imported; the script that was started is run again as ``__mp_main__``, as multiprocessing does it, so that
what stands under ``if __name__ == "__main__"`` is left out. In the module the task is looked for by its name, in the
registry of every App that the module knows.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from dray.runtime import loading
from dray.task import Registry, Task

_MAIN = "__main__"
_COPY = "__mp_main__"


class Place(NamedTuple):
    """Where a child finds a task."""

    module: str  # "__main__" for the script that was started
    file: str | None  # of the script, or of a module that is not where imports look
    name: str | None = None  # of the script, if it was started with -m


def place_of(task: Task[..., Any]) -> Place | str:
    """Where a child finds this task, or why it cannot."""
    name = task.function.__module__
    module = sys.modules.get(name)
    if module is None:
        return f"its module {name} is not loaded under that name"
    if task_in(module, task.name) is not task:
        return (
            f"it is not to be found in module {name}: define it, or the App that it belongs to, at the top of that "
            "module, so that a child process which imports the module has it too"
        )
    file: str | None = getattr(module, "__file__", None)
    spec = getattr(module, "__spec__", None)
    if name in {_MAIN, _COPY}:
        return _place_of_script(file, None if spec is None else spec.name)
    if spec is None:
        return f"its module {name} was not imported, so that a child process cannot import it either"
    return Place(name, file)


def _place_of_script(file: str | None, name: str | None) -> Place | str:
    if name is not None:
        return Place(_MAIN, file, name)
    if file is None or not Path(file).is_file():
        return "it was written at a prompt, in a notebook or into standard input; put it into a file"
    return Place(_MAIN, str(Path(file).absolute()))


def find(place: Place, task_name: str) -> Task[..., Any]:
    """In a child: the task; `LookupError` or whatever the module raises when it is imported."""
    module = _script(place) if place.module == _MAIN else _module(place)
    task = task_in(module, task_name)
    if task is None:
        guard = "; is it under an if __name__ == '__main__'?" if place.module == _MAIN else ""
        raise LookupError(f"no task {task_name} in {place.file or place.module} as a child process sees it{guard}")
    return task


def task_in(module: ModuleType, task_name: str) -> Task[..., Any] | None:
    """The task of this name among those of all Apps that a module knows."""
    return next((found[task_name] for found in _registries(module) if task_name in found), None)


def _registries(module: ModuleType) -> Iterator[dict[str, Task[..., Any]]]:
    for value in list(vars(module).values()):
        owner = value.submitter if isinstance(value, Task) else value
        registry = inspect.getattr_static(owner, "registry", None)  # runs no code of objects that are not ours
        if isinstance(registry, Registry):
            yield {task.name: task for task in registry}
        elif isinstance(value, Task):
            yield {value.name: value}


def _module(place: Place) -> ModuleType:
    try:
        return importlib.import_module(place.module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place.module}.".startswith(f"{error.name}.") or place.file is None:
            raise
    # Somebody loaded it by its path.
    spec = importlib.util.spec_from_file_location(place.module, place.file)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module {place.module} and none in {place.file}", name=place.module)
    module = importlib.util.module_from_spec(spec)
    sys.modules[place.module] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[place.module]
        raise
    return module


def _script(place: Place) -> ModuleType:
    """The script that the worker was started with, run again up to where it starts to do its work."""
    if _COPY in sys.modules:
        return sys.modules[_COPY]
    module = ModuleType(_COPY)
    code = _code(place, module)
    before = sys.modules.get(_MAIN)
    sys.modules[_MAIN] = sys.modules[_COPY] = module
    try:
        loading.run(code, vars(module))
    except BaseException:
        del sys.modules[_COPY]
        if before is not None:
            sys.modules[_MAIN] = before
        raise
    return module


def _code(place: Place, module: ModuleType) -> Any:
    if place.name is not None:
        spec = importlib.util.find_spec(place.name)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"no module {place.name}", name=place.name)
        module.__spec__, module.__package__, module.__file__ = spec, spec.parent, spec.origin
        path = spec.origin
    else:
        assert place.file is not None
        module.__file__ = path = place.file
    return compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)

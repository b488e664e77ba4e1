"""When `dray dev` restarts its worker: some of the app's Python files have changed, and have stopped changing.

watchfiles reports changes if it is installed; else the files are polled.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dray.cli.source import find_module, read_source

RELOADED = "DRAY_RELOADED"  # in the environment of a restarted worker: what has changed
_SETTLE = 0.15  # seconds without a further change: editors and checkouts write several files
_SHOWN = 3
_IGNORED = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env"})
_MOST = 5_000  # files and folders to poll, each with one stat

Mark = tuple[int, int, int] | None  # None: it does not exist


def watched(places: Sequence[Path]) -> Polled | Notified:
    """Returns the best way to look that this machine has."""
    # Without watchfiles, where the kernel's watches are used up, or where the file system has none, it polls.
    with suppress(ModuleNotFoundError, OSError, RuntimeError):
        return Notified(places)
    return Polled(places)


def is_ignored(name: str) -> bool:
    """Whether a folder has no code that the user edits: .venv, .git, caches, installed packages."""
    return name.startswith(".") or name in _IGNORED


class Polled:
    """Polls with one stat for each file and folder. A folder is read again only if its own time has changed."""

    every = 1.0  # seconds between two looks
    how = "once a second; with watchfiles at once: pip install 'dray[watch]'"

    def __init__(self, places: Sequence[Path]) -> None:
        self._folders: dict[str, Mark] = {}
        self._files: dict[str, Mark] = {}
        for place in places:
            if place.is_dir():
                self._read(str(place))
            else:
                self._files[str(place)] = None
        self.changed()

    def changed(self) -> set[str]:
        """Returns the files that were written, created or removed since the last look."""
        for folder, before in list(self._folders.items()):
            now = _mark(folder)
            if now is None:
                del self._folders[folder]
            elif now != before:
                self._read(folder)
        found: set[str] = set()
        for file, before in list(self._files.items()):
            now = _mark(file)
            if now != before:
                found.add(file)
                self._files[file] = now
                if now is None:
                    del self._files[file]
        return found

    def _read(self, folder: str) -> None:
        self._folders[folder] = _mark(folder)
        try:
            entries = list(os.scandir(folder))
        except OSError:  # just removed, or not readable
            return
        for entry in entries:
            if len(self._files) + len(self._folders) >= _MOST:
                return
            if entry.is_dir(follow_symlinks=False):
                if not is_ignored(entry.name) and entry.path not in self._folders:
                    self._read(entry.path)
            elif entry.name.endswith(".py"):
                self._files.setdefault(entry.path, None)


def _mark(path: str) -> Mark:
    try:
        found = os.stat(path)  # noqa: PTH116 - thousands a second
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class Notified:
    """Gets changes from the kernel, through watchfiles."""

    every = 0.25
    how = "as it happens"

    def __init__(self, places: Sequence[Path]) -> None:
        import watchfiles  # noqa: PLC0415 - an extra

        self._changes: Generator[Iterable[tuple[Any, str]]] = watchfiles.watch(
            *places,
            watch_filter=lambda _, path: _is_of_interest(path, places),
            debounce=100,
            step=20,
            rust_timeout=10,
            yield_on_timeout=True,
            raise_interrupt=False,
        )
        next(self._changes)  # it reports changes from here on

    def changed(self) -> set[str]:
        return {path for _, path in next(self._changes, ())}


def _is_of_interest(path: str, places: Sequence[Path]) -> bool:
    if not path.endswith(".py"):
        return False
    inside = next((Path(path).relative_to(place) for place in places if Path(path).is_relative_to(place)), Path(path))
    return not any(is_ignored(part) for part in inside.parts[:-1])


def places_of(named: str | None, imports: Sequence[str]) -> list[Path]:
    """Returns the current directory, and packages and files of the app that are elsewhere and not installed."""
    here = Path.cwd()
    found = [here]
    for module in read_source(named, tuple(imports)).modules:
        spec = find_module(module.partition(".")[0])
        if spec is not None:
            for place in map(Path, spec.submodule_search_locations or filter(None, [spec.origin])):
                is_installed = not {"site-packages", "dist-packages"}.isdisjoint(place.parts)
                if place.exists() and not (is_installed or place.is_relative_to(Path(sys.base_prefix, "lib"))):
                    found.append(place.resolve())
    return [place for place in dict.fromkeys(found) if place == here or not place.is_relative_to(here)]


class Reloader:
    """Tells a supervisor when to restart; see `dray.runtime.supervisor.Reload`."""

    def __init__(self, places: Sequence[Path], on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self.files = watched(places)
        self._changing: set[str] = set()
        self._changed: set[str] = set()
        self._look_at = time.monotonic() + self.files.every

    def is_due(self) -> bool:
        now = time.monotonic()
        if now < self._look_at:
            return False
        found = self.files.changed()
        self._changing |= found
        self._look_at = now + (_SETTLE if found else self.files.every)
        if found or not self._changing:
            return False
        self._on_change(_words(self._changing))
        self._changed |= self._changing
        self._changing = set()
        return True

    def rest(self) -> float:
        return max(0.0, self._look_at - time.monotonic())

    def environment(self) -> Mapping[str, str]:
        changed, self._changed = self._changed, set()
        return {RELOADED: _words(changed)} if changed else {}


def _words(files: Iterable[str]) -> str:
    here = Path.cwd()
    paths = [Path(file) for file in sorted(files)]
    names = [str(path.relative_to(here) if path.is_relative_to(here) else path) for path in paths]
    more = [] if len(names) <= _SHOWN else [f"{len(names) - _SHOWN} more"]
    return ", ".join([*names[:_SHOWN], *more])

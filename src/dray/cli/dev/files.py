"""Which Python files have changed: told by watchfiles where it is installed, else found out by looking at them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

_IGNORED = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env"})
_MOST = 5_000  # files and folders that are looked at, each with one stat

Mark = tuple[int, int, int] | None  # None: not there


class Files(Protocol):
    """Looks at the Python files below some places."""

    every: float  # seconds between two looks
    how: str  # for people

    def changed(self) -> set[str]:
        """Those that were written, made or removed since the last look."""
        ...


def watched(places: Sequence[Path]) -> Files:
    """The best way to look that there is."""
    if importlib.util.find_spec("watchfiles") is not None:
        try:
            return Notified(places)
        except (OSError, RuntimeError):  # no more watches, or a file system that has none
            return Polled(places)
    return Polled(places)


def is_ignored(name: str) -> bool:
    """Whether a folder holds nothing that somebody edits: .venv, .git, caches, what others have written."""
    return name.startswith(".") or name in _IGNORED


class Polled:
    """One stat a file and folder, and no walk: a folder is read again only where its own time has changed."""

    every = 1.0
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

    @property
    def is_full(self) -> bool:
        """Whether there was more than it looks at."""
        return len(self._files) + len(self._folders) >= _MOST

    def changed(self) -> set[str]:
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
        """Takes note of what is new in a folder."""
        self._folders[folder] = _mark(folder)
        try:
            entries = list(os.scandir(folder))
        except OSError:  # it has just gone, or is somebody else's
            return
        for entry in entries:
            if self.is_full:
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
    """Told by the kernel, through watchfiles."""

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
        next(self._changes)  # from here on it is told

    def changed(self) -> set[str]:
        return {path for _, path in next(self._changes, ())}


def _is_of_interest(path: str, places: Sequence[Path]) -> bool:
    if not path.endswith(".py"):
        return False
    inside = next((Path(path).relative_to(place) for place in places if Path(path).is_relative_to(place)), Path(path))
    return not any(is_ignored(part) for part in inside.parts[:-1])

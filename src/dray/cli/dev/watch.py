"""When a worker is to be started anew: some of the app's files have changed, and have stopped changing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from dray.cli.dev.files import Files, watched
from dray.cli.source import find_module, read_source

RELOADED = "DRAY_RELOADED"  # in the environment of a worker that was started anew: what has changed
_SETTLE = 0.15  # seconds without a further change: editors and checkouts write several files
_SHOWN = 3


def places_of(named: str | None, imports: Sequence[str]) -> list[Path]:
    """The current directory, and the packages or files of the app's modules that are elsewhere and not installed."""
    here = Path.cwd()
    found = [here]
    for module in read_source(named, tuple(imports)).modules:
        spec = find_module(module.partition(".")[0])
        folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []
        if not folders and spec is not None and spec.origin is not None:
            folders = [Path(spec.origin)]
        found += [place.resolve() for place in folders if place.exists() and not _is_installed(place)]
    return [place for place in dict.fromkeys(found) if place == here or not place.is_relative_to(here)]


def _is_installed(place: Path) -> bool:
    outside = not any(part in {"site-packages", "dist-packages"} for part in place.parts)
    return not outside or place.is_relative_to(Path(sys.base_prefix, "lib"))


class Watch:
    """What a supervisor asks; see `dray.runtime.supervisor.Reload`."""

    def __init__(self, places: Sequence[Path], on_change: Callable[[str], None]) -> None:
        self.places = places
        self._on_change = on_change
        self.files: Files = watched(places)
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
        if not self._changed:
            return {}
        changed, self._changed = self._changed, set()
        return {RELOADED: _words(changed)}


def _words(files: Iterable[str]) -> str:
    here = Path.cwd()
    paths = [Path(file) for file in sorted(files)]
    names = [str(path.relative_to(here) if path.is_relative_to(here) else path) for path in paths]
    more = [] if len(names) <= _SHOWN else [f"{len(names) - _SHOWN} more"]
    return ", ".join([*names[:_SHOWN], *more])

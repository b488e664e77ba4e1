"""A database that is a file may be replaced, or taken away, by whoever may write to its directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.config import SqliteAddress, parse_address

if TYPE_CHECKING:
    from dray.app import App


class File:
    """Which file the App's database is, where it is one."""

    def __init__(self, app: App) -> None:
        self._app = app
        address = parse_address(app.settings.url)
        self._path = address.path if isinstance(address, SqliteAddress) else None
        self._seen = self._identity()

    def reopen_if_replaced(self) -> None:
        """An open file stays readable though another one has its name by now, or none: its last state would be shown
        for ever."""
        found = self._identity()
        if found != self._seen:
            self._seen = found
            self._app.backend.close()

    def _identity(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

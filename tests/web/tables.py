"""All rows of all tables, to tell whether anything changed."""

from __future__ import annotations

from contextlib import closing
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dray import App
from dray.app_interface import core_of


def everything(app: App) -> dict[str, list[str]]:
    """Every row of every table of Dray's."""
    core = core_of(app)
    with core.backend.transaction() as connection:
        if core.settings.is_sqlite:
            tables = _values(connection, "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'dray%'")
        else:
            schema = parse_qs(urlsplit(core.settings.url).query)["schema"][0]
            query = f"SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname = '{schema}'"
            tables = _values(connection, query)
        assert len(tables) > 5
        return {table: sorted(map(str, _rows(connection, f"SELECT * FROM {table}"))) for table in tables}


def _values(connection: Any, query: str) -> list[str]:
    return [row[0] for row in _rows(connection, query)]


def _rows(connection: Any, query: str) -> list[Any]:
    with closing(connection.cursor()) as cursor:
        cursor.execute(query)
        return cursor.fetchall()

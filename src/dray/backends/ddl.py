"""The tables as scripts, for those who apply them by hand, and the names of all that they make."""

from __future__ import annotations

import re
from typing import NamedTuple

from dray.backends.migrate import OLDEST_CODE, latest, migrations
from dray.backends.statements import Dialect

_MADE = re.compile(r"^CREATE (?:UNIQUE )?(TABLE|INDEX|VIEW) (\w+)", re.MULTILINE)

_FILE = """\
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
"""
_SCHEMA = """\
CREATE SCHEMA IF NOT EXISTS "{schema}";
SET LOCAL search_path TO "{schema}";
"""
_VERSION = """\
INSERT INTO dray_meta (name, value) VALUES ('version', '{version}'), ('oldest_code', '{oldest_code}')
ON CONFLICT (name) DO UPDATE SET value = excluded.value;
"""
_BEGIN: dict[Dialect, str] = {"sqlite": "BEGIN IMMEDIATE;\n", "postgres": "BEGIN;\n"}


class Script(NamedTuple):
    """What brings tables to a version, in one transaction."""

    version: int
    text: str


def names(dialect: Dialect, *, indexes: bool = True) -> set[str]:
    """The tables and views of the newest version, and its indexes."""
    made = [found for text in migrations(dialect).values() for found in _MADE.findall(text)]
    return {name for kind, name in made if indexes or kind != "INDEX"}


def scripts(dialect: Dialect, *, schema: str | None = None, after: int = 0, one_by_one: bool = False) -> list[Script]:
    """What brings tables of a version to the newest one: in one script, or one for each version."""
    texts = {number: text for number, text in sorted(migrations(dialect).items()) if number > after}
    if not texts:
        return []
    if not one_by_one:
        texts = {latest(dialect): "\n".join(texts.values())}
    return [Script(number, _script(dialect, schema, number, text)) for number, text in texts.items()]


def _script(dialect: Dialect, schema: str | None, version: int, text: str) -> str:
    makes_all = "CREATE TABLE dray_meta" in text
    return "".join(
        (
            _FILE if dialect == "sqlite" and makes_all else "",
            _BEGIN[dialect],
            _SCHEMA.format(schema=schema) if schema is not None else "",
            text,
            _VERSION.format(version=version, oldest_code=OLDEST_CODE),
            "COMMIT;\n",
        )
    )

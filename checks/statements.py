"""Checks the SQL catalogue: `make check` runs it.

Every statement has a description, is used, exists in both catalogues unless it belongs to one database only, and
compiles on an empty SQLite schema (the tests prepare each on both databases). No SQL is built in Python.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from pathlib import Path

from dray.backends.statements import Catalogue, Dialect, Statement, blocks, sql_files
from dray.backends.store.transfer import TABLES
from dray.backends.tables import slots

SOURCE = Path(__file__).parent.parent / "src" / "dray"
BUILT_SQL = re.compile(r"""execute(many|script)?\(\s*f["']""")
ABOUT = re.compile(r"^-- (?!rows:)\S", re.MULTILINE)
UNKNOWN = re.compile(r"\$(?!\[)")  # '$[0]' is a place in a JSON array
ALLOWED_BUILT_SQL = re.compile(r"PRAGMA|EXPLAIN")


def sources(folder: Path) -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("**/*.py")))


def named(dialect: Dialect, *, for_any_table: bool) -> list[str]:
    """Returns the names of the statements for any table, or of all others."""
    return [name for name, body in blocks(dialect).items() if ("{table}" in body) is for_any_table]


def unused(dialect: Dialect) -> list[str]:
    other = "postgres" if dialect == "sqlite" else "sqlite"
    backends = SOURCE / "backends"
    contract = [(backends / name).read_text(encoding="utf-8") for name in ("database.py", "migrate.py", "tables.py")]
    text = "\n".join(contract) + sources(backends / "store") + sources(backends / dialect)
    foreign = sources(backends / other)
    ours, theirs = (set(blocks(each)) for each in (dialect, other))
    problems = [f"{name}: nothing runs it on {dialect}" for name in sorted(ours) if f'"{name}"' not in text]
    alone = ours - theirs
    problems += [f"{name}: missing for {other}" for name in sorted(alone) if f'"{name}"' in foreign]
    return problems


def unclear() -> list[str]:
    both = [Catalogue(each)[name] for each in ("sqlite", "postgres") for name in blocks(each)]
    texts = [pair for each in ("sqlite", "postgres") for pair in blocks(each).items()]
    problems = [f"{name}: no line says what it does" for name, text in texts if not ABOUT.search(text)]
    return problems + [f"{s.name}: an unknown $word" for s in both if UNKNOWN.search(s.text)]


def uncompilable() -> list[str]:
    problems: list[str] = []
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for file in sql_files("sqlite", "migrations"):
        connection.executescript(file.read_text(encoding="utf-8"))
    plain = [Catalogue("sqlite")[name] for name in named("sqlite", for_any_table=False)]
    for statement in [*plain, *filled(connection)]:
        try:
            connection.execute(f"EXPLAIN {statement.text}", [None] * len(statement.parameters))
        except sqlite3.Error as error:
            problems.append(f"{statement.name}: {error}")
    connection.close()
    return problems


def filled(connection: sqlite3.Connection) -> list[Statement]:
    """Returns the statements for any table, filled in for every table."""
    statements: list[Statement] = []
    for table in TABLES:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info(dray_{table.name})")]
        given = {**slots(table, columns), "verb": "INSERT", "sentence": "'closed'"}
        names = named("sqlite", for_any_table=True)
        statements += [Catalogue("sqlite").filled(name, given) for name in names]
    return statements


def built() -> list[str]:
    problems: list[str] = []
    for file in sorted(SOURCE.glob("**/*.py")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if BUILT_SQL.search(line) and not ALLOWED_BUILT_SQL.search(line):
                problems.append(f"{file.relative_to(SOURCE)}:{number}: SQL put together in Python")
    return problems


def main() -> int:
    problems = [*unclear(), *unused("sqlite"), *unused("postgres"), *uncompilable(), *built()]
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    counts = [len(named(each, for_any_table=False)) for each in ("sqlite", "postgres")]
    sys.stdout.write(f"{counts[0]} + {counts[1]} statements checked\n")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())

"""What SQLite finds wrong with its file."""

from __future__ import annotations

from collections.abc import Callable

from dray.backends import ddl
from dray.backends.database import Row
from dray.wording import counted

Ask = Callable[[str], list[Row]]  # the rows of a statement, each in a read of its own


def verify(ask: Ask, *, full: bool) -> list[str]:
    """A sentence for each thing; at most a hundred of a kind."""
    there = {row[0] for row in ask("check_names")}
    references = ask("check_references") if full else []  # an audit goes through them, too
    return [
        *(str(row[0]) for row in ask("check_full" if full else "check_quick")),
        *(
            counted(count, f"row of {table} refers", f"rows of {table} refer") + " to what is not there"
            for table, count in references
        ),
        *(f"{name} is missing" for name in sorted(ddl.names("sqlite") - there)),
    ]

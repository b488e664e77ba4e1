"""What the SQLite library that Python is linked with can be trusted with."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from dray.errors import ConfigError
from dray.wording import dotted

OLDEST, SAFE = (3, 37), (3, 51, 3)


def refuse_old(path: Path) -> None:
    """An error where the tables could not be made: STRICT is new in 3.37. Asked before there is a file."""
    found = sqlite3.sqlite_version_info
    if found < OLDEST:
        raise ConfigError(
            f"{path}: this Python is linked with SQLite {dotted(found)}, and Dray needs {dotted(OLDEST)} or newer; "
            "use a Python that is linked with a newer one, or PostgreSQL"
        )


def caution(found: tuple[int, ...] = sqlite3.sqlite_version_info) -> str | None:
    """What is wrong with a library of this version; None: nothing."""
    if found >= SAFE:
        return None
    return (
        f"SQLite {dotted(found)}: before {dotted(SAFE)} two connections that write their log back at the very same "
        "moment can damage the file. It is rare, and rarer here: one worker does it for all"
    )

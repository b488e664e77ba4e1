"""A place to try something out beside a database: a file in the same folder, a schema on the same server.

Nothing of the database itself is opened, read or written.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from urllib.parse import quote

from dray.address import PostgresAddress, SqliteAddress, parse_address

_NAMES = ("dray_bench_", "dray_test_")  # nothing else is ever removed


def scratch_url(url: str, name: str = _NAMES[0]) -> str:
    """An address beside another, of something that is not there yet."""
    address, name = parse_address(url), name + secrets.token_hex(6)
    if isinstance(address, SqliteAddress):
        return f"sqlite:///{quote(os.fsencode(address.path.parent / f'{name}.db'))}"
    joint = "&" if "?" in address.conninfo else "?"
    return f"{address.conninfo}{joint}schema={name}"


def looking_there_first(url: str) -> str:
    """The same address of a schema, for connections that look for tables there first, and make them there: those that
    a user's statements name without a schema. Behind a pooler, which may refuse that, it is left as it is."""
    address = parse_address(url)
    assert isinstance(address, PostgresAddress)
    options, path = _postgres().search_path_of(address.conninfo)
    if path is None:
        return url
    joined = f"{address.schema},{path}".replace("\\", "\\\\").replace(" ", "\\ ")
    return f"{url}&options={quote(f'{options} -c search_path={joined}'.strip(), safe='')}"


@contextmanager
def removed_at_the_end(url: str) -> Generator[None]:
    """Removes what was made at an address of `scratch_url`, however this ends."""
    try:
        yield
    finally:
        remove_scratch(url)


def remove_scratch(url: str) -> None:
    """Removes what was made at an address of `scratch_url`, if anything was."""
    address = parse_address(url)
    if isinstance(address, SqliteAddress):
        _remove_file(address.path)
    else:
        _drop_schema(address)


def _remove_file(path: Path) -> None:
    assert path.name.startswith(_NAMES)
    for each in path.parent.glob(f"{path.name}*"):  # with its -wal and -shm, and the folder of workers' locks
        if each.is_dir():
            shutil.rmtree(each, ignore_errors=True)
        else:
            each.unlink(missing_ok=True)


def _drop_schema(address: PostgresAddress) -> None:
    assert address.schema is not None
    assert address.schema.startswith(_NAMES)
    _postgres().drop_schema(address.conninfo, address.schema)


def _postgres() -> ModuleType:
    from dray.backends.postgres import connect  # noqa: PLC0415 - psycopg is an extra

    return connect

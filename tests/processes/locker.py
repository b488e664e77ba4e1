"""A program that keeps the write lock of a SQLite file: ``python -m tests.processes.locker SECONDS``."""

from __future__ import annotations

import os
import sqlite3
import sys
import time

from dray.address import SqliteAddress, parse_address
from tests.processes import ledger


def main() -> None:
    address = parse_address(os.environ["DRAY_URL"])
    assert isinstance(address, SqliteAddress)
    connection = sqlite3.connect(address.path, timeout=30, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    ledger.write("locked", "locker")
    time.sleep(float(sys.argv[1]))
    connection.execute("ROLLBACK")
    connection.close()


if __name__ == "__main__":
    main()

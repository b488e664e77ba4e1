"""The PostgreSQL of the tests: whatever ends them, no server and no file is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.server import GUARDED, Server, in_database

HOLDER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from tests.server import Server
print(Server().folder, flush=True)
time.sleep(600)
"""


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def processes_below(folder: Path) -> list[int]:
    """Those with the folder in their command line: the keeper and the server."""
    found: list[int] = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in each.read_bytes():
                found.append(int(each.parent.name))
        except OSError:
            continue  # it has just ended
    return found


def test_a_test_process_that_is_killed_leaves_no_server_and_no_file() -> None:
    root = Path(__file__).parents[1]
    command = [sys.executable, "-c", HOLDER, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert len(processes_below(folder)) >= 2
        process.kill()

    until(lambda: not folder.exists() and not processes_below(folder))


def test_a_keeper_that_is_killed_takes_the_server_with_it() -> None:
    server = Server()
    os.kill(server._keeper.pid, signal.SIGKILL)

    until(lambda: not processes_below(server.folder))

    subprocess.run(["rm", "-r", str(server.folder)], check=True)
    server.remove()


def test_a_server_that_cannot_start_says_why_and_leaves_nothing() -> None:
    with pytest.raises(RuntimeError, match="no_such_setting") as caught:
        Server("no_such_setting=1")

    assert "PostgreSQL does not start" in str(caught.value)


def test_only_a_member_of_one_role_needs_a_password(postgres_server: str) -> None:
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE bob LOGIN PASSWORD 'right' IN ROLE {GUARDED}".encode())
    bob = in_database(postgres_server, "postgres").replace("postgres:@", "bob:{}@", 1)

    psycopg.connect(bob.format("right")).close()
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(bob.format("wrong"))

    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute("DROP ROLE bob")

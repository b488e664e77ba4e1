"""A PgBouncer in front of a test's PostgreSQL, in transaction mode: what it is told of a session goes astray."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.processes.harness import until

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

_CONFIG = """
[databases]
* = host={host} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 20
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
logfile = {folder}/log
"""


@contextmanager
def bouncer(server: str, user: str = "postgres") -> Generator[str]:
    """The address of the same database by way of the pooler, which is this user to the server; gone afterwards.

    Skips the test where there is no pooler.
    """
    if PROGRAM is None:
        pytest.skip("PgBouncer is not installed (Debian: apt install pgbouncer)")
    parts = urlsplit(server)
    host = Path(parse_qs(parts.query)["host"][0])
    folder = Path(tempfile.mkdtemp(prefix="dray-bouncer-"))
    folder.chmod(0o777)
    port = _free_port()
    config = folder / "pgbouncer.ini"
    config.write_text(_CONFIG.format(host=host, user=user, port=port, folder=folder))
    # It refuses to run as root.
    account = ["-u", host.owner()] if os.geteuid() == 0 else []
    process = subprocess.Popen(
        [PROGRAM, *account, str(config)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: _answers(port) or process.poll() is not None, "the pooler to listen")
        assert process.poll() is None, (folder / "log").read_text()
        yield f"postgresql://{user}@127.0.0.1:{port}{parts.path}"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0

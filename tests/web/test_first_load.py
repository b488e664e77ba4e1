"""What a browser loads at first, and how a server with open streams ends."""

from __future__ import annotations

import gzip
import http.client
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from html import unescape
from pathlib import Path

import pytest

from dray import Access, dashboard
from tests.web.browsing import Visitor
from tests.web.seeded import seeded

PATIENCE = 30.0
_MOUNTED = """
import sys, uvicorn, dray
from starlette.applications import Starlette
from starlette.routing import Mount

site = dray.dashboard(dray.App(sys.argv[1]), access=lambda request: "viewer")
config = uvicorn.Config(Starlette(routes=[Mount("/ops", site)]), port=0, log_level="warning")
bound = config.bind_socket()
bound.listen()  # from here on a connection waits
print(bound.getsockname()[1], flush=True)
uvicorn.Server(config).run([bound])
"""


def test_the_first_load_is_at_most_60_kilobytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with seeded(tmp_path / "jobs.db") as seed:
        access = Access("admin", "ann")
        site = dashboard(seed.app, access=lambda _: access)
        visitor = Visitor(site, access)
        first = "/" if visitor.client.get("/").status_code == 200 else "/queues"
        page = visitor.page(first)
        linked = [unescape(each) for each in re.findall(r'(?:src|href)="(/static/[^"]+)"', page)]
        sizes = {each.partition("?")[0]: len(gzip.compress(visitor.client.get(each).content)) for each in linked}
        sizes[first] = len(gzip.compress(page.encode()))
        site.close()

    with capsys.disabled():
        listed = ", ".join(f"{name} {size / 1000:.1f}" for name, size in sizes.items())
        print(f"\nfirst load: {sum(sizes.values()) / 1000:.1f} kB packed ({listed})")
    assert len(sizes) >= 5
    assert sum(sizes.values()) <= 60_000


def test_a_server_that_it_is_mounted_in_ends_within_two_seconds_although_streams_are_open(
    tmp_path: Path, sqlite_template: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """uvicorn itself waits for open streams without a limit."""
    path = tmp_path / "jobs.db"
    path.write_bytes(sqlite_template.read_bytes())
    command = [sys.executable, "-c", _MOUNTED, f"sqlite:///{path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
                connection.request("GET", "/ops/events")
                answer = connection.getresponse()
                assert answer.status == 200
                assert answer.readline().startswith(b":")

                began = time.monotonic()
                server.send_signal(signal.SIGTERM)
                server.wait(PATIENCE)
                took = time.monotonic() - began
        finally:
            server.kill()
    with capsys.disabled():
        print(f"\nthe server ended {took:.2f} s after SIGTERM")
    assert took < 5.0  # of which two on a machine that does nothing else

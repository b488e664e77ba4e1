"""A worker whose network is gone, while the server and everybody else go on: the packets vanish, nobody is told.

The server finds out by its keepalives; the worker has to stop its bodies before that, by its own clock. Needs a
network of its own: root, and the program `ip`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.processes.harness import APPS, Process, Yard
from tests.processes.places import Places

LEASE = 4.0
HOST, GUEST = "10.213.77.1", "10.213.77.2"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2, for a network of its own"
)


class Network:
    """A namespace with one cable to this machine, which can be pulled."""

    def __init__(self) -> None:
        self.name = f"dray{os.getpid()}"
        self._cable = f"dray{os.getpid()}h"
        self._made = False

    def open(self) -> None:
        self._ip("netns", "add", self.name)
        self._made = True
        self._ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        self._ip("addr", "add", f"{HOST}/30", "dev", self._cable)
        self._ip("link", "set", self._cable, "up")
        for command in (("addr", "add", f"{GUEST}/30", "dev", "eth0"), ("link", "set", "eth0", "up")):
            self._ip("-n", self.name, *command)

    def pull(self) -> None:
        self._ip("link", "set", self._cable, "down")

    def plug(self) -> None:
        self._ip("link", "set", self._cable, "up")

    def close(self) -> None:
        if self._made:
            self._ip("netns", "del", self.name)  # the cable goes with it

    def _ip(self, *command: str) -> None:
        subprocess.run(["ip", *command], check=True, capture_output=True)


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    try:
        made.open()
    except subprocess.CalledProcessError as error:
        made.close()
        pytest.skip(f"no network of its own can be made here: {error.stderr.decode().strip()}")
    yield made
    made.close()


@pytest.fixture
def far(network: Network, places: Places) -> Iterator[Yard]:
    """A yard on a server that listens at this end of the cable too."""
    with places.server() as (server, yard):
        rules = server._server.pgdata / "pg_hba.conf"
        rules.write_text(f"{rules.read_text()}\nhost all all {HOST}/30 trust\n")
        server.stop()
        server._control("-o", f"-h {HOST} -p 5432 -k {server._server.pgdata}", "start")
        server.start()
        yield yard


def start_at_the_far_end(yard: Yard, network: Network) -> Process:
    url = f"postgresql://postgres@{HOST}/postgres?schema=own"
    worker = yard.run(
        ["-m", "tests.processes.serve", APPS, json.dumps({"lease": LEASE})],
        {"DRAY_URL": url},
        under=["ip", "netns", "exec", network.name],
    )
    yard.until(lambda: yard.worker_of(worker), "the worker at the far end")
    return worker


def test_a_worker_whose_network_is_gone_stops_its_bodies_before_others_take_them_over(
    far: Yard, network: Network
) -> None:
    yard = far
    lonely = start_at_the_far_end(yard, network)
    first_id = yard.worker_of(lonely)
    tasks = ("until_there", "deaf_in_process", "deaf_async")
    jobs = [yard.enqueue("until_there", label="until_there", path=str(yard.folder / "long"))]
    jobs += [yard.enqueue(task, label=task) for task in tasks[1:]]
    yard.until(lambda: len(yard.ledger.starts()) == 3, "the bodies")
    heir = yard.start(lease=LEASE)
    network.pull()
    over_at = time.monotonic() + LEASE
    yard.until(lambda: time.monotonic() >= over_at)
    assert [yard.ledger.alive(task) for task in tasks] == [[], [], []]
    yard.until(lambda: len(yard.ledger.starts()) == 6, "the heir to take over", seconds=60)
    assert yard.ledger.entries("overlap") == []
    network.plug()
    new_id = yard.until(lambda: yard.worker_of(lonely) not in {first_id, None} and yard.worker_of(lonely), seconds=60)
    (yard.folder / "long.2").touch()
    assert [job.result(timeout=30) for job in jobs] == ["attempt 2"] * 3
    assert [yard.outcomes(job) for job in jobs] == [["crashed", "completed"]] * 3
    assert heir.end() == 0
    again = yard.enqueue("quick", label="afterwards")
    assert again.result(timeout=30) == "afterwards"
    assert again.attempts()[0].worker == new_id
    assert lonely.end() == 0
    assert len(lonely.lines("WARNING")) <= 8, lonely.said
    yard.audit()

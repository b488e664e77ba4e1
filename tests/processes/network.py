"""A network of a test's own with one cable to this machine, which can be pulled. Needs root and `ip`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager

import pytest

_NET, _BLOCK = divmod(os.getpid() % 16_384, 64)  # four addresses for each process that tests: several may at once
HOST, GUEST = (f"10.213.{_NET}.{4 * _BLOCK + n}" for n in (1, 2))


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


@contextmanager
def network() -> Generator[Network]:
    """Skips the test where there can be none."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2, for a network of its own")
    made = Network()
    try:
        made.open()
    except subprocess.CalledProcessError as error:
        made.close()
        pytest.skip(f"no network of its own can be made here: {error.stderr.decode().strip()}")
    try:
        yield made
    finally:
        made.close()

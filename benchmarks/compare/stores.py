"""The stores of the comparison, each empty for every measurement, with the default settings of its server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg

from benchmarks.compare.entrants import StoreName
from benchmarks.places import postgres_place

_PATIENCE = 10.0


class NoStore(Exception):
    """A store cannot be started here; the text says why."""


class Store(NamedTuple):
    """`fresh` empties the store and returns its address."""

    version: str
    fresh: Callable[[], str]


@contextmanager
def sqlite() -> Generator[Store]:
    with tempfile.TemporaryDirectory(prefix="dray-compare-") as folder:
        place = Path(folder, "database")

        def fresh() -> str:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            return f"sqlite:///{place}/jobs.db"

        yield Store("", fresh)


@contextmanager
def postgres() -> Generator[Store]:
    with postgres_place() as url:
        with psycopg.connect(url) as connection:
            version = connection.info.parameter_status("server_version") or "?"

        def fresh() -> str:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("DROP DATABASE IF EXISTS compare WITH (FORCE)")
                connection.execute("CREATE DATABASE compare")
            return urlsplit(url)._replace(path="/compare").geturl()

        yield Store(version, fresh)


@contextmanager
def redis() -> Generator[Store]:
    """Starts a Redis server with its default settings: snapshots to disk, no append-only file."""
    _install_redis()
    version = subprocess.run(["redis-server", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="dray-compare-") as folder:
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", folder]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            _wait_for(port)

            def fresh() -> str:
                subprocess.run(["redis-cli", "-p", str(port), "FLUSHALL"], stdout=subprocess.DEVNULL, check=True)
                return f"redis://127.0.0.1:{port}/0"

            yield Store(version.partition("v=")[2].split()[0], fresh)
        finally:
            server.terminate()
            server.wait()


def _install_redis() -> None:
    if shutil.which("redis-server"):
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print("installing redis-server", flush=True)
        apt = ["apt-get", "install", "-qy", "--no-install-recommends", "redis-server"]
        subprocess.run(["apt-get", "update", "-q"], stdout=subprocess.DEVNULL, check=False)
        subprocess.run(apt, stdout=subprocess.DEVNULL, check=False)
    if not shutil.which("redis-server"):
        raise NoStore("redis-server is not installed (Debian package redis-server)")


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise NoStore(f"redis-server did not start within {_PATIENCE:g} s") from error
            time.sleep(0.05)
        else:
            return


STORES: dict[StoreName, Callable[[], AbstractContextManager[Store]]] = {
    "SQLite": sqlite,
    "PostgreSQL": postgres,
    "Redis": redis,
}

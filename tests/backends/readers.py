"""Processes that may only read a database; see `processes.Process`."""

from __future__ import annotations

import sys
from pathlib import Path

from dray.backends import open_backend
from dray.backends.sqlite.files import way
from dray.errors import StorageUnavailable
from dray.waiter import Waiter
from tests.backends.processes import enqueue, hear, run, tell


def look_again_and_again(path: str) -> None:
    """Reports, on each request, how many jobs there are and how the file was opened."""
    backend = open_backend(path, create=False)
    while hear():
        found = way(Path(path))
        tell(
            [
                len(backend.jobs.newest()),
                None if found is None else found.name,
                sorted(file.name for file in Path(path).parent.iterdir()),
            ]
        )
    backend.close()


def wait_for_the_end(path: str, job_id: str) -> None:
    backend = open_backend(path, create=False)
    tell("waiting")
    tell(sorted(Waiter(backend).wait([job_id], 15.0)))


def try_to_write(path: str) -> list[str]:
    backend = open_backend(path)
    assert len(backend.jobs.newest()) == 1
    try:
        enqueue(backend)
    except StorageUnavailable as error:
        return [str(error), *sorted(file.name for file in Path(path).parent.iterdir())]
    return []


def opened_by_python(path: str) -> list[str]:
    """Returns which files with that name Python opens while a database is read."""
    opened: list[str] = []

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(path):
            opened.append(str(arguments[0]))

    sys.addaudithook(hook)
    backend = open_backend(path, create=False)
    backend.jobs.newest()
    backend.history.stats(1)
    backend.schema_version()
    backend.watch().close()
    backend.close()
    return opened


if __name__ == "__main__":
    run(globals())

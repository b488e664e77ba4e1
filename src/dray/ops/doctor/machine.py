"""The machine: Python, the database's library, its disk, and its word that a file was written."""

from __future__ import annotations

import sys
from pathlib import Path

from dray.backends.sqlite import trust
from dray.ops.doctor.check import Check, Finding, failed, note, ok, warning
from dray.ops.doctor.subject import Subject
from dray.ops.doctor.words import size
from dray.wording import dotted

_OLDEST_PYTHON, _NEWEST_PYTHON = (3, 11), (3, 14)
_OLDEST_DRIVER = (3, 3)
_FULL, _TIGHT = 64 * 1024**2, 512 * 1024**2  # bytes; the write-ahead log alone may take 64 MiB


def _python(subject: Subject) -> Finding:
    found = dotted(subject.python)
    span = f"{dotted(_OLDEST_PYTHON)} to {dotted(_NEWEST_PYTHON)}"
    if subject.python[:2] < _OLDEST_PYTHON:
        return failed(f"Python {found} is too old: Dray runs on {span}", "install a newer Python")
    if subject.python[:2] > _NEWEST_PYTHON:
        return note(f"Python {found} is newer than those that Dray is tested on ({span})")
    return ok(f"Python {found}")


def _sqlite(subject: Subject) -> Finding | None:
    if not subject.settings.is_sqlite:
        return None
    found = dotted(subject.sqlite)
    if subject.sqlite < trust.OLDEST:
        return failed(
            f"SQLite {found} is too old: Dray needs {dotted(trust.OLDEST)}",
            "use a Python that is linked with a newer SQLite",
        )
    caution = trust.caution(subject.sqlite)
    if caution is not None:
        return warning(
            caution,
            f"use a Python that is linked with SQLite {dotted(trust.SAFE)} or newer; until then keep "
            "backups (dray db backup)",
        )
    return ok(f"SQLite {found}")


def _driver(subject: Subject) -> Finding | None:
    if subject.settings.is_sqlite:
        return None
    import psycopg  # noqa: PLC0415 - for those who use PostgreSQL

    found = psycopg.__version__
    numbers = tuple(int(part) for part in found.split(".")[:2])
    if numbers < _OLDEST_DRIVER:
        return warning(
            f"psycopg {found} is older than {dotted(_OLDEST_DRIVER)}, which Dray is made for",
            "pip install -U 'dray[postgres]'",
        )
    if psycopg.pq.__impl__ == "python":
        return note(f"psycopg {found} in pure Python: slower than in C", "pip install 'psycopg[binary]'")
    return ok(f"psycopg {found}")


def _disk(subject: Subject) -> Finding | None:
    facts = subject.file
    if facts is None:
        return None
    found = f"{size(facts.free)} free beside a file of {size(facts.size)}"
    if facts.free < _FULL:
        return failed(f"the disk is all but full: {found}", "free space on it, or move the file to another disk")
    if facts.free < _TIGHT:
        return warning(f"the disk is filling up: {found}", "free space on it, or move the file to another disk")
    if facts.free < facts.size:
        return warning(f"no room for a copy: {found}", "free space on the disk, or back up to another one")
    return ok(found)


def _inotify(subject: Subject) -> Finding | None:
    if subject.file is None or sys.platform != "linux":
        return None
    from dray.backends.sqlite import inotify  # noqa: PLC0415 - for those who use SQLite

    limit = Path("/proc/sys/fs/inotify/max_user_instances")
    most = limit.read_text(encoding="ascii").strip() if limit.exists() else "so many"
    found = inotify.start()
    if found is None:
        return warning(
            f"no inotify instance can be had (a user has {most}): a worker started now would look each second "
            "instead of being told at once",
            "sysctl fs.inotify.max_user_instances=1024, or end programs that watch files",
        )
    found.close()
    return ok(f"inotify can be had (a user has {most} instances, each worker takes one)")


CHECKS = (
    Check("python", _python),
    Check("sqlite", _sqlite),
    Check("driver", _driver),
    Check("disk", _disk),
    Check("inotify", _inotify),
)

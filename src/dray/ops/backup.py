"""A copy of the whole database in a file of its own, made while others write: there whole, or not at all."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

from dray import backends
from dray.backends.database import Progress
from dray.instants import to_datetime


def backup(backend: backends.Backend, target: Path | None, *, force: bool, progress: Progress) -> dict[str, Any]:
    """Copies into a file, by default one named after the database and the time; in a folder, where one is named.

    What is there is replaced only by force, and only by a copy that was checked and is on disk.
    """
    began, copier = time.monotonic(), backend.db.copier
    path = Path.cwd() if target is None else target.absolute()
    if path.is_dir():
        path /= f"{copier.name}-{to_datetime(backend.now()):%Y%m%dT%H%M%SZ}{copier.ending}"
    copier.refuse(path)
    if path.exists() and not force:
        raise _there(path)
    draft = _draft(path)
    try:
        jobs = copier.copy(draft, progress)
        draft.chmod(copier.mode())
        _sync(draft, os.O_RDONLY)
        _put(draft, path, force=force)
        _sync(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    finally:
        draft.unlink(missing_ok=True)
    size, seconds = path.stat().st_size, time.monotonic() - began
    return {"backup": str(path), "bytes": size, "jobs": jobs, "seconds": seconds}  # jobs: None if it cannot be told


def _there(path: Path) -> OSError:
    return FileExistsError(
        errno.EEXIST, "is there already; choose another name, or replace it with --force", str(path)
    )


def _draft(path: Path) -> Path:
    """Creates a file that only this user can read, beside its final place."""
    draft = path.with_name(f".{path.name[:100]}-{os.urandom(6).hex()}")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path.parent)) from None
    return draft


def _put(draft: Path, path: Path, *, force: bool) -> None:
    if force:
        draft.replace(path)
        return
    try:
        os.link(draft, path)  # unlike a rename it does not replace a file that was put there meanwhile
    except FileExistsError:
        raise _there(path) from None
    except OSError:
        draft.rename(path)  # a file system without hard links


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""The database file before SQLite opens it: made private, never opened by us once it may be in use.

A file that may only be read is read as it is: through its -wal where there is one, frozen where there is none. SQLite
by itself would leave a -wal and a -shm of the wrong owner beside it.

Closing any descriptor of a database file drops the locks that SQLite holds on it in this process, so an existing
file is only ever looked at with stat; a new one is made under another name and linked into place.
"""

from __future__ import annotations

import os
import stat
from enum import StrEnum
from pathlib import Path

from dray.backends import migrate
from dray.backends.sqlite import trust
from dray.errors import FileMissing, StorageUnavailable
from dray.log import log

_doubted: set[Path] = set()  # what was said once a process


class Way(StrEnum):
    """How a database can be opened here, in the words of SQLite's URIs."""

    WRITE = "mode=rw"
    READ = "mode=ro&readonly_shm=1"  # its -wal tells what others have written and write
    FROZEN = "mode=ro&immutable=1"  # no process has it open, so SQLite need not look for a -wal, nor make one


def identity(path: str) -> tuple[int, int] | None:
    """What tells this file from another at the same path. Asked at every write: a Path takes three times as long."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino


def way(path: Path) -> Way | None:
    """How the file can be opened; None: there is none. An error if there is something else, or it cannot be read."""
    if not _is_file(path):
        return None
    if may(path, os.R_OK | os.W_OK) and _can_be_logged(path):
        return Way.WRITE
    if not may(path, os.R_OK):
        raise StorageUnavailable(f"{path}: may not be read by user {os.geteuid()}; change its rights or owner")
    wal, shm = _log_of(path)
    if shm.exists() and wal.exists():
        return Way.READ
    if wal.exists() and wal.stat().st_size:
        # Without it the file may be half of an old state and half of a new one.
        raise StorageUnavailable(
            f"{path}: its -wal cannot be read without the -shm, which may not be made here; copy the file with its "
            f"-wal to a folder that user {os.geteuid()} can write to"
        )
    return Way.FROZEN


def _is_file(path: Path) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageUnavailable(f"{path}: cannot be reached by user {os.geteuid()}: {error.strerror}") from None
    if stat.S_ISDIR(found.st_mode):
        raise StorageUnavailable(f"{path}: is a directory; name a file in it, such as {path / 'dray.db'}")
    if not stat.S_ISREG(found.st_mode):
        raise StorageUnavailable(f"{path}: is not an ordinary file; choose another path")
    return True


def may(path: Path, mode: int) -> bool:
    """Whether this process may do that to a file."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _can_be_logged(path: Path) -> bool:
    """Whether the files that SQLite writes beside it are there, or can be made."""
    return may(path.parent, os.W_OK | os.X_OK) or all(may(file, os.R_OK | os.W_OK) for file in _log_of(path))


def _log_of(path: Path) -> tuple[Path, Path]:
    return beside(path, "-wal"), beside(path, "-shm")


def beside(path: Path, suffix: str) -> Path:
    """The file or folder that goes with a database and is named after it."""
    return Path(f"{path}{suffix}")  # with_name() raises for "/", which is to be refused in words like any folder


def prepare(path: Path, mode: int, *, create: bool, tell: bool = False) -> None:
    """Makes sure there is a file to open, or says why not. `tell`: logs where it has made a new one."""
    trust.refuse_old(path)
    there = _is_file(path)
    # SQLite would open it read-only and leave a -wal and -shm of the wrong owner beside it.
    if there and not may(path, os.R_OK | os.W_OK):
        raise StorageUnavailable(
            f"{path}: may not be read and written by user {os.geteuid()}; change its rights or owner, or use a disk "
            "that can be written to"
        )
    if not there and not create:
        raise FileMissing(f"{path}: there is no such file; run {migrate.command('init', str(path))}")
    refuse_network(path)
    if not there:
        _refuse_leftovers(path)
        is_new = _make(path, mode)
        if is_new and tell:
            # A warning, for programs that have not set up logging: jobs in a file of another folder are not found.
            log.warning("created %s (App() has no address, and DRAY_URL is not set)", path)


def _refuse_leftovers(path: Path) -> None:
    """SQLite would take the log of a file that was removed for the new one's, and damage it."""
    wal, shm = _log_of(path)
    if wal.exists() and wal.stat().st_size:
        raise StorageUnavailable(
            f"{path}: is gone, and its {wal.name} is still there; put it back, or remove {wal.name} and {shm.name} "
            "too, once no process uses them"
        )


def refuse_network(path: Path) -> None:
    """An error where other machines use the same file, and a warning, once, where they might."""
    kind = trust.kind_of(path if path.exists() else path.parent)
    if trust.is_shared(kind):
        raise StorageUnavailable(
            f"{path}: lies on a network file system ({kind}), where SQLite's locks cannot be trusted; "
            "use a local disk, or PostgreSQL"
        )
    doubt = trust.doubt(kind)
    if doubt is not None and path not in _doubted:
        _doubted.add(path)
        log.warning("%s: lies on %s", path, doubt)


def _make(path: Path, mode: int) -> bool:
    """Returns False if another process was first: its file is as good."""
    folder = path.parent
    if not folder.is_dir():
        raise StorageUnavailable(f"{path}: the directory {folder} does not exist; create it first")
    try:
        is_new = _make_linked(path, mode)
        _sync_folder(folder)
    except OSError as error:
        raise StorageUnavailable(
            f"{path}: cannot be created by user {os.geteuid()}: {error.strerror}; "
            f"make {folder} writable or choose another path"
        ) from None
    return is_new


def _make_linked(path: Path, mode: int) -> bool:
    draft = path.parent / f".dray-{os.urandom(6).hex()}"
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError:
        return _make_directly(path, mode)
    finally:
        os.close(descriptor)
        draft.unlink()
    return True


def _make_directly(path: Path, mode: int) -> bool:
    # A file system without hard links. No other process can have opened the file: it is new.
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
    except FileExistsError:
        return False
    os.close(descriptor)
    return True


def _sync_folder(folder: Path) -> None:
    # Without this a power loss can forget the file's name, and with it every job in it.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

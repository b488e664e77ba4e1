"""Proof of life by the kernel: a locked file per worker, `<database>-workers/<id>.lock`.

The kernel frees the lock 1-5 ms after the process is gone, however it went, and keeps it while the process is
stopped. It belongs to the open file, not to the process: a child that inherits the descriptor keeps it, so forked
children close theirs (they never unlock: that would free the parent's), apart from those that are given it on
purpose. A process that looks opens the file read-only, never makes it, and takes a shared lock for a moment: any
number may look at once.

What the lock says holds for the kernel that it was asked of. Of a worker of another boot it says nothing; but a
disk is one machine's, so on a disk a worker of another boot is gone with that boot. Where the system does not name
its boot, a free lock on a disk proves death (of this boot or an earlier one), and one that cannot be seen nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import time
import weakref
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from dray import forks
from dray.backends.sqlite import files, trust
from dray.backends.watch import Watch
from dray.clock import UNKNOWN_BOOT, Clock
from dray.errors import StorageError, StorageFull, StorageUnavailable

if TYPE_CHECKING:
    from dray.backends.database import Session
    from dray.model.worker import Signs

_SUFFIX = ".lock"
_TRIES = 100
_LEFTOVER_AGE = 60.0  # seconds; a file is made a moment before its worker's row
_FORK_PATIENCE = 2.0
_LOOK = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class SqliteProof:
    """One worker's lock file, locked for as long as this is open."""

    def __init__(self, path: Path, file: FileIO, proofs: SqliteProofs) -> None:
        self.path = path
        self._proofs = proofs
        # Not the bare number: closing it and noting that it is closed would be two steps, with room for an interrupt.
        self._file = file
        self.lock: str | None = _identity(os.fstat(file.fileno()))

    @property
    def is_held(self) -> bool:
        return not self._file.closed

    is_certain = True  # it is the kernel's

    def fileno(self) -> int | None:
        return None if self._file.closed else self._file.fileno()

    def check(self) -> bool:
        """Whether the path still leads to the file that is locked: otherwise other processes cannot see the proof."""
        if self._file.closed:
            return False
        try:
            return _identity(self.path.lstat()) == self.lock
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # out of reach for the moment, for those who look too

    def close(self) -> None:
        if self._file.closed:
            return
        if self.check():
            # While it is locked: no process takes it for a dead worker's.
            with suppress(OSError):
                self.path.unlink()
            with suppress(OSError):
                self.path.parent.rmdir()  # the last one leaves nothing behind
        # Python forgets the number before it closes the descriptor: a child forked in between would keep it open.
        with self._proofs.forking_lock:
            self.let_go()

    def let_go(self) -> None:
        """Closes the descriptor and nothing else; in a forked child the lock stays the parent's."""
        self._file.close()


class SqliteProofs:
    """The lock files beside one database."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self.forking_lock = threading.Lock()  # around descriptors that no forked child may inherit unnoticed
        self._fork_holds_lock = False
        self._proofs: weakref.WeakSet[SqliteProof] = weakref.WeakSet()
        forks.watch(self)

    @cached_property
    def _folder(self) -> Path:
        return folder_of(self._path)

    def prove(self, worker_id: str, watch: Watch) -> SqliteProof:  # noqa: ARG002 - the kernel proves it here
        path = self._folder / f"{worker_id}{_SUFFIX}"
        try:
            with self.forking_lock:
                proof = SqliteProof(path, _make(path, self._path.stat()), self)
                self._proofs.add(proof)
                return proof
        except OSError as error:
            raise _refused(path, error) from error

    def suspects(self) -> bool | None:
        own = {proof.path.name for proof in self._proofs if proof.is_held}
        return any(self._is_held(self._folder / name) is False for name in self._names() if name not in own)

    def witness(self, tx: Session, workers: Sequence[Signs]) -> dict[str, bool]:  # noqa: ARG002 - it asks the kernel
        judged = {worker.id: self._is_alive(worker) for worker in workers}
        return {worker_id: alive for worker_id, alive in judged.items() if alive is not None}

    def forget(self, worker_ids: Collection[str]) -> None:
        for worker_id in worker_ids:
            self._remove(self._folder / f"{worker_id}{_SUFFIX}", older_than=0.0)

    def sweep(self, live_ids: Collection[str]) -> None:
        for name in self._names():
            if name.removesuffix(_SUFFIX) not in live_ids:
                self._remove(self._folder / name, older_than=_LEFTOVER_AGE)

    # Looking

    def _is_alive(self, worker: Signs) -> bool | None:
        if worker.lock is None:
            return None
        is_held = self._is_held(self._folder / f"{worker.id}{_SUFFIX}", worker.lock)
        theirs, ours = _kernel(worker.boot), _kernel(self._clock.boot)
        if is_held or (theirs == ours != UNKNOWN_BOOT):
            return is_held
        if not trust.is_disk(trust.kind_of(self._path)):
            return None
        # A boot without a name may be this one: then only what the lock says counts.
        return is_held if UNKNOWN_BOOT in {theirs, ours} else False

    def _is_held(self, path: Path, lock: str | None = None) -> bool | None:
        """Whether a lock file is locked; None: it cannot be told, or it is another file than the one meant."""
        with self._opened(path) as descriptor:
            if descriptor is None or (lock is not None and _identity(os.fstat(descriptor)) != lock):
                return None
            return _is_locked(descriptor)

    @contextmanager
    def _opened(self, path: Path) -> Generator[int | None]:
        # The lock: a child forked meanwhile would inherit the descriptor, and with it our look at the file.
        with self.forking_lock:
            try:
                descriptor = os.open(path, _LOOK)
            except OSError:
                yield None
                return
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if name.endswith(_SUFFIX)]  # noqa: PTH208 - names alone
        except OSError:
            return []

    def _remove(self, path: Path, older_than: float) -> None:
        """Unlinks a lock file that no process has locked, while we have it locked ourselves."""
        with self._opened(path) as descriptor:
            if descriptor is None or _is_locked(descriptor) is not False:
                return
            if older_than and time.time() - os.fstat(descriptor).st_mtime < older_than:
                return
            with suppress(OSError):
                path.unlink()

    # Fork

    def before_fork(self) -> None:
        self._fork_holds_lock = self.forking_lock.acquire(timeout=_FORK_PATIENCE)

    def after_fork_in_parent(self) -> None:
        if self._fork_holds_lock:
            self._fork_holds_lock = False
            self.forking_lock.release()

    def after_fork_in_child(self) -> None:
        self.forking_lock = threading.Lock()
        for proof in list(self._proofs):
            proof.let_go()


def folder_of(database: Path) -> Path:
    """The folder of the lock files. Beside what a link leads to: all processes have to mean the same one."""
    return files.beside(Path(os.path.realpath(database)), "-workers")


def _make(path: Path, database: os.stat_result) -> FileIO:
    """A new lock file, locked, that its path leads to."""
    for _ in range(_TRIES):
        _make_folder(path.parent, database)
        try:
            file = FileIO(path, "x+", opener=lambda name, flags: os.open(name, flags, _mode(database)))
        except FileNotFoundError:
            continue  # the last worker took the folder away
        try:
            _share(file.fileno(), _mode(database), database)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _identity(path.lstat()) == _identity(os.fstat(file.fileno())):
                return file
        except (BlockingIOError, FileNotFoundError):
            pass  # another process looked, or swept, between the two steps
        except BaseException:
            file.close()
            raise
        with suppress(FileNotFoundError):
            path.unlink()
        file.close()
    raise OSError(errno.EBUSY, "another process keeps removing it")


def _make_folder(folder: Path, database: os.stat_result) -> None:
    # Users who may read the database may look into it, users who may write the database may write here.
    mode = _mode(database) | (_mode(database) & 0o444) >> 2
    try:
        folder.mkdir(mode)
    except FileExistsError:
        return
    _share(folder, mode, database)


def _share(target: Path | int, mode: int, database: os.stat_result) -> None:
    """Gives a file or folder the rights and the group of the database, past the umask, as far as the user may."""
    with suppress(PermissionError):
        os.chown(target, -1, database.st_gid)
    with suppress(PermissionError):
        os.chmod(target, mode)  # noqa: PTH101 - descriptors too


def _mode(database: os.stat_result) -> int:
    return stat.S_IMODE(database.st_mode) & 0o666


def _identity(found: os.stat_result) -> str:
    return f"{found.st_dev}:{found.st_ino}"


def _is_locked(descriptor: int) -> bool | None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _kernel(boot: str) -> str:
    """The boot without the time namespace, which locks do not know."""
    return boot.partition(":")[0]


def _refused(path: Path, error: OSError) -> StorageError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StorageFull(f"{path}: the disk is full; the worker was not started. Free space and start it again")
    return StorageUnavailable(
        f"{path}: the file that proves this worker alive cannot be made and locked by user {os.geteuid()}: "
        f"{error.strerror}; make the directory of the database writable"
    )

"""The database file before SQLite opens it: made private, never opened by us once it may be in use.

Closing any descriptor of a database file drops the locks that SQLite holds on it in this process, so an existing
file is only ever looked at with stat; a new one is made under another name and linked into place.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from dray.errors import StorageUnavailable

# SQLite's locks and shared memory do not work across the machines that share these.
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs", "ncpfs"}


def prepare(path: Path, mode: int, *, create: bool, allow_network: bool) -> None:
    """Makes sure there is a file to open, or says why not."""
    try:
        found = path.stat()
    except FileNotFoundError:
        if not create:
            raise StorageUnavailable(f"{path}: there is no such file; enqueue a job or run `dray db init`") from None
        _refuse_network(path.parent, path, allow_network=allow_network)
        _make(path, mode)
        return
    except (PermissionError, NotADirectoryError) as error:
        raise StorageUnavailable(f"{path}: cannot be reached by user {os.getuid()}: {error.strerror}") from None
    if stat.S_ISDIR(found.st_mode):
        raise StorageUnavailable(f"{path}: is a directory; name a file in it, such as {path / 'dray.db'}")
    _refuse_network(path, path, allow_network=allow_network)


def _make(path: Path, mode: int) -> None:
    folder = path.parent
    if not folder.is_dir():
        raise StorageUnavailable(f"{path}: the directory {folder} does not exist; create it first")
    draft = folder / f".{path.name}.{secrets.token_hex(6)}"
    try:
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
    except OSError as error:
        raise StorageUnavailable(
            f"{path}: cannot be created by user {os.getuid()}: {error.strerror}; "
            f"make {folder} writable or choose another path"
        ) from None
    try:
        os.fchmod(descriptor, mode)
        os.link(draft, path)
    except FileExistsError:
        pass  # another process was first: its file is as good
    finally:
        os.close(descriptor)
        draft.unlink()
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    # Without this a power loss can forget the file's name, and with it every job in it.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_network(where: Path, path: Path, *, allow_network: bool) -> None:
    kind = _file_system(where)
    if kind in _NETWORK and not allow_network:
        raise StorageUnavailable(
            f"{path}: lies on a network file system ({kind}), where SQLite's locks cannot be trusted; "
            "use a local disk, or PostgreSQL"
        )


def _file_system(where: Path) -> str | None:
    """The type of file system that a path lies on, as the kernel names it; None where it does not say."""
    try:
        device = where.stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts:
        fields, _, kinds = line.partition(" - ")
        if fields.split()[2] == wanted:
            return kinds.split()[0]
    return None

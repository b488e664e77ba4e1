"""Where SQLite can be trusted: the file system that a path lies on, and the library that Python is linked with.

A database in WAL mode needs two things of all who use it: locks that each of them sees, and one piece of shared
memory, the -shm, that they all map. Processes of one kernel on a file system of that kernel have both.

- Refused: file systems that several machines, or a machine and its host, reach at the same time. Their locks may be
  forgotten or kept to one side, and no two kernels share the -shm, whatever their locks do: writers damage the file
  without an error. That includes cluster file systems with good locks, and folders that a hypervisor shares.
- Doubted, with a warning: virtiofs and its like, by which one virtual machine gets a folder of its host. It is sound
  as long as only that one guest uses the file, which is what containers on a desktop do, and cannot be seen from
  here. Also FUSE file systems that are not known here: what is behind one may be another machine.
- Trusted: disks, memory, and layers above them (overlay, fuse-overlayfs, encrypted or joined folders by FUSE).

The name is the kernel's, out of /proc/self/mountinfo: the kind of a FUSE file system is shown there alone. Where
there is no /proc nothing is known, and nothing is refused.
"""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path

from dray.errors import ConfigError
from dray.wording import dotted

OLDEST, SAFE = (3, 37), (3, 51, 3)  # versions of the library

# By the names of the kernel's own clients and of FUSE daemons, which appear as fuse.NAME.
_NAMES = {
    "servers": "nfs nfs4 cifs smb3 smbfs afs afpfs coda ncpfs 9p sshfs davfs curlftpfs",
    "clusters": "ceph ceph-fuse glusterfs lustre gpfs beegfs fhgfs ocfs2 gfs gfs2 acfs orangefs pvfs2 panfs wekafs"
    " quobyte mfs lizardfs juicefs seaweedfs hdfs",
    "object stores": "s3fs s3ql goofys mountpoint-s3 gcsfuse blobfuse blobfuse2 rclone",
    "hypervisors": "vboxsf vmhgfs vmhgfs-fuse prl_fs drvfs",
    "one guest": "virtiofs fakeowner grpcfuse osxfs",
    "local FUSE": "fuse-overlayfs unionfs mergerfs bindfs encfs gocryptfs cryfs ntfs-3g exfat",
    "disks": "ext2 ext3 ext4 xfs btrfs f2fs bcachefs zfs jfs reiserfs nilfs2 ntfs3 fuseblk exfat vfat hfsplus apfs"
    " overlay tmpfs",
}
_OF = {kind: set(names.split()) for kind, names in _NAMES.items()}
_SHARED = _OF["servers"] | _OF["clusters"] | _OF["object stores"] | _OF["hypervisors"]
_ESCAPED = re.compile(r"\\([0-7]{3})")


def is_shared(kind: str | None) -> bool:
    """Whether other machines can reach the same file."""
    return kind is not None and kind.removeprefix("fuse.") in _SHARED


def is_disk(kind: str | None) -> bool:
    """Whether only this machine can reach the file."""
    return kind in _OF["disks"]


def doubt(kind: str | None) -> str | None:
    """What is to be said of a file system that may or may not be this machine's alone; None: nothing."""
    if kind is None or is_shared(kind):
        return None
    name = kind.removeprefix("fuse.")
    if name in _OF["one guest"]:
        return (
            f"{kind}, a folder of this virtual machine's host: SQLite's locks hold only while no program of the host "
            "and no other guest uses the file"
        )
    if (kind.startswith("fuse.") or kind == "fuse") and name not in _OF["local FUSE"]:
        return f"{kind}, which is not known here: if it leads to another machine, SQLite's locks do not hold"
    return None


def kind_of(where: Path) -> str | None:
    """The type of file system that a path lies on, as the kernel names it; None where it does not say."""
    try:
        device = where.stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    place = os.path.realpath(where)
    nearest, kind = -1, None
    for line in mounts:
        fields, _, kinds = line.partition(" - ")
        _, _, number, _, point, *_ = fields.split()
        if number == wanted:
            return kinds.split()[0]
        # Files of btrfs and of overlays may have a device of their own: the mount they lie under tells. The last of
        # several at one place is the one that is seen.
        point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), point)
        if len(point) >= nearest and (place == point or place.startswith(point.rstrip("/") + "/")):
            nearest, kind = len(point), kinds.split()[0]
    return kind


def refuse_old(path: Path) -> None:
    """An error where the tables could not be made: STRICT is new in 3.37. Asked before there is a file."""
    found = sqlite3.sqlite_version_info
    if found < OLDEST:
        raise ConfigError(
            f"{path}: this Python is linked with SQLite {dotted(found)}, and Dray needs {dotted(OLDEST)} or newer; "
            "use a Python that is linked with a newer one, or PostgreSQL"
        )


def caution(found: tuple[int, ...] = sqlite3.sqlite_version_info) -> str | None:
    """What is wrong with a library of this version; None: nothing."""
    if found >= SAFE:
        return None
    return (
        f"SQLite {dotted(found)} has a rare bug, fixed in {dotted(SAFE)}: two connections that checkpoint at the "
        "same moment can damage the file. Dray lets one worker checkpoint for all"
    )

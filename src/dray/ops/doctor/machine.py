"""The machine: the app, Python, the database's library, the disk; and a SQLite file: its place, rights and size."""

from __future__ import annotations

import sys
from pathlib import Path

from dray.address import SqliteAddress, parse_address
from dray.backends.database import FileFacts
from dray.backends.sqlite import trust
from dray.backends.sqlite.inotify import is_there as has_inotify
from dray.backends.sqlite.inotify import start as start_inotify
from dray.ops.doctor.check import Finding, Subject, failed, note, ok, size, warning
from dray.runtime.children.kernel import HAS_DEATH_SIGNAL
from dray.wording import counted, dotted, listed


def configuration(subject: Subject) -> Finding:
    code, settings = subject.code, subject.settings
    text = f"{settings.place}, from {code.address}"
    if code.unused is not None:
        return note(f"{text}; {code.unused}", "unset it, or name one database in both places")
    if settings.durability == "normal":
        return note(f"{text}; durability is normal: a power loss may forget the last enqueues")
    return ok(text)


def other_files(subject: Subject) -> Finding | None:
    """Files of the same name in folders above: a relative path leads to another one from each folder."""
    address = parse_address(subject.settings.url)
    if not isinstance(address, SqliteAddress):
        return None
    path = address.path
    others = [str(folder / path.name) for folder in path.parent.parents if _is_file(folder / path.name)]
    if not others:
        return ok(f"no other {path.name} in the folders above")
    fix = f"if the jobs are there, name it: --url {others[0]}, DRAY_URL, or App(…) in the code"
    if not _is_file(path):
        return warning(f"there is no {path}, but there is {listed(others)}", fix)
    return note(f"there are others of this name in the folders above: {listed(others)}", fix)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # in a folder that this user may not look into
        return False


def app(subject: Subject) -> Finding:
    code = subject.code
    if code.problem is not None:
        return failed(code.problem, "repair it, or name the app: --app module:object")
    if code.app is None:
        why = "no app is named or found here" if code.is_sought else "--url alone looks for no app"
        return note(f"{why}: what needs its tasks is not checked", "--app module:object")
    if not code.tasks:
        return note(f"{code.app} has no tasks", "name the modules that define them: App(imports=[…])")
    return ok(f"{code.app}, {counted(len(code.tasks), 'task')}")


_OLDEST_PYTHON, _NEWEST_PYTHON = (3, 11), (3, 14)
_OLDEST_DRIVER = (3, 3)
_FULL, _TIGHT = 64 * 1024**2, 512 * 1024**2  # bytes; the write-ahead log alone may take 64 MiB


def python(subject: Subject) -> Finding:
    found = dotted(subject.python)
    span = f"{dotted(_OLDEST_PYTHON)} to {dotted(_NEWEST_PYTHON)}"
    if subject.python[:2] < _OLDEST_PYTHON:
        return failed(f"Python {found} is too old: Dray runs on {span}", "install a newer Python")
    if subject.python[:2] > _NEWEST_PYTHON:
        return note(f"Python {found} is newer than those that Dray is tested on ({span})")
    return ok(f"Python {found}")


def sqlite(subject: Subject) -> Finding | None:
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


def driver(subject: Subject) -> Finding | None:
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


def disk(_: Subject, facts: FileFacts) -> Finding:
    found = f"{size(facts.free)} free beside a file of {size(facts.size)}"
    if facts.free < _FULL:
        return failed(f"the disk is all but full: {found}", "free space on it, or move the file to another disk")
    if facts.free < _TIGHT:
        return warning(f"the disk is filling up: {found}", "free space on it, or move the file to another disk")
    if facts.free < facts.size:
        return warning(f"no room for a copy: {found}", "free space on the disk, or back up to another one")
    return ok(found)


def system(_: Subject) -> Finding:
    """What this system lacks, and what Dray does instead."""
    lacking = {
        "no inotify: on SQLite workers poll, 20 times a second when idle": not has_inotify(),
        "no death signal: jobs in child processes outlive a killed worker for a moment": not HAS_DEATH_SIGNAL,
        "no /proc: what file system a file lies on, and who locks it, is not known": not Path("/proc/self").exists(),
    }
    name = _SYSTEMS.get(sys.platform, sys.platform)
    found = [what for what, is_lacking in lacking.items() if is_lacking]
    return note(f"{name} has {'; '.join(found)}") if found else ok(name)


_SYSTEMS = {"linux": "Linux", "darwin": "macOS"}


def inotify(_: Subject, __: FileFacts) -> Finding | None:
    if not has_inotify():
        return None  # `system` says so
    limit = Path("/proc/sys/fs/inotify/max_user_instances")
    most = limit.read_text(encoding="ascii").strip() if limit.exists() else "a limited number"
    found = start_inotify()
    if found is None:
        return warning(
            f"no inotify instance is available (a user has {most}): a worker started now would poll, 20 times a "
            "second when idle, instead of being told at once",
            "sysctl fs.inotify.max_user_instances=1024, or end programs that watch files",
        )
    found.close()
    return ok(f"inotify is available (a user has {most} instances, each worker takes one)")


_LOG_LIMIT = 64 * 1024**2  # bytes that the log is cut back to by itself
_WASTE = 64 * 1024**2
_OTHERS_READ, _OTHERS_WRITE, _STICKY = 0o004, 0o002, 0o1000


def file_system(_: Subject, facts: FileFacts) -> Finding:
    if facts.is_network:
        return warning(
            f"the file lies on {facts.file_system}, which other machines can reach too: SQLite's locks do not hold "
            "there, and workers refuse it",
            "move it to a local disk, or move to PostgreSQL: dray db move",
        )
    if facts.file_system is None:
        return note("what file system it lies on is not known here")
    if facts.file_system in {"overlay", "aufs", "fuse.fuse-overlayfs"}:
        return warning(
            f"the file lies in a container's own layer ({facts.file_system}): it is gone with the container, and is "
            "not the same file for another one",
            "put it on a volume",
        )
    if facts.file_system == "tmpfs":
        return warning("the file lies in memory (tmpfs): it is gone with the next boot", "move it to a disk")
    doubt = trust.doubt(facts.file_system)
    if doubt is not None:
        return warning(f"the file lies on {doubt}", "let this machine alone use it, or move it to a disk of its own")
    return ok(f"on {facts.file_system}")


def permissions(_: Subject, facts: FileFacts) -> Finding:
    if not facts.can_read:
        return failed(
            f"this user may not read it: it belongs to user {facts.owner} and has mode {facts.mode:03o}",
            f"do this as user {facts.owner}, or change its rights or owner",
        )
    if facts.strange:
        return warning(
            f"{Path(facts.strange[0]).name} belongs to another user than the file, and user {facts.owner} may not be "
            "able to write it",
            f"chown {facts.owner} {' '.join(facts.strange)}",
        )
    if facts.folder_mode & _OTHERS_WRITE and not facts.folder_mode & _STICKY:
        return warning(
            f"every user can replace the file: its folder has mode {facts.folder_mode:03o}",
            f"chmod o-w {Path(facts.path).parent}",
        )
    if facts.mode & (_OTHERS_READ | _OTHERS_WRITE):
        does = "change" if facts.mode & _OTHERS_WRITE else "read"
        return warning(
            f"every user of this machine can {does} the jobs: the file has mode {facts.mode:03o}",
            f"chmod o-rw {facts.path}",
        )
    if not facts.can_write:
        return note("this user may only read it; a worker here would be refused")
    return ok(f"mode {facts.mode:03o}, this user can write")


def journal(_: Subject, facts: FileFacts) -> Finding | None:
    if facts.journal is None:
        return None
    if facts.journal != "wal":
        return warning(
            "the file is not in WAL mode: another program has switched it, and readers and writers block each other",
            "start a worker: it switches it back",
        )
    return ok("WAL mode")


def wal(_: Subject, facts: FileFacts) -> Finding | None:
    if facts.journal != "wal":
        return None
    if facts.log_size is None:
        return ok("no -wal: no program has the file open")
    if facts.log_size > _LOG_LIMIT:
        return warning(
            f"the -wal has grown to {size(facts.log_size)}: a program keeps a read transaction open, or no worker "
            "writes it back",
            "end programs that read for long, and have a worker running",
        )
    return ok(f"the -wal has {size(facts.log_size)}")


def pages(subject: Subject, facts: FileFacts) -> Finding:
    there = subject.eyes.pages()
    unused = there.unused * there.size
    found = f"{size(unused)} of {size(there.pages * there.size)} unused"
    if there.vacuum:
        return ok(f"{found}; workers free it gradually")
    if unused > _WASTE and there.unused * 2 > there.pages:
        return warning(f"{found}, which the file keeps: it was not made by Dray", f"sqlite3 {facts.path} VACUUM")
    return note(f"{found}; the file was not made by Dray, so that what is unused stays in it")


def write_lock(subject: Subject, _: FileFacts) -> Finding:
    upkeep = subject.backend.upkeep
    holder = None if upkeep is None else upkeep.lock_holder()
    if holder is None:
        return ok("no program keeps the write lock")
    return warning(
        f"process {holder} ({_program(holder)}) has kept the write lock for more than a second: nothing can be "
        "enqueued, claimed or completed meanwhile",
        f"see what it does (ps -p {holder}); a transaction has to be short",
    )


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "of another user or machine"

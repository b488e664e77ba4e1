"""The file and its disk: file modes, obstacles, and one clear error message for each of them."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from dray.backends import Backend, open_backend
from dray.backends.sqlite import trust
from dray.errors import DrayError, StorageError, StorageLocked, StorageUnavailable
from tests.backends.processes import (
    Process,
    ask,
    enqueue,
    enqueue_some,
    error_as_nobody,
    fill_the_disk,
    hold_write_lock,
    integrity,
    job_ids,
    modes_of_a_new_database,
    open_beside_an_odd_mount,
    open_on_a_full_disk,
    outgrow_the_file_limit,
    raw_sql,
    version_error_as_nobody,
)

# A mount namespace for this process: its mounts end with the process, whatever happens.
PRIVATE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]


@pytest.fixture
def private_mounts() -> list[str]:
    command = [*PRIVATE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    if shutil.which("unshare") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let us mount a small disk")
    return PRIVATE


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that all users can reach; pytest's own are closed to other users."""
    folder = Path(tempfile.mkdtemp(prefix="dray-files-"))
    folder.chmod(0o755)
    yield folder
    for each in [folder, *folder.rglob("*")]:
        if each.is_dir():
            each.chmod(0o755)
    shutil.rmtree(folder)


def tree(folder: Path) -> dict[str, bytes | None]:
    """Returns everything in a folder, with the contents of the files."""
    return {
        str(file.relative_to(folder)): file.read_bytes() if file.is_file() else None
        for file in sorted(folder.rglob("*"))
    }


def refusal(backend: Backend) -> DrayError:
    """Returns the one-line error that a producer gets."""
    with pytest.raises(DrayError) as caught:
        enqueue(backend)
    backend.close()
    assert "\n" not in str(caught.value)
    return caught.value


# Modes


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077], ids=oct)
def test_a_new_database_is_its_owners_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    found = ask(modes_of_a_new_database, str(tmp_path / "jobs.db"), umask, None)

    assert found == {"jobs.db": "0o600", "jobs.db-wal": "0o600", "jobs.db-shm": "0o600"}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077], ids=oct)
def test_a_file_mode_for_a_group_is_honoured_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    found = ask(modes_of_a_new_database, str(tmp_path / "jobs.db"), umask, 0o660)

    assert found == {"jobs.db": "0o660", "jobs.db-wal": "0o660", "jobs.db-shm": "0o660"}


def test_an_empty_file_that_somebody_made_becomes_the_database_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.touch()
    path.chmod(0o640)
    backend = open_backend(str(path))

    made = enqueue(backend)

    backend.close()
    assert job_ids(str(path)) == [made]
    assert path.stat().st_mode & 0o7777 == 0o640
    assert raw_sql(str(path), "PRAGMA auto_vacuum") == [(2,)]


# Permissions


def test_a_folder_that_may_not_be_written_is_named(public_folder: Path) -> None:
    public_folder.chmod(0o555)
    path = public_folder / "jobs.db"

    kind, message = ask(error_as_nobody, str(path))

    assert kind == "StorageUnavailable"
    assert str(path) in message
    assert "\n" not in message
    assert tree(public_folder) == {}


def test_a_folder_that_does_not_exist_is_named_and_not_made(public_folder: Path) -> None:
    public_folder.chmod(0o777)
    path = public_folder / "missing" / "jobs.db"

    kind, message = ask(error_as_nobody, str(path))

    assert kind == "StorageUnavailable"
    assert f"{path}: the directory {path.parent} does not exist" in message
    assert "\n" not in message
    assert tree(public_folder) == {}


def a_database(path: Path) -> Path:
    """Creates a closed database with one job."""
    backend = open_backend(str(path))
    enqueue(backend)
    backend.close()
    return path


@pytest.mark.parametrize("mode", [0o000, 0o444], ids=["unreadable", "read-only"])
@pytest.mark.parametrize("folder_mode", [0o555, 0o777], ids=oct)
def test_a_file_that_may_not_be_written_is_named_and_stays_as_it_is(
    public_folder: Path, mode: int, folder_mode: int
) -> None:
    path = a_database(public_folder / "jobs.db")
    path.chmod(mode)
    public_folder.chmod(folder_mode)
    before = tree(public_folder)

    kind, message = ask(error_as_nobody, str(path))

    assert kind == "StorageUnavailable"
    assert str(path) in message
    assert "\n" not in message
    assert tree(public_folder) == before


def test_a_writable_file_in_a_folder_that_is_not_cannot_have_a_log_beside_it(public_folder: Path) -> None:
    path = a_database(public_folder / "jobs.db")
    path.chmod(0o666)
    public_folder.chmod(0o555)
    before = tree(public_folder)

    kind, message = ask(error_as_nobody, str(path))

    assert kind == "StorageUnavailable"
    assert str(path) in message
    assert "\n" not in message
    assert tree(public_folder) == before


def test_a_path_through_a_closed_folder_is_named(public_folder: Path) -> None:
    closed = public_folder / "closed"
    closed.mkdir()
    a_database(closed / "jobs.db")
    closed.chmod(0o000)

    for error in (error_as_nobody, version_error_as_nobody):
        kind, message = ask(error, str(closed / "jobs.db"))

        assert kind == "StorageUnavailable"
        assert str(closed / "jobs.db") in message
        assert "\n" not in message


# Things that are not a database


def test_a_directory_is_not_opened(tmp_path: Path) -> None:
    error = refusal(open_backend(str(tmp_path)))

    assert isinstance(error, StorageUnavailable)
    assert f"{tmp_path}: is a directory" in str(error)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("url", ["/", "sqlite:////"])
def test_the_root_is_a_directory_like_any_other(url: str) -> None:
    error = refusal(open_backend(url))

    assert isinstance(error, StorageUnavailable)
    assert str(error) == "/: is a directory; name a file in it, such as /dray.db"


@pytest.mark.parametrize(
    "bytes_",
    [b"hello\n", b"# My notes\n" * 100, os.urandom(100), os.urandom(8192), bytes(4096)],
    ids=["a line", "text", "noise", "more noise", "zeros"],
)
def test_a_file_that_is_no_database_is_refused_and_keeps_every_byte(tmp_path: Path, bytes_: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(bytes_)

    for _ in range(2):
        error = refusal(open_backend(str(path)))

        assert isinstance(error, StorageUnavailable)
        assert f"{path}: is not a SQLite database" in str(error)
        assert tree(tmp_path) == {"notes.txt": bytes_}


def test_a_pipe_or_a_socket_is_refused(tmp_path: Path) -> None:
    pipe, listening = tmp_path / "pipe", tmp_path / "socket"
    os.mkfifo(pipe)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(listening))
        for path in (pipe, listening):
            error = refusal(open_backend(str(path)))

            assert isinstance(error, StorageError)
            assert str(path) in str(error)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["pipe", "socket"]


def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    error = refusal(open_backend(str(tmp_path / "file" / "jobs.db")))

    assert isinstance(error, StorageUnavailable)
    assert str(tmp_path / "file") in str(error)
    assert tree(tmp_path) == {"file": b"x"}


def test_a_name_that_is_too_long_is_one_clear_line(tmp_path: Path) -> None:
    error = refusal(open_backend(str(tmp_path / f"{'x' * 300}.db")))

    assert isinstance(error, StorageUnavailable)
    assert tree(tmp_path) == {}


def test_a_loop_of_symbolic_links_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")

    with pytest.raises(DrayError) as caught:
        enqueue(open_backend(str(tmp_path / "a")))

    assert "\n" not in str(caught.value)
    assert str(tmp_path / "a") in str(caught.value)


def test_a_damaged_database_is_called_damaged(tmp_path: Path) -> None:
    path = a_database(tmp_path / "jobs.db")
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))

    error = refusal(open_backend(str(path)))

    assert isinstance(error, StorageError)
    assert f"{path}: is damaged" in str(error)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP], ids=errno.errorcode.__getitem__)
def test_a_file_system_without_hard_links_gets_a_private_file_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)

    backend = open_backend(str(tmp_path / "jobs.db"))
    backend.migrate()

    assert (tmp_path / "jobs.db").stat().st_mode & 0o777 == 0o600
    backend.close()
    assert [file.name for file in tmp_path.iterdir()] == ["jobs.db"]


# Names


def names() -> dict[str, str]:
    plain = {"spaces": "my jobs.db", "percent": "100%41.db", "fragment": "a#b.db", "question mark": "a?b.db"}
    return plain | {
        "unicode": "büro-任务-🚚.db",
        "quotes": 'it\'s "so".db',
        "undecodable": os.fsdecode(b"caf\xe9.db"),
    }


def as_path(path: Path) -> str:
    return str(path)


def as_url(path: Path) -> str:
    return f"sqlite:///{quote(os.fsencode(path))}"


@pytest.mark.parametrize("write", [as_path, as_url])
@pytest.mark.parametrize("name", names().values(), ids=names())
def test_any_name_that_a_file_can_have_works(tmp_path: Path, name: str, write: Callable[[Path], str]) -> None:
    path = tmp_path / name
    backend = open_backend(write(path))

    made = enqueue(backend)

    assert [job.id for job in backend.jobs.newest()] == [made]
    assert sorted(file.name for file in tmp_path.iterdir()) == [name, f"{name}-shm", f"{name}-wal"]
    backend.close()


def test_a_symbolic_link_leads_to_the_same_database(tmp_path: Path) -> None:
    real, links = tmp_path / "real", tmp_path / "links"
    real.mkdir()
    links.mkdir()
    (links / "to_file.db").symlink_to(real / "jobs.db")
    (links / "to_folder").symlink_to(real)
    directly = open_backend(str(real / "jobs.db"))
    made = [enqueue(directly)]

    for address in (links / "to_file.db", links / "to_folder" / "jobs.db"):
        through_link = open_backend(str(address))
        made.append(enqueue(through_link))
        assert sorted(job.id for job in directly.jobs.newest()) == sorted(made)
        through_link.close()
        with Process(enqueue_some, str(address), 1) as elsewhere:
            assert elsewhere.hear() == "ready"
            elsewhere.say()
            made += elsewhere.answer()

    assert sorted(job.id for job in directly.jobs.newest()) == sorted(made)
    assert sorted(file.name for file in links.iterdir()) == ["to_file.db", "to_folder"]
    directly.close()


def test_a_link_to_a_file_that_is_not_there_yet_makes_that_file(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "jobs.db")
    backend = open_backend(str(tmp_path / "link.db"))

    made = enqueue(backend)

    backend.close()
    assert job_ids(str(tmp_path / "jobs.db")) == [made]
    assert (tmp_path / "link.db").is_symlink()


# Locks


@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_lock_held_past_the_deadline_is_an_error_that_names_the_file_and_passes(tmp_path: Path, begin: str) -> None:
    path = a_database(tmp_path / "jobs.db")
    backend = open_backend(str(path), busy_timeout=0.3)
    with Process(hold_write_lock, str(path), begin) as holder:
        assert holder.hear() == "locked"
        before = time.monotonic()

        with pytest.raises(StorageLocked) as caught:
            enqueue(backend)

        assert 0.3 <= time.monotonic() - before < 2
        assert f"{path}: another connection kept the write lock for 0.3 s" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(backend.jobs.newest()) == 1, "readers do not wait for a writer"
        holder.say()
        assert holder.ended() == 0

    made = enqueue(backend)
    assert made in {job.id for job in backend.jobs.newest()}
    backend.close()


def test_a_file_that_is_locked_while_it_has_no_tables_yet_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    raw_sql(str(path), "CREATE TABLE mine (x)")
    backend = open_backend(str(path), busy_timeout=0.3)
    with Process(hold_write_lock, str(path), "BEGIN EXCLUSIVE") as holder:
        assert holder.hear() == "locked"
        for use in (backend.jobs.newest, lambda: enqueue(backend)):
            with pytest.raises(StorageLocked, match=r"app\.db"):
                use()
        holder.say()
        assert holder.ended() == 0

    made = enqueue(backend)
    backend.close()
    assert job_ids(str(path)) == [made]


def test_a_lock_that_is_let_go_in_time_is_waited_for(tmp_path: Path) -> None:
    path = a_database(tmp_path / "jobs.db")
    backend = open_backend(str(path), busy_timeout=20)
    with Process(hold_write_lock, str(path), "BEGIN IMMEDIATE") as holder:
        assert holder.hear() == "locked"
        holder.say()
        made = enqueue(backend)

    backend.close()
    assert made in job_ids(str(path))


# Disks


def test_a_full_disk_loses_nothing_and_is_used_again_once_there_is_space(
    tmp_path: Path, private_mounts: list[str]
) -> None:
    found = ask(fill_the_disk, str(tmp_path), under=private_mounts)

    for kind, message in found["errors"]:
        assert kind == "StorageFull", message
        assert f"{tmp_path / 'jobs.db'}: the disk is full" in message
        assert "\n" not in message
    assert len(found["kept"]) > 5
    assert found["kept"] == found["kept elsewhere"] == sorted(found["acknowledged"][:-10])
    assert found["found"] == sorted(found["acknowledged"])
    assert found["integrity"] == "ok"


def test_a_disk_without_any_space_is_called_full_and_is_used_once_there_is_some(
    tmp_path: Path, private_mounts: list[str]
) -> None:
    found = ask(open_on_a_full_disk, str(tmp_path), under=private_mounts)

    kind, message = found["error"]
    assert kind == "StorageFull", message
    assert str(tmp_path / "jobs.db") in message
    assert found["found"] == found["made"]
    assert found["integrity"] == "ok"


def test_a_limit_on_the_size_of_files_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    found = ask(outgrow_the_file_limit, str(path))

    for kind, message in found["errors"]:
        assert kind in {"StorageFull", "StorageError"}
        assert str(path) in message
        assert "\n" not in message
    assert job_ids(str(path)) == sorted(found["acknowledged"])
    assert len(found["acknowledged"]) > 15
    assert integrity(path) == "ok"


# Network file systems


def lies_on(monkeypatch: pytest.MonkeyPatch, kind: str | None) -> None:
    def found(_: Path) -> str | None:
        return kind

    monkeypatch.setattr(trust, "kind_of", found)


NETWORK = (
    *(
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "9p",
        "afs",
        "ceph",
        "glusterfs",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.ceph-fuse",
    ),
    *(
        "lustre",
        "gpfs",
        "beegfs",
        "ocfs2",
        "gfs2",
        "orangefs",
        "fuse.juicefs",
        "fuse.s3fs",
        "fuse.rclone",
        "fuse.mfs",
    ),
    *("vboxsf", "prl_fs", "drvfs", "vmhgfs", "fuse.vmhgfs-fuse"),
)


@pytest.mark.parametrize("kind", NETWORK)
def test_a_network_file_system_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lies_on(monkeypatch, kind)

    error = refusal(open_backend(str(tmp_path / "jobs.db")))

    assert isinstance(error, StorageUnavailable)
    assert f"{tmp_path / 'jobs.db'}: lies on a network file system ({kind})" in str(error)
    assert tree(tmp_path) == {}


def test_a_network_file_system_is_refused_for_an_existing_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = a_database(tmp_path / "jobs.db")
    before = tree(tmp_path)
    lies_on(monkeypatch, "nfs4")

    assert isinstance(refusal(open_backend(str(path))), StorageUnavailable)

    assert tree(tmp_path) == before


LOCAL = (
    "ext4",
    "xfs",
    "btrfs",
    "tmpfs",
    "overlay",
    "fuseblk",
    "fuse.fuse-overlayfs",
    "fuse.gocryptfs",
    "ntfs3",
    None,
)


@pytest.mark.parametrize("kind", LOCAL)
def test_a_local_file_system_or_one_that_the_kernel_does_not_name_is_used_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str | None
) -> None:
    lies_on(monkeypatch, kind)
    backend = open_backend(str(tmp_path / "jobs.db"))

    enqueue(backend)

    backend.close()
    assert caplog.records == []


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("virtiofs", "a folder of this virtual machine's host"),
        ("fakeowner", "a folder of this virtual machine's host"),
        ("fuse.grpcfuse", "a folder of this virtual machine's host"),
        ("fuse.newfs", "which is not known here"),
        ("fuse", "which is not known here"),
    ],
)
def test_one_that_may_be_shared_is_used_and_doubted_once_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str, said: str
) -> None:
    lies_on(monkeypatch, kind)
    for _ in range(2):
        backend = open_backend(str(tmp_path / "jobs.db"))
        enqueue(backend)
        backend.close()

    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(f"{tmp_path / 'jobs.db'}: lies on {kind}, {said}")


@pytest.mark.parametrize("kind", [*NETWORK, "virtiofs", "fuse.newfs", "fuse.gocryptfs", None])
def test_only_what_lies_on_a_disk_is_this_machines_alone(monkeypatch: pytest.MonkeyPatch, kind: str | None) -> None:
    lies_on(monkeypatch, kind)

    assert not trust.is_disk(trust.kind_of(Path("/")))


def test_where_there_is_no_proc_nothing_is_known_and_nothing_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(path: Path, *_: object, **__: object) -> str:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(Path, "read_text", missing)
    backend = open_backend(str(tmp_path / "jobs.db"))
    monkeypatch.undo()

    enqueue(backend)

    backend.close()


def mounted(monkeypatch: pytest.MonkeyPatch, mountinfo: str) -> None:
    def read_text(*_: object, **__: object) -> str:
        return mountinfo

    monkeypatch.setattr(Path, "read_text", read_text)


def test_a_file_with_a_device_of_its_own_is_found_by_the_mount_it_lies_under(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on btrfs, whose subvolumes have device numbers that no mount shows."""
    folder = tmp_path / "my share" / "deep"
    folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(folder)
    shown = str(folder.parent).replace(" ", "\\040")
    mounted(
        monkeypatch,
        "22 1 999:1 / / rw - ext4 /dev/a rw\n"
        f"36 35 999:2 / {shown} rw - ext4 /dev/b rw\n"
        f"37 35 999:3 / {shown} rw shared:1 - fuse.sshfs far:/ rw\n"
        f"38 35 999:4 / {shown}/deeper rw - xfs /dev/c rw\n"
        f"39 35 999:5 / {shown}er rw - xfs /dev/c rw\n",
    )

    assert trust.kind_of(folder) == "fuse.sshfs"
    assert trust.kind_of(tmp_path / "link") == "fuse.sshfs"
    assert trust.kind_of(tmp_path) == "ext4"


def test_the_kernel_tells_what_a_path_lies_on() -> None:
    assert trust.kind_of(Path("/proc")) == "proc"
    assert trust.kind_of(Path("/nowhere at all")) is None


def test_the_file_system_is_found_by_device_among_all_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path.stat().st_dev
    mounts = (
        "22 1 0:1 / / rw - rootfs rootfs rw\n"
        f"36 35 {os.major(device)}:{os.minor(device)} / /mnt/my\\040share rw shared:1 master:2 - nfs4 srv:/x rw\n"
        "37 35 0:99 / /tmp rw - tmpfs tmpfs rw\n"
    )

    mounted(monkeypatch, mounts)

    assert trust.kind_of(tmp_path) == "nfs4"


def test_a_mount_with_an_odd_name_elsewhere_does_not_matter(tmp_path: Path, private_mounts: list[str]) -> None:
    made = ask(open_beside_an_odd_mount, str(tmp_path), under=private_mounts)

    assert job_ids(str(tmp_path / "jobs.db")) == made

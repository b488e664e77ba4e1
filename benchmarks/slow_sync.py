"""A library that, when preloaded into a process, makes every fsync and fdatasync slower."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static int slowly(const char *name, int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    struct timespec pause = {0, DELAY_MS * 1000000L};
    nanosleep(&pause, 0);
    return real(fd);
}
int fsync(int fd) { return slowly("fsync", fd); }
int fdatasync(int fd) { return slowly("fdatasync", fd); }
"""


@contextmanager
def slow_sync(milliseconds: int) -> Generator[dict[str, str] | None]:
    """Returns the additional environment variables of such processes; None without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="dray-bench-") as folder:
        source, library = Path(folder, "slow.c"), Path(folder, "slow.so")
        source.write_text(_SOURCE)
        options = ["-shared", "-fPIC", f"-DDELAY_MS={milliseconds}", "-o", str(library), str(source), "-ldl"]
        subprocess.run([compiler, *options], check=True)
        yield {"LD_PRELOAD": str(library)}

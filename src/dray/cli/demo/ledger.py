"""What the bodies of the demo note down, outside the database: a file that every process appends to.

A line is one write with O_APPEND, so it is whole, whoever else writes, and stays when its writer is killed.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from pathlib import Path

VARIABLE = "DRAY_DEMO_LEDGER"


def note(job_id: str, event: str) -> None:
    """A body has begun, or is done."""
    os.write(_descriptor(os.environ[VARIABLE], os.getpid()), f"{job_id} {event}\n".encode())


@cache
def _descriptor(path: str, pid: int) -> int:  # noqa: ARG001 - a forked child opens the file itself
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def read(path: Path) -> Counter[tuple[str, str]]:
    """How often each event was noted of each job."""
    if not path.exists():
        return Counter()
    lines = path.read_text(encoding="ascii").splitlines()
    return Counter((job_id, event) for job_id, _, event in (line.partition(" ") for line in lines))

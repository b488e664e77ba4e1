"""The measurements run; their numbers are for `make bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_section_runs_and_ends_with_a_summary_and_no_error() -> None:
    command = [sys.executable, "-W", "error", "-m", "benchmarks.worker", "--quick", "--only", "imports"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    summary = done.stdout.rpartition("\n\n")[2].splitlines()
    assert summary[0].split() == ["name", "measured", "bar"]
    assert [line.split(",")[0] for line in summary[1:]] == [
        "import dray",
        "dray --help",
        "dray jobs --json",
        "dray jobs --json",
    ]
    assert all(line.endswith(("ok", "NOT")) for line in summary[1:])

"""`flask dray …` as it is typed, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def flask_dray(folder: Path, app: str, *words: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "flask", "--app", app, "dray", *words],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

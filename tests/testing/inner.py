"""pytest in a process of its own, as users start it, with no more plugins than it needs: others cost a second."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_pytest(folder: Path, *words: str, **environment: str) -> str:
    """Runs the tests of a folder; returns what was said, after which code it ended."""
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "dray", "-p", "no:cacheprovider", "-W", "error", *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    return f"{done.stdout}{done.stderr}exit {done.returncode}"

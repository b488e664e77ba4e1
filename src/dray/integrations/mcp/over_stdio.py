"""The server on standard input and output, which belong to the protocol alone."""

from __future__ import annotations

import os
import sys
from typing import Any

from dray.app import App
from dray.integrations.mcp.serving import server
from dray.ops.doctor.check import Code


def serve_stdio(app: App, *, who: str, write: bool, facts: tuple[Any, ...]) -> None:
    """Serves an App, as `server` says, until standard input is closed.

    `facts`: the fields of the doctor's `Code`. What is printed meanwhile goes to standard error, and so does what
    Python has buffered and writes at its end.
    """
    made = server(app, who=who, write=write, code=Code(*facts))
    try:
        made.run("stdio")  # turns descriptor 1 to stderr, and back
    finally:
        os.dup2(sys.stderr.fileno(), 1)

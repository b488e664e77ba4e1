"""The command line. ``dray --help`` loads click and nothing else; each command loads what it needs when it is run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Runs a command line and exits with its code."""
    from dray.cli.run import run  # noqa: PLC0415 - click is loaded by those who run a command, not by `import dray.cli`

    sys.exit(run(sys.argv[1:] if args is None else args))

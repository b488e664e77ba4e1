"""The command line. ``dray --help`` loads click and nothing else; each command loads what it needs when it is run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

_INTERRUPTED = 130  # as `Code.INTERRUPTED`, which has to be loaded first


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Runs a command line and exits with its code."""
    try:
        from dray.cli.run import run  # noqa: PLC0415 - click is for those who run a command, not `import dray.cli`

        code = run(sys.argv[1:] if args is None else args)
    except KeyboardInterrupt:
        # Ctrl-C before run() can catch it: most of the start is spent loading modules.
        code = _INTERRUPTED
    # An interrupt inside exec() of a string, which every dataclass and named tuple is made with, leaves a mark in the
    # interpreter though it was caught: the process would end by SIGINT instead of with its code. exec() resets it.
    exec("")  # noqa: S102
    sys.exit(code)

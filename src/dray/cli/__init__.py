"""The command line. ``dray --help`` loads click and no command; a command is loaded when it is run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import dray

_INTERRUPTED = 130  # `Code.INTERRUPTED`, which may not be loaded yet


def main(args: Sequence[str] | None = None) -> NoReturn:
    if sys.platform == "win32":
        sys.exit(f"dray: {dray._WINDOWS}")  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    try:
        from dray.cli.run import run  # noqa: PLC0415 - Ctrl-C while it loads must be caught

        code = run(sys.argv[1:] if args is None else args)
    except KeyboardInterrupt:
        # Ctrl-C before run() can catch it: loading modules takes most of the start.
        code = _INTERRUPTED
    # Dataclasses and named tuples call exec() on a string. An interrupt within that leaves a mark in the interpreter
    # even if it is caught: the process would end by SIGINT instead of with its code. Another exec() resets the mark.
    exec("")  # noqa: S102
    sys.exit(code)

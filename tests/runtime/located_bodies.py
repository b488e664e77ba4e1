"""Functions that know nothing of Dray: their App, in `located.py`, is found by its locator."""

from __future__ import annotations

import os


def whoami() -> int:
    return os.getpid()


def doubled(number: int) -> int:
    return 2 * number

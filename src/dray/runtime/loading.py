"""A script that is run again in a child process, for what it defines, not for what it does.

Scripts mostly define their tasks first, and then enqueue or start a worker, often without
``if __name__ == "__main__"``. A child that did the same would enqueue everything twice and start a worker inside a
worker's child. So at the first such call of a script that is being loaded, the loading is over: `stop_here` is what
App and Worker call first.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

_IMPORT = "<frozen importlib._bootstrap>"


class _Enough(BaseException):
    """Unwinds the script."""


_depth = 0


def run(code: CodeType, names: dict[str, Any]) -> None:
    """Runs a script for its definitions."""
    global _depth  # noqa: PLW0603 - one main thread loads
    _depth += 1
    try:
        exec(code, names)  # noqa: S102 - the very file that the worker was started with
    except _Enough:
        return
    finally:
        _depth -= 1


def is_under_way() -> bool:
    """Whether a module is being imported, or a script loaded for what it defines: nothing is to be done yet."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - who calls?
    while frame is not None and frame.f_code.co_filename != _IMPORT:
        frame = frame.f_back
    return frame is not None or _depth > 0


def stop_here() -> None:
    """Something is about to be done that the process which was started does already."""
    if _depth:
        raise _Enough

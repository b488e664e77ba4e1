"""Tracebacks of the user's code, without the frames of Dray and of the import system."""

from __future__ import annotations

import importlib
import os
import traceback
from pathlib import Path
from types import TracebackType

from dray.sanitize import escape_control, redact

_FRAMES = 100  # from the outside in: a recursion has a thousand equal ones
_OURS = str(Path(__file__).parents[1]) + "/"
_LOOP = str(Path(os.__file__).parent / "asyncio") + "/"
_IMPORT = ("<frozen importlib", str(Path(importlib.__file__).parent) + "/")


def users_lines(error: BaseException) -> list[str]:
    """Returns the lines of a traceback, with control characters escaped and passwords hidden."""
    shown = traceback.TracebackException(type(error), error, error.__traceback__, limit=_FRAMES, compact=True)
    _without_ours(shown)
    text = redact("".join(shown.format()))
    return [escape_control(line) for line in text.splitlines()]


def users_trace(trace: TracebackType | None) -> TracebackType | None:
    """Returns a traceback from the user's first frame on, for a debugger; all of it if there is none."""
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename.startswith((_OURS, _LOOP)):
        first = first.tb_next
    return first or trace


def _without_ours(shown: traceback.TracebackException) -> None:
    frames = [frame for frame in shown.stack if not frame.filename.startswith((_OURS, *_IMPORT))]
    while frames and frames[0].filename.startswith(_LOOP):  # those that run a coroutine; within it they stay
        frames.pop(0)
    shown.stack = traceback.StackSummary.from_list(frames)
    for other in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if other is not None:
            _without_ours(other)

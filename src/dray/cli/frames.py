"""An error as whoever wrote the code wants to see it: their own frames, without those that call or import it."""

from __future__ import annotations

import asyncio
import importlib
import traceback
from pathlib import Path
from types import TracebackType

from dray.sanitize import escape_control, redact

_FRAMES = 100  # from the outside in: a recursion has a thousand that say the same
_OURS = str(Path(__file__).parents[1]) + "/"
_LOOP = str(Path(asyncio.__file__).parent) + "/"
_IMPORT = ("<frozen importlib", str(Path(importlib.__file__).parent) + "/")


def users_lines(error: BaseException) -> list[str]:
    """The traceback, on lines that cannot steer a terminal or show a password."""
    shown = traceback.TracebackException(type(error), error, error.__traceback__, limit=_FRAMES, compact=True)
    _without_ours(shown)
    text = redact("".join(shown.format()))
    return [escape_control(line) for line in text.splitlines()]


def users_trace(trace: TracebackType | None) -> TracebackType | None:
    """From the first frame of the user's on, for a debugger; the whole of it where there is none."""
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename.startswith((_OURS, _LOOP)):
        first = first.tb_next
    return first or trace


def _without_ours(shown: traceback.TracebackException) -> None:
    frames = [frame for frame in shown.stack if not frame.filename.startswith((_OURS, *_IMPORT))]
    while frames and frames[0].filename.startswith(_LOOP):  # what runs a coroutine; inside it is the user's business
        frames.pop(0)
    shown.stack = traceback.StackSummary.from_list(frames)
    for other in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if other is not None:
            _without_ours(other)

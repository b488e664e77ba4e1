"""Commands that follow the database until a signal ends them, or the reader of their output is gone."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import dray
from dray.app_interface import core_of
from dray.backends.watch import Bell, Watch
from dray.cli.exits import drop_output, say
from dray.cli.options import wants_json
from dray.cli.output import json_line, overwritten, put
from dray.cli.processes import ENDING, handling
from dray.errors import StorageError

T = TypeVar("T")

_PAUSE = 0.25  # seconds between two looks


class Stopping:
    """When to end. SIGINT and SIGTERM do not raise: they end the current wait, and all later ones.

    During a write they do raise KeyboardInterrupt: a reader that has stopped reading would block the write for ever.
    """

    def __init__(self) -> None:
        self._bell = Bell()
        self._is_told = False
        self._is_writing = False
        self._wakes: Callable[[], None] | None = None  # ends a wait for the database

    def stop(self, _: int, __: FrameType | None) -> None:
        self._is_told = True
        if self._is_writing:
            raise KeyboardInterrupt
        self._bell.ring()
        if self._wakes is not None:
            self._wakes()

    @contextmanager
    def watching(self, app: dray.App) -> Generator[Watch]:
        """Watches the database; a signal ends its wait too."""
        watch = core_of(app).backend.watch()
        self._wakes = watch.poke
        try:
            yield watch
        finally:
            self._wakes = None
            watch.close()

    @contextmanager
    def writing(self) -> Generator[None]:
        """Goes around what writes to stdout."""
        self._is_writing = True
        try:
            yield
            sys.stdout.flush()
        except KeyboardInterrupt:
            drop_output()  # the rest is still buffered, and the interpreter would try to write it at its end
            raise
        finally:
            self._is_writing = False

    def wait(self, seconds: float) -> bool:
        """Sleeps, and returns whether it is over."""
        if self._is_told:
            return True
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        poll.register(sys.stdout, 0)  # tells when the other end is closed
        return bool(poll.poll(seconds * 1000)) or self._is_told


@contextmanager
def stopping() -> Generator[Stopping]:
    """Handles SIGINT and SIGTERM within the block. One that comes during a write ends the block."""
    made = Stopping()
    with handling(dict.fromkeys(ENDING, made.stop)):
        try:
            yield made
        except KeyboardInterrupt:
            return


def follow(
    app: dray.App, look: Callable[[], T], put: Callable[[T], None], has_ended: Callable[[T], bool], *, first: T
) -> None:
    """Puts ``first``, and what `look` returns whenever that has changed, until it has ended."""
    with stopping() as stop, stop.watching(app) as watch:
        found: T | None = first
        shown: T | None = None
        while True:
            if found is not None and found != shown:
                with stop.writing():
                    put(found)
                shown = found
            if (shown is not None and has_ended(shown)) or stop.wait(_PAUSE):
                return
            watch.wait(1.0)
            found = patiently(look)


def repeat(look: Callable[[], T], put: Callable[[T], None], every: float) -> None:
    """Puts what `look` returns, again after each ``every`` seconds."""
    found = look()  # an error at the first look ends the command
    with stopping() as stop:
        while True:
            with stop.writing():
                put(found)
            if stop.wait(every):
                return
            found = patiently(look) or found


def putting(
    words: Callable[[T], Sequence[str]], values: Callable[[T], Iterable[str]], shape: Callable[[T], Any]
) -> Callable[[T], None]:
    """Returns what puts a thing: over the last one on a terminal, with an empty line after it in a pipe, or JSON."""
    region = overwritten()

    def put_one(found: T) -> None:
        if region is not None:
            region.draw(words(found))
        elif wants_json():
            put(json_line(shape(found)))
        else:
            put("\n".join([*values(found), ""]))

    return put_one


def patiently(look: Callable[[], T]) -> T | None:
    """Returns what `look` does; None while the database cannot be reached."""
    try:
        return look()
    except StorageError as error:
        say(f"the database does not answer: {error}; trying again")
        return None

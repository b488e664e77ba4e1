"""Shows something anew whenever it has changed, until it has ended or somebody has seen enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from dray.cli.exits import say
from dray.cli.live.stopping import Stopping
from dray.errors import StorageError

if TYPE_CHECKING:
    from dray.app import App

T = TypeVar("T")

_PAUSE = 0.25  # between two looks
_LOOK = 1.0


def follow(
    app: App, look: Callable[[], T], put: Callable[[T], None], has_ended: Callable[[T], bool], *, first: T
) -> None:
    """Puts what `look` finds, `first` before; each time that it is something else."""
    with Stopping() as stopping:
        watch = app.backend.watch()
        stopping.wakes = watch.poke
        try:
            found: T | None = first
            shown: T | None = None
            while True:
                if found is not None and found != shown:
                    with stopping.writing():
                        put(found)
                    shown = found
                if (shown is not None and has_ended(shown)) or stopping.wait(_PAUSE):
                    return
                watch.wait(_LOOK)
                found = _patiently(look)
        except KeyboardInterrupt:
            return  # told to end while it wrote to somebody who does not read
        finally:
            stopping.wakes = None
            watch.close()


def _patiently(look: Callable[[], T]) -> T | None:
    try:
        return look()
    except StorageError as error:
        say(f"the database does not answer: {error}; trying again")
        return None

"""A move that is not to be ended: the target is emptied, and the source is what it was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dray.errors import MoveError

if TYPE_CHECKING:
    from dray.ops.move.plan import Side


def abandon(source: Side, target: Side, *, force: bool = False) -> str | None:
    """Takes an unfinished move back; the address of another target that the source is closed for, and stays so.

    The target first: while it has rows the source must not go on as if it alone had them. Only the move that closed
    the source opens it, and only where the target says that it was taken back; `force` is for a target that is lost.
    """
    from dray.backends.store.transfer import GIVEN_UP, MOVE, MOVED_FROM, Mark  # noqa: PLC0415 - the drivers come with it

    facts = target.backend.transfer.facts() if target.backend.schema_version() is not None else {}
    found = json.loads(facts.get(MOVE, "{}"))
    is_ours = found.get("source") == source.place
    if is_ours:
        target.backend.transfer.give_up(Mark.of(facts[MOVE]))
    # Not before: a move that went on until then may have closed it.
    text = source.backend.transfer.facts().get(MOVE, "{}")
    note = json.loads(text)
    if "target" in note and note["id"] == (found["id"] if is_ours else facts.get(GIVEN_UP)):
        source.backend.transfer.come_back(text)
        return None
    if is_ours:
        return note.get("target")
    if note.get("target") != target.place:
        raise MoveError(f"there is no move from {source.place} to {target.place} to be taken back")
    if json.loads(facts.get(MOVED_FROM, "{}")).get("id") == note["id"]:
        raise MoveError(f"{source.place} has moved to {target.place}, which is in use now: it cannot be taken back")
    if not force:
        raise MoveError(
            f"{target.place} knows nothing of the move that closed {source.place}; if what was there is lost, open "
            "the source with --abandon --force: jobs that ran there run again"
        )
    source.backend.transfer.come_back(text)
    return None

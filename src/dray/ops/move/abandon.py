"""A move that is not to be ended: the target is emptied, and the source is what it was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dray.errors import MoveError

if TYPE_CHECKING:
    from dray.ops.move.plan import Side


def abandon(source: Side, target: Side) -> None:
    """Takes an unfinished move back. The target first: while it has rows the source must not go on as if it alone
    had them."""
    from dray.backends.store.transfer import MOVE, MOVED_FROM, Mark  # noqa: PLC0415 - the drivers come with it

    facts = target.backend.transfer.facts() if target.backend.schema_version() is not None else {}
    note = json.loads(source.backend.transfer.facts().get(MOVE, "{}"))
    found = json.loads(facts.get(MOVE, "{}"))
    is_left = "target" in note
    if found.get("source") == source.place:
        target.backend.transfer.give_up(Mark.of(facts[MOVE]))
    elif not is_left or note["target"] != target.place:
        raise MoveError(f"there is no move from {source.place} to {target.place} to be taken back")
    elif json.loads(facts.get(MOVED_FROM, "{}")).get("id") == note["id"]:
        raise MoveError(f"{source.place} has moved to {target.place}, which is in use now: it cannot be taken back")
    if is_left:
        source.backend.transfer.come_back()

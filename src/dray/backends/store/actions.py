"""What people did: a row for each action, written in the transaction of what it tells.

The verbs that people use take an `action`, and write its row with `ActionRow`. If they are rolled back, there is no
row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import NamedTuple

from dray.backends.database import LAST_ID, Database, Session, write_and_recall
from dray.backends.store import Store
from dray.model.action import Action, Kind, NewAction
from dray.model.bounds import ACTION_NOTE_BYTES, PRUNE_CHUNK
from dray.sanitize import bounded


class ActionRow:
    """The row of an action in one transaction, which may be tried more than once.

    A server may commit and go away before it has said so. The next try finds the work done, and what an earlier one
    has counted must not be counted again.
    """

    def __init__(self, action: NewAction | None) -> None:
        self.action = action
        self._tries: list[_Try] = []

    def add(self, tx: Session, done: int, refused: int) -> None:
        """Adds to the row; `done` and `refused` are those of all tries together. None without an action."""
        if self.action is None:
            return
        counted = self._committed(tx)
        self._tries.append(_Try(tx.rows("transaction_number")[0][0], done, refused))
        # Not below 0: what was refused in one try may have been done in the next.
        done, refused = max(0, done - counted.done), max(0, refused - counted.refused)
        if done or refused or counted is _NONE:
            tx.run("action_add", **asdict(self.action), done=done, refused=refused)

    def done_before(self, tx: Session) -> int:
        """What earlier tries did, whose commit went through and whose answer was lost."""
        return self._committed(tx).done

    def _committed(self, tx: Session) -> _Try:
        for each in reversed(self._tries):
            if tx.rows("transaction_committed", number=each.number)[0][0]:
                return each
        return _NONE


class _Try(NamedTuple):
    number: str | None  # of its transaction
    done: int
    refused: int


_NONE = _Try(None, 0, 0)


def write_with_action(db: Database, work: Callable[[Session], bool], action: NewAction | None) -> bool:
    """As `write_and_recall`, for work that does one thing, or finds nothing to do."""
    row = ActionRow(action)

    def acting(tx: Session) -> bool:
        has_changed = work(tx) or row.done_before(tx) > 0
        row.add(tx, int(has_changed), int(not has_changed))
        return has_changed

    return write_and_recall(db, acting)


class ActionStore(Store):
    def note(self, action: NewAction, *, done: int = 0, refused: int = 0) -> None:
        """Writes the row of an action that changes nothing here, or is about to begin."""
        row = ActionRow(action)
        self._db.write(lambda tx: row.add(tx, done, refused))

    def end(self, action_id: str, note: str) -> bool:
        """Notes how an action in several transactions ended, or that it has to; False: that was noted before."""
        return bool(
            self._db.write(lambda tx: tx.run("action_end", id=action_id, note=bounded(note, ACTION_NOTE_BYTES)))
        )

    def newest(
        self, limit: int = 100, before: str | None = None, kind: Kind | None = None, target: str | None = None
    ) -> list[Action]:
        """The newest actions; go on with `before` = the last id seen. `target`: an exact one, of this kind."""
        if target is not None and kind is None:
            raise ValueError("a target goes with its kind")
        statement = "action_list" if target is None else "action_list_of"
        given = {"kind": kind, "target": target, "before": before or LAST_ID, "limit": limit}
        return [Action(*row) for row in self._read(statement, **given)]

    def get(self, action_id: str) -> Action | None:
        found = self._read("action_get", id=action_id)
        return Action(*found[0]) if found else None

    def prune(self, before: int, limit: int = PRUNE_CHUNK) -> int:
        """Removes at most `limit` actions from before an instant."""
        return self._db.write(lambda tx: tx.run("action_prune", before=before, limit=limit), durable=False)

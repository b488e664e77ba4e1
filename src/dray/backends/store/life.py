"""Who lives of the workers that have not said good-bye, for people who look. Whoever buries them judges with more
doubt; and where no worker is left, nobody does."""

from __future__ import annotations

from enum import StrEnum

from dray.backends.database import Database, Session
from dray.backends.proof import are_comparable
from dray.instants import SECOND
from dray.model.worker import Signs

_STRANGER_US = 60 * SECOND  # after which a worker that only its row tells of counts as gone


class Life(StrEnum):
    """What is known of a worker that has not said good-bye."""

    ALIVE = "alive"
    LATE = "late"  # it has not renewed its lease for two beats
    SILENT = "silent"  # its process is there, and does not renew its lease
    GONE = "gone"  # and nobody has buried it


def lives(db: Database, tx: Session) -> dict[str, Life]:
    signs = [Signs(*row) for row in tx.rows("worker_live")]
    proven = db.proofs.witness(tx, signs)
    return {each.id: _life(each, proven.get(each.id), db.boot) for each in signs}


def _life(signs: Signs, is_proven: bool | None, boot: str | None) -> Life:  # noqa: FBT001 - None: nothing is known
    if is_proven is False:
        return Life.GONE
    is_comparable = are_comparable(boot, signs.boot)
    is_over = signs.left_us < 0 if is_comparable else signs.unseen_us > _STRANGER_US
    if not is_over:
        return Life.LATE if is_comparable and signs.has_missed_beats else Life.ALIVE
    return Life.SILENT if is_proven else Life.GONE

"""The rules of dray_limits: what code declares, what operators override, and which of these are in force."""

from __future__ import annotations

from collections.abc import Iterable

from dray.backends.database import Session
from dray.backends.migrate import LIMITS_CODE
from dray.backends.store import Store
from dray.backends.store.actions import write_with_action
from dray.errors import ConfigError
from dray.model.action import NewAction
from dray.model.limit import Bounds, Scope, Source, StoredRule, merged, said_by


class LimitStore(Store):
    def all(self) -> list[StoredRule]:
        """All rules, by scope and name."""
        return [_rule(row) for row in self._read("limit_list")]

    def say(
        self, scope: Scope, name: str, source: Source, bounds: Bounds, *, action: NewAction | None = None
    ) -> bool:
        """Sets what code or an operator says of one task or queue, all of it. False: it says so already.

        Once this returns, no claim commits that does not mind the new rules. What runs goes on, and counts. The first
        rule is refused while a worker lives that does not know limits, and no such worker can start from then on.
        """
        if action is None and self._is_said(self.all(), scope, name, source, bounds):
            return False

        def work(tx: Session) -> bool:
            tx.begin_limits()
            stored = [_rule(row) for row in tx.rows("limit_of", scope=scope, name=name)]
            if self._is_said(stored, scope, name, source, bounds):
                return False
            rules = _dated(stored, merged(stored, scope, name, source, bounds))
            tx.run("limit_drop", scope=scope, name=name)
            tx.each("limit_insert", [tuple(rule) for rule in rules])
            if any(rule.in_force for rule in rules):
                _refuse_beside_strangers(tx, scope, name)
                tx.run("limit_hold_task" if scope == "task" else "limit_hold_queue", name=name)
                tx.run("meta_set", name="oldest_code", value=str(LIMITS_CODE))
            return True

        return write_with_action(self._db, work, action)

    def prune_starts(self, limit: int) -> int:
        """Forgets starts of periods that are over, `limit` at most; returns how many. Found by a read: it goes
        through all there are, and should keep no claim waiting."""
        found = self._read("starts_over", limit=limit)
        return sum(self._db.write(lambda tx: tx.each("starts_drop", found), durable=False)) if found else 0

    @staticmethod
    def _is_said(stored: Iterable[StoredRule], scope: str, name: str, source: Source, bounds: Bounds) -> bool:
        own = [rule for rule in stored if (rule.scope, rule.name) == (scope, name)]
        return said_by(own, source) == dict(bounds)


def _rule(row: tuple[object, ...]) -> StoredRule:
    rule = StoredRule(*row)  # pyright: ignore[reportArgumentType] - as the columns are
    return rule._replace(in_force=bool(rule.in_force))


def _dated(before: Iterable[StoredRule], after: Iterable[StoredRule]) -> list[StoredRule]:
    """The rules, each with the time since which it has said what it says."""
    known = {rule._replace(changed_at=None): rule.changed_at for rule in before}
    return [rule._replace(changed_at=known.get(rule._replace(changed_at=None))) for rule in after]


def _refuse_beside_strangers(tx: Session, scope: str, name: str) -> None:
    strangers = [row[0] for row in tx.rows("limit_strangers")]
    if strangers:
        raise ConfigError(
            f"{scope} {name} cannot have limits yet: {', '.join(strangers)} runs an earlier release of Dray, which "
            "would not mind them. Stop its workers, or upgrade them, and try again; nothing was written"
        )

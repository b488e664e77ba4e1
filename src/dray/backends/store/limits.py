"""The rules of dray_limits: what code declares, what operators override, and which of these are in force."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from dray.backends.database import Session
from dray.backends.migrate import LIMITS_CODE
from dray.backends.store import Store
from dray.backends.store.actions import write_with_action
from dray.backends.store.liveness import Life, lives
from dray.errors import ConfigError, StorageLocked
from dray.instants import SECOND
from dray.model.action import NewAction
from dray.model.bounds import PROMOTE_CHUNK
from dray.model.limit import STANDBYS_GONE_US, Bounds, Kind, Scope, Source, StoredRule, merged, said_by

_RUNNING = 100_000  # running jobs that are counted
_NAMED = 3  # workers that an error names
_PATIENCE = (100, 200, 400, 800)  # milliseconds in which all claims wait for a change of limits, try by try
_LONGEST = 5.0  # seconds after which there is no further try


class Use(NamedTuple):
    """All rules, and how much of them is used at one moment."""

    rules: list[StoredRule]
    running: Mapping[tuple[str, str], int]  # (scope, name) -> jobs
    started: Mapping[tuple[str, str, int], int]  # (scope, name, period_us) -> attempts within the period, of rates


class LimitStore(Store):
    def all(self) -> list[StoredRule]:
        """All rules, by scope and name."""
        return [stored_rule(row) for row in self._read("limit_list")]

    def use(self) -> Use:
        """All rules, what runs under them, and what has started under those rates that are in force."""

        def work(tx: Session) -> Use:
            rules, starts = tx.later("limit_list"), tx.later("limit_starts")
            found = [stored_rule(row) for row in rules()]
            counting = {(rule.scope, rule.name) for rule in found if rule.in_force}
            running: Counter[tuple[str, str]] = Counter()
            for task, queue, held, n in tx.rows("limit_running", among=_RUNNING):
                for scope in (("task", task), ("queue", queue)):
                    running[scope] += held if scope in counting else n  # not what only stands by
            started = {(scope, name, period_us): n for scope, name, period_us, n in starts()}
            return Use(found, running, started)

        return self._db.read(work)

    def queues_of(self, task: str) -> list[str]:
        """The queues in which jobs of a task are ready."""
        return [row[0] for row in self._read("limit_queues", task=task)]

    def say(
        self, scope: Scope, name: str, source: Source, bounds: Bounds, *, action: NewAction | None = None
    ) -> bool:
        """Sets what code or an operator says of one task or queue, all of it. False: it says so already.

        Once this returns, no claim commits that does not mind the new rules, and no job starts that was claimed ahead
        under the rules before. What runs goes on, and counts. The first
        rule is refused while a worker lives that does not know limits, and no such worker can start from then on.
        """
        return self._change(scope, name, source, lambda _: dict(bounds), action)

    def add(
        self, scope: Scope, name: str, source: Source, bounds: Bounds, *, action: NewAction | None = None
    ) -> bool:
        """As `say`, but what it says of other kinds stays."""
        return self._change(scope, name, source, lambda said: {**said, **bounds}, action)

    def _change(
        self, scope: Scope, name: str, source: Source, change: Callable[[Bounds], Bounds], action: NewAction | None
    ) -> bool:
        if action is None:  # most often nothing has changed since the last start: no lock is needed to see that
            said = said_by((rule for rule in self.all() if (rule.scope, rule.name) == (scope, name)), source)
            if change(said) == said:
                return False

        if not self._db.read(self._strangers):
            self.park_all()

        def planned(tx: Session) -> tuple[list[StoredRule], list[StoredRule]] | None:
            """The rules as they are, and as they will be; None: they are so already."""
            stored = [stored_rule(row) for row in tx.rows("limit_of", scope=scope, name=name)]
            said = said_by(stored, source)
            bounds = change(said)
            return None if bounds == said else (stored, _dated(stored, merged(stored, scope, name, source, bounds)))

        def work(tx: Session, milliseconds: int) -> bool:
            nonlocal any_ahead
            tx.begin_limits(milliseconds)
            plan = planned(tx)
            if plan is None:
                return False
            stored, rules = plan
            tx.run("limit_drop", scope=scope, name=name)
            tx.each("limit_insert", [tuple(rule) for rule in rules])
            if any(rule.in_force for rule in rules):
                self._refuse_beside_strangers(tx, scope, name)
                _count_what_started(tx, stored, rules)
                held = tx.run("limit_hold_task" if scope == "task" else "limit_hold_queue", name=name)
                any_ahead |= held > 0
                tx.run("meta_set", name="oldest_code", value=str(LIMITS_CODE))
            return True

        began = time.monotonic()
        any_ahead = bool(self._read("limit_ahead", scope=scope, name=name))
        for milliseconds in _PATIENCE:
            _, coming = self._db.read(planned) or ((), ())
            if any(rule.in_force for rule in coming):
                self._hold_ahead(scope, name)
            try:
                has_changed = write_with_action(self._db, lambda tx: work(tx, milliseconds), action)  # noqa: B023 - over before the next one
            except StorageLocked:
                if milliseconds == _PATIENCE[-1] or time.monotonic() - began > _LONGEST:
                    raise
                time.sleep(milliseconds / 1_000)  # for the claims that have waited
                continue
            if has_changed and any_ahead:
                time.sleep(STANDBYS_GONE_US / SECOND)  # workers cannot be told that a standby must not start
            return has_changed
        raise AssertionError("the last try returns or raises")

    def _hold_ahead(self, scope: Scope, name: str) -> None:
        """Marks what runs before claims have to wait for the change: a user's transaction may have locked a running
        job for as long as it likes, and until it ends no claim of any queue would go through."""
        for job_id in self._db.write(lambda tx: tx.hold_free(scope, name), durable=False):
            # One at a time: with the rows of others locked, it might wait for a transaction that waits for these.
            self._db.write(lambda tx: tx.hold_locked(job_id), durable=False)  # noqa: B023 - over before the next one

    def park(self, limit: int = PROMOTE_CHUNK) -> list[str]:
        """Lets ready jobs with keys take turns where code of an earlier release has queued them among those without:
        `limit` at most. Returns the queues, one entry a job. One whose row is locked is left for the next time."""
        found = [row[0] for row in self._read("park_look", limit=limit)]
        if not found:
            return []
        queues = [row[0] for row in self._db.write(lambda tx: tx.rows("park", ids=found), durable=False)]
        self._db.announce(set(queues))
        return queues

    def park_all(self) -> None:
        """As `park`, step by step, until there is none that can be had."""
        while self.park():
            pass

    def _strangers(self, tx: Session) -> list[str]:
        """The names of workers that live and do not know limits. One that was killed counts no more, though its row
        may say that it works: only a worker that has started could bury it."""
        found: list[tuple[str, str]] = tx.rows("limit_strangers")
        life = lives(self._db, tx) if found else {}
        return [name for worker_id, name in found if life.get(worker_id, Life.GONE) is not Life.GONE]

    def _refuse_beside_strangers(self, tx: Session, scope: str, name: str) -> None:
        names = self._strangers(tx)
        if names:
            raise ConfigError(
                f"{scope} {name} cannot have limits yet: {', '.join(names[:_NAMED])} runs an earlier release of "
                "Dray, which would not mind them. Stop its workers, or upgrade them, and try again; nothing was "
                "written"
            )

    def prune_starts(self, limit: int) -> int:
        """Forgets starts of periods that are over, `limit` at most; returns how many. Found by a read: it goes
        through all there are, and should keep no claim waiting."""
        found = self._read("starts_over", limit=limit)
        return sum(self._db.write(lambda tx: tx.each("starts_drop", found), durable=False)) if found else 0


def stored_rule(row: tuple[object, ...]) -> StoredRule:
    """A row of `limit_list` or `limit_of`."""
    rule = StoredRule(*row)  # pyright: ignore[reportArgumentType] - as the columns are
    return rule._replace(in_force=bool(rule.in_force))


def _count_what_started(tx: Session, before: Iterable[StoredRule], after: Iterable[StoredRule]) -> None:
    """A rate with a new period counts what has started under the others."""
    known = {(rule.kind, rule.period_us) for rule in before if rule.in_force}
    for rule in after:
        if rule.in_force and rule.period_us and (rule.kind, rule.period_us) not in known:
            by_key = rule.kind == Kind.KEY_RATE
            tx.run("starts_seed", scope=rule.scope, name=rule.name, by_key=by_key, period_us=rule.period_us)


def _dated(before: Iterable[StoredRule], after: Iterable[StoredRule]) -> list[StoredRule]:
    """The rules, each with the time since which it has said what it says."""
    known = {rule._replace(changed_at=None): rule.changed_at for rule in before}
    return [rule._replace(changed_at=known.get(rule._replace(changed_at=None))) for rule in after]

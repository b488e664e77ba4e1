"""One action on all jobs that a search finds: frozen, shown first, done in steps, stopped at any moment.

What is chosen is frozen when it is shown: jobs that came or ended later are not touched, and a job that has changed
by the time it is its turn is left alone. A step is short, and the whole leaves one row in Actions.

That row counts with each step. If it is written first (`begin`), any process can follow the action there, and stop
it: what stops or ends it is the row's note, and the first note stays.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dray.app_interface import AppInterface
from dray.backends.store.search import Place
from dray.clock import SystemClock
from dray.errors import ConfigError
from dray.handle.job import Job
from dray.instants import MILLISECOND, MINUTE, SECOND
from dray.model.action import Action, By, NewAction
from dray.model.search import Search, parse
from dray.model.sought import Sought, sought
from dray.ops import acting
from dray.ops.search import BUDGET, COUNTED, fits
from dray.wording import counted

BulkVerb = Literal["retry", "cancel", "delete"]

# What a verb means where a search names no state.
STATES: dict[BulkVerb, tuple[str, ...]] = {
    "retry": ("failed",),
    "cancel": ("waiting", "scheduled", "queued", "running"),
    "delete": ("completed", "failed", "cancelled"),
}
MOST = 1_000_000  # jobs of one action: their ids are held
STEP = 500
SAMPLE = 10
_ACTS: dict[BulkVerb, Callable[..., acting.Acted]] = {
    "retry": acting.retry,
    "cancel": acting.cancel,
    "delete": acting.delete,
}
_LOOK_US = 200 * MILLISECOND  # that a step looks for jobs
_FOUND = 20_000  # jobs that it takes note of
_REFUSALS = 20  # that are told in words
_VALID_US = 10 * MINUTE
_TOKEN_CHARS = 16_384
_PURPOSE = b"dray selection\0"
_CHANGED = "it has changed since it was chosen"

# How the note of a row begins.
COMPLETE = "complete"
STOPPED = "stopped by "
FAILED = "ended: "


@dataclass(frozen=True, slots=True)
class Selection:
    """What a search chose at one moment."""

    search: Search
    as_of_id: str  # no job with a later id
    as_of_at: int  # no job that was enqueued or ended later
    queues: frozenset[str] | None = None  # only jobs of these

    def token(self, secret: bytes, *, now: int | None = None) -> str:
        """The selection as a form can carry it, signed; valid for 10 minutes."""
        until = (SystemClock().now() if now is None else now) + _VALID_US
        queues = None if self.queues is None else sorted(self.queues)
        made = json.dumps([self.search.text(), self.as_of_id, self.as_of_at, queues, until]).encode()
        return f"{_encoded(made)}.{_encoded(_signature(secret, made))}"

    @classmethod
    def from_token(cls, token: str, secret: bytes, *, now: int | None = None) -> Selection:
        """The selection that was signed; the error says that it is none, or that its time is over."""
        made, signature = map(_decoded, (token[:_TOKEN_CHARS].split(".") + ["", ""])[:2])
        if not hmac.compare_digest(signature, _signature(secret, made)):
            raise ConfigError("this selection was not made here, or has been changed; choose the jobs again")
        text, as_of_id, as_of_at, queues, until = json.loads(made)
        if (SystemClock().now() if now is None else now) > until:
            raise ConfigError("this selection is older than 10 minutes; choose the jobs again")
        return cls(parse(text), as_of_id, as_of_at, None if queues is None else frozenset(queues))

    def chosen(self, verb: BulkVerb) -> Search:
        """The search with the states that the verb means, if it names none."""
        return self.search if self.search.has("state") else self.search.plus("state", *STATES[verb])

    def sought(self, verb: BulkVerb) -> Sought:
        meant = sought(self.chosen(verb), self.as_of_at, queues=self.queues)
        return meant.frozen(self.as_of_id, self.as_of_at)


def _signature(secret: bytes, made: bytes) -> bytes:
    return hmac.digest(secret, _PURPOSE + made, hashlib.sha256)


def _encoded(value: bytes) -> str:
    return urlsafe_b64encode(value).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    """What was encoded; empty for any other text, which no signature fits."""
    try:
        return urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except ValueError:
        return b""


@dataclass(frozen=True, slots=True)
class Preview:
    """What an action would be done to."""

    count: int
    is_capped: bool  # there are more, or may be
    jobs: list[Job[Any]]  # the newest of them


class Progress(NamedTuple):
    """How far an action is."""

    done: int
    refused: int
    left_known: int  # jobs that were found and are still to come
    is_over: bool
    first_refusals: dict[str, str]  # id -> why, in words
    is_looking: bool  # not all jobs have been found yet, and none has been touched


def freeze(core: AppInterface, search: Search, *, queues: frozenset[str] | None = None) -> Selection:
    """Chooses what a search finds now, and no job that comes later."""
    newest, now = core.backend.search.newest()
    return Selection(search, newest, now, queues)


def preview(core: AppInterface, selection: Selection, verb: BulkVerb, *, budget: float = BUDGET) -> Preview:
    """How many jobs an action would be done to, and some of them."""
    meant = selection.sought(verb)
    found = core.backend.search.places(
        meant, limit=COUNTED, before=None, budget_us=round(budget * SECOND), fits=fits(core, meant)
    )
    newest = core.backend.jobs.get([place.id for place in found.places[:SAMPLE]])
    jobs = {row.id: Job[Any](core, row.id, row=row) for row in newest}
    sample = [jobs[place.id] for place in found.places[:SAMPLE] if place.id in jobs]
    return Preview(len(found.places), found.next is not None, sample)


def followed(core: AppInterface, action_id: str) -> Action | None:
    """The row of an action on a selection that a person began in a dashboard; None: there is none."""
    row = core.backend.actions.get(action_id)
    return row if row is not None and row.via == "web" and row.kind == "jobs" and row.verb in STATES else None


def stop(core: AppInterface, action_id: str, who: str) -> bool:
    """Ends an action before its next step, whichever process runs it; False: it has ended, or was stopped before."""
    return core.backend.actions.end(action_id, STOPPED + who)


class Bulk:
    """An action on a selection. Call `step` until it is over; `stop` may be called from any thread.

    All jobs are found before the first is touched: more than `most` are refused, and each is acted on once.
    """

    def __init__(self, core: AppInterface, selection: Selection, verb: BulkVerb, by: By, *, most: int = MOST) -> None:
        self.action_id = core.new_id()  # of its row in Actions
        self.verb: BulkVerb = verb
        self.selection = selection
        self._core, self._by, self._most = core, by, most
        self._sought = selection.sought(verb)
        self._fits = fits(core, self._sought)
        self._target = selection.chosen(verb).text()
        self._ids: list[str] = []  # the next is the last of them
        self._next: Place | None = None
        self._is_looking, self._is_over, self._is_stopped = True, False, False
        self._is_begun = False
        self.acted = acting.Acted([], {})  # in the last step
        self._done = self._refused = 0
        self._refusals: dict[str, str] = {}

    @property
    def ids(self) -> list[str]:
        """The jobs that were found and are still to come, the next one first."""
        return self._ids[::-1]

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    def begin(self) -> None:
        """Writes its row, before the first step."""
        action = NewAction(self.action_id, self._by.who, self._by.via, self.verb, "jobs", self._target)
        self._core.backend.actions.note(action)
        self._is_begun = True

    def stop(self) -> None:
        """Ends it before the next step. What was done stays."""
        self._is_stopped = True

    def end(self, note: str) -> None:
        """Notes in its row how it ended."""
        self._core.backend.actions.end(self.action_id, note)

    def step(self) -> Progress:
        """Looks for jobs, or acts on the next 500. After an error of the database it can be called again."""
        if self._is_begun and not self._is_stopped:
            row = self._core.backend.actions.get(self.action_id)
            self._is_stopped = row is None or row.note is not None
        if self._is_stopped:
            self._is_over = True
        elif self._is_looking:
            self._look()
        elif not self._is_over:
            self._act()
        return Progress(
            self._done, self._refused, len(self._ids), self._is_over, dict(self._refusals), self._is_looking
        )

    def _look(self) -> None:
        found = self._core.backend.search.places(
            self._sought, limit=_FOUND, before=self._next, budget_us=_LOOK_US, fits=self._fits
        )
        self._ids += [place.id for place in found.places]
        self._next = found.next
        if len(self._ids) > self._most:
            self.stop()
            raise ConfigError(
                f"this would {self.verb} more than {counted(self._most, 'job')}, which is the most; "
                "nothing was done: narrow the search, with since: or queue:"
            )
        if found.next is None:
            self._is_looking = False
            if self.verb == "retry":
                self._ids.sort(reverse=True)  # the oldest is the first: a job comes after its parents
            elif self.verb == "delete":
                self._ids.sort()  # the newest is the first: a job comes before its parents
            else:
                self._ids.reverse()

    def _act(self) -> None:
        some = self._ids[: -STEP - 1 : -1]
        still = self._core.backend.search.among(self._sought, some, self._fits) if some else set[str]()
        done, refused = list[str](), dict.fromkeys((job_id for job_id in some if job_id not in still), _CHANGED)
        if still or not (self._done or self._refused):  # one that finds nothing leaves a row too
            ids = [job_id for job_id in some if job_id in still]
            act = _ACTS[self.verb]
            done, more = act(self._core, ids, self._by, action_id=self.action_id, target=self._target)
            refused |= more
        self.acted = acting.Acted(done, refused)
        self._done += len(done)
        self._refused += len(refused)
        for job_id, why in refused.items():
            if len(self._refusals) < _REFUSALS:
                self._refusals[job_id] = why
        del self._ids[len(self._ids) - len(some) :]
        self._is_over = not self._ids

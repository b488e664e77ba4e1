"""Why a limit, a rate or the turns of keys keep a job waiting."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from dray.instants import SECOND, moment
from dray.model.cause import Cause, Kind, cause, when
from dray.model.circumstances import AHEAD_LIMIT, Circumstances, LimitHolder, LimitUse
from dray.model.limit import KEY_KINDS, RATE_KINDS, Source
from dray.wording import counted, interval, span


def stopped(use: LimitUse) -> Cause:
    rule = use.rule
    who = "an operator" if rule.source == Source.OVERRIDE else "the code"
    command = f"dray limits {{}} {rule.scope} {shlex.quote(rule.name)}"
    what = "No job with a key" if rule.kind in KEY_KINDS else "No job"
    text = f"{what} of {rule.scope} {rule.name} starts: {who} has set its {rule.kind} to 0. "
    text += f"`{command.format('set')} --{rule.kind.replace('_', '-')} N` lets N run"
    text += f", `{command.format('reset')}` what the code allows." if rule.source == Source.OVERRIDE else "."
    return cause(Kind.STOPPED, text, scope=rule.scope, name=rule.name, option=rule.kind, source=rule.source)


def limited(around: Circumstances) -> Iterator[Cause]:
    for use in around.limits:
        if 0 < use.most <= use.used:
            key = around.job.key if use.rule.kind in KEY_KINDS else None
            yield (_spent if use.rule.kind in RATE_KINDS else _full)(use, key, around.now)


def _full(use: LimitUse, key: str | None, now: int) -> Cause:
    who = ", ".join(_holder_words(each, now) for each in use.holders)
    more = use.used - len(use.holders)
    text = f"{use.used:,} of {use.most:,} running{_whose(use, key)}: {who}{f' and {more:,} more' if more else ''}."
    return cause(Kind.LIMIT, text, **_limit_facts(use, key), running=[_holder_facts(each) for each in use.holders])


def _spent(use: LimitUse, key: str | None, now: int) -> Cause:
    opens_at = now if use.opens_at is None else use.opens_at
    period = interval(use.rule.period_us / SECOND)
    text = f"{use.used:,} of {use.most:,} started in the last {period}{_whose(use, key)}: "
    text += f"the next may start {when(opens_at, now)}."
    return cause(Kind.RATE, text, **_limit_facts(use, key), rate=str(use.rule.bound), opens_at=moment(opens_at))


def _whose(use: LimitUse, key: str | None) -> str:
    rule = use.rule
    return f"{'' if key is None else f' for key {key}'}, the {rule.kind} of {rule.scope} {rule.name}"


def _limit_facts(use: LimitUse, key: str | None) -> dict[str, Any]:
    rule = use.rule
    named = {"scope": rule.scope, "name": rule.name, "option": rule.kind, "key": key}
    return {**named, "most": use.most, "used": use.used}


def _holder_words(holder: LimitHolder, now: int) -> str:
    where = "" if holder.worker is None else f" on worker {holder.worker}"
    return f"job {holder.id}{where} for {span(max(0, now - holder.started_at) / SECOND)}"


def _holder_facts(holder: LimitHolder) -> dict[str, Any]:
    return {"id": holder.id, "task": holder.task, "worker": holder.worker, "started_at": moment(holder.started_at)}


def turn_of_key(around: Circumstances) -> Iterator[Cause]:
    job, turn = around.job, around.turn
    if turn is None or not (turn.keys or turn.of_key or turn.higher):
        return
    before = [
        f"at most {_up_to(turn.keys, 'other key')}" if turn.keys else "",
        f"{_up_to(turn.of_key, 'job')} of its own key" if turn.of_key else "",
        f"{_up_to(turn.higher, 'job')} of a higher priority" if turn.higher else "",
    ]
    text = f"The keys of task {job.task} take turns in queue {job.queue}: key {job.key} comes after "
    text += " and ".join(filter(None, before)) + "."
    is_more = AHEAD_LIMIT in (turn.keys, turn.of_key, turn.higher)
    facts = {"keys": turn.keys, "of_key": turn.of_key, "higher": turn.higher, "is_more": is_more}
    yield cause(Kind.TURN, text, key=job.key, **facts)


def _up_to(count: int, noun: str) -> str:
    return f"{'more than ' if count >= AHEAD_LIMIT else ''}{counted(count, noun)}"

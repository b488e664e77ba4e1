"""The options of a task: their defaults, what is refused, and which errors are tried again when."""

from __future__ import annotations

import logging
import math
import random
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest

from dray.errors import ConfigError, InvalidName
from dray.instants import SECOND
from dray.model import retry
from dray.model.schedule import Rule
from dray.task.options import TaskOptions, next_delay_us
from tests.tasks.fakes import fetch


# Defined here because its name begins with this module's.
def add(a: int, b: int = 2) -> int:
    return a + b


def options(function: Callable[..., Any] = add, **given: Any) -> TaskOptions:
    return TaskOptions.of(function, given)


def test_the_defaults_are_the_contracts() -> None:
    assert options() == TaskOptions(name=f"{__name__}.add")
    assert options() == TaskOptions(
        name=f"{__name__}.add",
        queue="default",
        priority=None,
        max_attempts=3,
        max_crashes=3,
        timeout=None,
        retry=retry.exponential(),
        keep_args=True,
        redact=(),
        description=None,
        retry_on=(),
        fail_on=(),
        schedule=None,
    )


def test_options_are_kept_as_they_are_used() -> None:
    found = options(
        name="mail.send",
        queue="mail",
        priority=10,
        max_attempts=5,
        max_crashes=1,
        timeout=timedelta(minutes=1),
        retry=30,
        runner="process",
        keep_args=False,
        redact=["a"],
        description="Send one mail",
        retry_on=OSError,
        fail_on=[KeyError, ValueError],
        cron="0 3 * * *",
        tz="Europe/Berlin",
    )

    assert (found.name, found.queue, found.priority, found.timeout, found.runner) == (
        "mail.send", "mail", 10, 60.0, "process",
    )  # fmt: skip
    assert (found.retry, found.retry_on, found.fail_on) == (retry.fixed(30), (OSError,), (KeyError, ValueError))
    assert found.schedule == Rule(cron="0 3 * * *", tz="Europe/Berlin")
    assert options(every=30).schedule == Rule(every_us=30 * SECOND)
    with pytest.raises(FrozenInstanceError):
        found.queue = "other"  # type: ignore[misc]


def test_none_is_as_good_as_nothing() -> None:
    names = ["queue", "priority", "max_attempts", "timeout", "retry", "runner", "redact", "cron"]
    assert TaskOptions.of(add, dict.fromkeys(names)) == options()


def test_the_runner_follows_from_the_function() -> None:
    assert options(add).runner == "thread"
    assert options(fetch).runner == "async"
    assert options(fetch, runner="process").runner == "process"


def slow(attempt: int) -> float:
    return attempt


@pytest.mark.parametrize("policy", [retry.linear(5), slow, retry.fixed(0)], ids=["policy", "function", "fixed"])
def test_a_retry_policy_is_taken_as_it_is(policy: Any) -> None:
    assert options(retry=policy).retry is policy


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"prioritty": 1}, TypeError, r"no option 'prioritty'; did you mean priority\? known are cron, description"),
        ({"max_retries": 1}, TypeError, "did you mean max_attempts"),
        ({"zzz": None}, TypeError, "no option 'zzz'; known are"),
        ({"queue": "a,b"}, InvalidName, "queue name 'a,b'"),
        ({"queue": 5}, InvalidName, "must be a string"),
        ({"priority": "high"}, TypeError, "priority must be a whole number, not str"),
        ({"priority": 2**31}, ConfigError, "priority must be between"),
        ({"max_attempts": 0}, ConfigError, "max_attempts must be between 1 and"),
        ({"max_attempts": True}, TypeError, "must be a whole number, not bool"),
        ({"max_attempts": 2.0}, TypeError, "must be a whole number, not float"),
        ({"max_crashes": 0}, ConfigError, "max_crashes must be between 1 and"),
        ({"timeout": 0}, ConfigError, "timeout must be more than 0"),
        ({"timeout": -1}, ConfigError, "timeout must be more than 0"),
        ({"timeout": math.nan}, ConfigError, "timeout must be more than 0"),
        ({"timeout": math.inf}, ConfigError, "ten years"),
        ({"timeout": 10**400}, ConfigError, "ten years"),
        ({"timeout": "30"}, TypeError, "timeout must be a number of seconds or a timedelta, not str"),
        ({"retry": -1}, ConfigError, r"retry .* must be between 0"),
        ({"retry": "often"}, TypeError, r"retry \(if not a policy or a function of the attempt\) must be"),
        ({"retry": True}, TypeError, "not bool"),
        ({"retry": retry.exponential}, ConfigError, r"call it, as in retry=dray.exponential\(...\)"),
        ({"runner": "fiber"}, ConfigError, "must be one of thread, async, process, not 'fiber'"),
        ({"runner": "async"}, ConfigError, "runner async cannot run a def that is not async; use thread or process"),
        ({"keep_args": "no"}, TypeError, "keep_args must be True or False, not str"),
        ({"redact": ["token"]}, ConfigError, "redact: 'token' is no parameter; its parameters are a, b"),
        ({"redact": "a"}, TypeError, "redact must be a list of parameter names, not str"),
        ({"description": 5}, TypeError, "description must be a string"),
        ({"description": "a\nb"}, ConfigError, "one line of printable text"),
        ({"description": "x" * 501}, ConfigError, "1 to 500 characters, not 501"),
        ({"retry_on": "OSError"}, TypeError, "retry_on must be a list of exception types"),
        ({"retry_on": [int]}, TypeError, "int'> is none"),
        ({"fail_on": [ValueError()]}, TypeError, "exception types, and ValueError"),
        ({"cron": "* *"}, ConfigError, "cron"),
        ({"cron": "* * * * *", "tz": "Mars/Base"}, ConfigError, "Mars/Base"),
        ({"cron": "* * * * *", "every": 5}, ConfigError, "either cron or every, not both"),
        ({"tz": "UTC"}, ConfigError, "give cron too"),
        ({"every": 0}, ConfigError, "every must be between"),
        ({"limit": -1}, ConfigError, "limit must be between 0 and"),
        ({"limit": "5"}, TypeError, "limit must be a whole number, not str"),
        ({"rate": "10/fortnight"}, ConfigError, "rate: '10/fortnight' is no rate"),
        ({"rate": 10}, TypeError, "rate must be text"),
        ({"key": "c"}, ConfigError, "key: 'c' is no argument of the task; its arguments are a, b"),
        ({"key_limit": -1}, ConfigError, "key_limit must be between 0 and"),
        ({"key_rate": ["1/s", "2/s"]}, ConfigError, "key_rate has two rates for the same period"),
    ],
    ids=lambda each: re.sub("0x[0-9a-f]+", "", str(each))[:40],
)
def test_an_option_that_cannot_work_is_refused_with_what_it_may_be(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        options(**given)


def test_a_coroutine_does_not_run_on_threads() -> None:
    with pytest.raises(ConfigError, match="runner thread cannot run an async def; use async or process"):
        options(fetch, runner="thread")


def test_the_error_names_the_task() -> None:
    with pytest.raises(ConfigError, match=r"^task mail.send: timeout must"):
        options(name="mail.send", timeout=0)


def test_redacted_arguments_are_hidden() -> None:
    def send(to: str, **secrets: str) -> None: ...

    assert options(name="a", redact=["a"]).hide({"a": 1, "b": 2}) == {"a": "***", "b": 2}
    assert options(send, name="b", redact=["token"]).hide({"to": "x", "token": 1}) == {"to": "x", "token": "***"}


# Retrying.

RNG = random.Random(1)


def test_every_error_is_tried_again_after_the_policys_delay() -> None:
    found = options(retry=5)
    assert next_delay_us(found, 1, ValueError(), RNG) == 5 * SECOND
    assert next_delay_us(options(), 3, ValueError(), RNG) in range(8 * SECOND, 16 * SECOND + 1)


@pytest.mark.parametrize(
    ("given", "error", "again"),
    [
        ({"fail_on": ValueError}, ValueError(), False),
        ({"fail_on": ValueError}, UnicodeError(), False),
        ({"fail_on": ValueError}, OSError(), True),
        ({"retry_on": OSError}, ConnectionError(), True),
        ({"retry_on": OSError}, ValueError(), False),
        ({"retry_on": Exception, "fail_on": KeyError}, KeyError(), False),
        ({"retry_on": [OSError, KeyError]}, KeyError(), True),
    ],
    ids=str,
)
def test_errors_can_be_chosen(given: dict[str, Any], error: Exception, again: bool) -> None:
    assert (next_delay_us(options(retry=0, **given), 1, error, RNG) is not None) == again


def broken(attempt: int) -> float:
    raise KeyError("hm")


def negative(attempt: int) -> float:
    return -1


@pytest.mark.parametrize("policy", [broken, negative], ids=["raises", "returns nonsense"])
def test_a_policy_that_fails_is_reported_and_the_default_is_used(
    policy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="dray"):
        delay = next_delay_us(options(name="shop.add", retry=policy), 2, ValueError(), RNG)

    assert delay in range(4 * SECOND, 8 * SECOND + 1)
    assert "task shop.add: its retry policy failed after attempt 2; using the default" in caplog.text

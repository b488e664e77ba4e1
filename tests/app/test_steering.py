"""The arguments of Retry, Snooze, Fail and Cancel are checked where they are raised."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import dray
from dray.errors import ConfigError, DrayError
from dray.instants import SECOND


def test_delays_are_seconds_or_timedeltas() -> None:
    assert dray.Retry(30).delay_us == dray.Retry(delay=timedelta(seconds=30)).delay_us == 30 * SECOND
    assert dray.Snooze(0.5).delay_us == dray.Snooze(timedelta(milliseconds=500)).delay_us == SECOND // 2
    assert dray.Retry(0).delay_us == dray.Snooze(0).delay_us == 0


def test_a_retry_without_a_delay_leaves_it_to_the_policy() -> None:
    assert dray.Retry().delay_us is None


def test_what_is_said_can_be_read() -> None:
    assert dray.Fail("no such user").message == str(dray.Fail("no such user")) == "no such user"
    assert dray.Cancel("not needed").message == str(dray.Cancel("not needed")) == "not needed"
    assert dray.Retry(1, "try later").message == str(dray.Retry(1, "try later")) == "try later"
    assert dray.Cancel().message is dray.Retry().message is None
    assert all(map(str, (dray.Cancel(), dray.Retry(), dray.Snooze(1))))


NONSENSE: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda dray: dray.Retry(-1), ConfigError, "Retry: delay must be between 0 and"),
    (lambda dray: dray.Retry(float("nan")), ConfigError, "Retry: delay must be"),
    (lambda dray: dray.Retry("30"), TypeError, "Retry: delay must be a number of seconds or a timedelta, not str"),
    (lambda dray: dray.Retry(True), TypeError, "not bool"),
    (lambda dray: dray.Retry(1, 2), TypeError, "Retry: message must be a string, not int"),
    (lambda dray: dray.Snooze(timedelta(days=-1)), ConfigError, "Snooze: seconds must be between 0 and"),
    (lambda dray: dray.Snooze(1e12), ConfigError, "ten years"),
    (lambda dray: dray.Snooze(None), TypeError, "Snooze: seconds must be a number"),
    (lambda dray: dray.Fail(None), TypeError, "Fail: message must be a string, not NoneType"),
    (lambda dray: dray.Fail(KeyError("x")), TypeError, "Fail: message must be a string, not KeyError"),
    (lambda dray: dray.Cancel(7), TypeError, "Cancel: message must be a string, not int"),
]


@pytest.mark.parametrize(("wrong", "kind", "says"), NONSENSE)
def test_nonsense_is_refused_with_the_reason(wrong: Callable[[Any], Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        wrong(dray)


@pytest.mark.parametrize("raised", [dray.Retry(2.5, "x"), dray.Snooze(60), dray.Fail("no"), dray.Cancel("x")])
def test_it_comes_out_of_a_child_process_as_it_went_in(raised: Any) -> None:
    again = pickle.loads(pickle.dumps(raised))

    assert (type(again), again.__dict__, str(again)) == (type(raised), raised.__dict__, str(raised))


def test_steering_is_no_error() -> None:
    for kind in (dray.Retry, dray.Snooze, dray.Fail, dray.Cancel):
        assert issubclass(kind, dray.Steering)
        assert not issubclass(kind, DrayError)

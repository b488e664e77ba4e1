"""Errors of one kind have one pattern and one key; what differs between them is a dot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.model.error_group import error_key, error_pattern

PATTERNS = {
    "TimeoutError: no answer from smtp2 within 30 s": "TimeoutError: no answer from smtp· within · s",
    "JSONDecodeError: Expecting value: line 3 column 17 (char 99)": (
        "JSONDecodeError: Expecting value: line · column · (char ·)"
    ),
    "WorkerDied: worker 0192f0c1-aaaa-7bbb-8ccc-0123456789ab died while it ran this job": (
        "WorkerDied: worker · died while it ran this job"
    ),
    "KeyError: 'user_42'": "KeyError: ·",
    'ValueError: no customer "Ann B." there': "ValueError: no customer · there",
    "ValueError: it isn't 'x' that doesn't fit": "ValueError: it isn't · that doesn't fit",
    'ParseError: cannot read "{a very long text that was cut…': "ParseError: cannot read ·",
    "HTTPStatusError: 503 Service Unavailable for url https://example.com/hooks/8213?at=1&by=ann": (
        "HTTPStatusError: · Service Unavailable for url https://example.com/hooks/·?·"
    ),
    "OSError: /srv/data/job-17/out.csv is not there": "OSError: /srv/data/·/out.csv is not there",
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/a.csv'": (
        "FileNotFoundError: [Errno ·] No such file or directory: ·"
    ),
    "TypeError: <Shop object at 0x7f3abc> is closed": "TypeError: <Shop object at ·> is closed",
    "GitError: commit 1a2b3c4d is not in decade": "GitError: commit · is not in decade",
    "DatabaseError: 10.0.0.1:5432 refused -1.5e-7": "DatabaseError: · refused ·",
    "ValueError: bad ids 1, 2, 3": "ValueError: bad ids ·",
    "ValueError:  two\n lines": "ValueError: two lines",
    "": "",
}


@pytest.mark.parametrize(("error", "pattern"), PATTERNS.items())
def test_what_differs_between_errors_of_a_kind_is_a_dot(error: str, pattern: str) -> None:
    assert error_pattern(error) == pattern


def test_errors_of_one_kind_have_one_key_and_others_have_another() -> None:
    key = error_key("mail.send", "TimeoutError: no answer within 30 s")

    assert error_key("mail.send", "TimeoutError: no answer within 7.5 s") == key
    assert error_key("mail.send", "ValueError: no answer within 30 s") != key
    assert error_key("mail.fetch", "TimeoutError: no answer within 30 s") != key


def test_a_key_stays_what_it_is() -> None:
    """Those in databases were made by an earlier release: with another one, a group would become two."""
    assert error_key("mail.send", "TimeoutError: no answer within 30 s") == "88966104c106c79a"


@given(st.text(max_size=400), st.text(min_size=1, max_size=20))
def test_any_error_has_a_short_pattern_and_a_key(error: str, task: str) -> None:
    assert len(error_pattern(error)) <= 200
    assert len(error_key(task, error)) == 16


@given(st.integers(min_value=0), st.integers(min_value=0))
def test_a_number_in_an_error_does_not_matter(one: int, other: int) -> None:
    assert error_key("t", f"ValueError: {one} is odd") == error_key("t", f"ValueError: {other} is odd")

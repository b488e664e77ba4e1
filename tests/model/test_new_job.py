"""A new job is checked before anything is written. The error names the field and the problem in one sentence."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dray.errors import ConfigError, DrayError, InvalidName, PayloadError
from dray.instants import LAST_INSTANT
from dray.model.bounds import DELAY_US, PRIORITY_MAX, TAGS
from dray.model.new_job import NewJob

ID = "01900000-0000-7000-8000-000000000001"
HOSTILE = [
    "",
    " ",
    "x" * 201,
    "q'; DROP TABLE dray_jobs; -- ",
    "q\n",
    "q\0",
    "\x1b[31m",
    "\u202eq",
    "\ud800",
]


def new(**options: Any) -> NewJob:
    given: dict[str, Any] = {"id": ID, "task": "mail.send"} | options
    return NewJob(**given)


def test_an_ordinary_job_passes() -> None:
    job = new(queue="mail", priority=-5, timeout=0.5, tags=("a", "b"), unique_key="k", step="s", schedule="nightly")
    assert (job.queue, job.priority, job.tags) == ("mail", -5, ("a", "b"))


@pytest.mark.parametrize("what", ["task", "queue", "schedule", "step"])
@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_name_is_refused_in_one_printable_line(what: str, name: str) -> None:
    with pytest.raises(InvalidName) as caught:
        new(**{what: name})
    assert what in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"priority": PRIORITY_MAX + 1}, "priority"),
        ({"priority": -PRIORITY_MAX - 1}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": -1}, "max_attempts"),
        ({"max_attempts": 10**9}, "max_attempts"),
        ({"max_crashes": 0}, "max_crashes"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1.0}, "timeout"),
        ({"timeout": math.nan}, "timeout"),
        ({"timeout": math.inf}, "timeout"),
        ({"delay_us": -1}, "delays"),
        ({"delay_us": DELAY_US + 1}, "delays"),
        ({"expires_us": -1}, "delays"),
        ({"unique_us": -1}, "delays"),
        ({"run_at": -1}, "run_at"),
        ({"run_at": 10**18}, "9999-12-30"),
        ({"run_at": LAST_INSTANT + 1}, "9999-12-30"),
        ({"expires_at": 10**18}, "expires_at"),
        ({"slot": -1}, "slot"),
        ({"unique_scope": "nowhere"}, "unique_scope"),
        ({"on_parent_failure": "panic"}, "on_parent_failure"),
        ({"tags": tuple(map(str, range(TAGS + 1)))}, "tags"),
    ],
    ids=str,
)
def test_a_number_or_word_out_of_range_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        new(**options)
    assert "mail.send" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "x" * 501, "a\0b", "half \ud83d"], ids=ascii)
@pytest.mark.parametrize(
    ("field", "path"),
    [("unique_key", "unique"), ("name", "name"), ("description", "description")],
)
def test_text_that_no_database_can_store_is_refused_by_its_path(field: str, path: str, text: str) -> None:
    with pytest.raises(PayloadError) as caught:
        new(**{field: text})
    assert caught.value.path == path


def test_a_bad_tag_is_named_by_its_place() -> None:
    with pytest.raises(PayloadError) as caught:
        new(tags=("good", "bad\0"))
    assert caught.value.path == "tags[1]"


def test_all_refusals_are_drays() -> None:
    assert issubclass(InvalidName, DrayError)
    assert issubclass(ConfigError, ValueError)

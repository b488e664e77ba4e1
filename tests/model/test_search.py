"""The grammar of searches: what is read, what is refused, and in which words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import ConfigError
from dray.instants import DAY, HOUR, LAST_INSTANT, SECOND
from dray.model.job import State
from dray.model.search import TERMS, TEXT_CHARS, Search, Term, parse
from dray.model.sought import fits_args, like, sought

NOW = 1_800_000_000 * SECOND


def terms(text: str) -> list[tuple[str, str, str, bool]]:
    return [(term.key, term.op, term.value, term.negated) for term in parse(text).terms]


def test_filters_words_and_quoted_text_are_terms() -> None:
    assert terms('state:failed task:mail.* -tag:test attempt:>=2 503 "no answer" -"a: b" args.item.sku:x-1') == [
        ("state", ":", "failed", False),
        ("task", ":", "mail.*", False),
        ("tag", ":", "test", True),
        ("attempt", ">=", "2", False),
        ("text", ":", "503", False),
        ("text", ":", "no answer", False),
        ("text", ":", "a: b", True),
        ("args.item.sku", ":", "x-1", False),
    ]


def test_a_term_says_where_it_stood() -> None:
    text = '  state:failed   -error:"no answer"'
    assert [text[term.start : term.end] for term in parse(text).terms] == ["state:failed", '-error:"no answer"']


def test_nothing_asks_for_everything() -> None:
    assert parse(" \n\t").terms == ()
    assert Search().text() == ""


@pytest.mark.parametrize(
    "text",
    [
        "state:failed -state:timeout queue:mail task:mail.* tag:team-* worker:0a1b2c3d workflow:etl schedule:nightly",
        "reason:timeout error:503 error_key:0011223344556677 attempt:>1 since:1h until:2026-11-15T08:00Z ran:>30s",
        "id:0a1b",
        'args.a.b:42 args.to:*@example.com args.x:"*" error:"say \\"no\\" \\\\ twice" "-x" "a:b"',
        'workflow:"my flow" -"two words"',
        'key:acct:7 key:acct:* -key:"two words"',
    ],
)
def test_a_search_can_be_written_out_and_read_again(text: str) -> None:
    found = parse(text)
    again = parse(found.text())
    assert found.text() == text
    assert [(t.key, t.op, t.value, t.negated, t.quoted) for t in again.terms] == [
        (t.key, t.op, t.value, t.negated, t.quoted) for t in found.terms
    ]


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_and_what_is_read_can_be_written_out(text: str) -> None:
    try:
        found = parse(text)
    except ConfigError:
        return
    assert parse(found.text()).text() == found.text()
    sought(found, NOW)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stat:failed", "'stat:' at character 1 is no filter; did you mean state:\\?"),
        ("a https://x.example", "'https:' at character 3 is no filter; Filters are state, .* in quotes"),
        ("state:faild", "did you mean state:failed\\?"),
        ("state:", "'state:\"\"' at character 1 has no value"),
        ('error:""', "has no value"),
        ('x "y', "the quote at character 3 is not closed"),
        ("-", "- at character 1 stands alone"),
        ("args:4", "names no argument; write args.NAME:VALUE"),
        ("args.a..b:4", "names no argument"),
        ("args.a:>4", "an argument is equal or not"),
        (f"queue:{'a' * 201}", "is no queue's name: a name is 1 to 200 printable characters"),
        ("task:mail.\u202e", "is no task's name"),
        ("tag:a/b", "is no tag: a tag is 1 to 100 of"),
        ("tag:a*b", "has a \\* that is not at its end"),
        ("id:xyz", "is no part of an id"),
        ("error_key:12", "is no key of an error"),
        (f"key:{'x' * 201}", "is no key of a job"),
        ("reason:because", "is no reason; known are error, timeout"),
        ("attempt:two", "is no number of an attempt"),
        ("attempt:٣", "is no number of an attempt"),
        ("attempt:>9999999999", "is too large"),
        ("ran:30s", "needs a comparison"),
        ("ran:>long", "is no duration"),
        ("ran:>999999999999999d", "is no duration"),
        ("since:99999999999999999999d", "is no time"),
        ("since:11y", "is no time"),
        ("until:2026-13-01", "is no time"),
        ("error:a\0b", "at character 8 cannot be searched for"),
        ("\ud800", "cannot be searched for"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place_and_what_to_write(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(text)


def test_size_is_bounded() -> None:
    assert len(parse(" ".join(["x"] * TERMS)).terms) == TERMS
    with pytest.raises(
        ConfigError, match=f"at most {TERMS} terms; leave out what stands after character {2 * TERMS}"
    ):
        parse(" ".join(["x"] * (TERMS + 1)))
    for text in ("x" * (1 << 20), " ".join(["state:failed"] * 10_000), '"' * (TEXT_CHARS + 1)):
        with pytest.raises(ConfigError, match="at most 2,500 characters"):
            parse(text)


def test_values_are_in_the_form_that_is_stored() -> None:
    whole = "01890000-0000-7000-8000-00000000000A"
    text = f"attempt:02 id:{whole.replace('-', '')} workflow:{whole} worker:Web-1"
    assert parse(text).text() == f"attempt:2 id:{whole.lower()} workflow:{whole.lower()} worker:Web-1"


def test_a_filter_can_be_added_and_removed() -> None:
    found = parse("state:failed task:mail.*")
    assert found.without("state").plus("state", "queued", "running").text() == (
        "task:mail.* state:queued state:running"
    )
    with pytest.raises(ConfigError, match="'state:nope' is no filter"):
        found.plus("state", "nope")
    with pytest.raises(ConfigError, match=f"at most {TERMS} terms"):
        found.plus("text", *["x"] * TERMS)


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("", set(State)),
        ("state:failed state:cancelled", {"failed", "cancelled"}),
        ("-state:completed", set(State) - {"completed"}),
        ("state:pending -state:waiting", {"scheduled", "queued"}),
        ("state:timeout", {"failed"}),
        ("reason:user", {"failed", "cancelled"}),
        ("error_key:0011223344556677", {"failed"}),
        ("state:queued reason:user", set()),
    ],
)
def test_states_that_a_search_can_find(text: str, states: set[str]) -> None:
    assert sought(parse(text), NOW).possible == states


@pytest.mark.parametrize(
    ("text", "since", "until"),
    [
        ("since:1h until:30m", NOW - HOUR, NOW - HOUR // 2),
        ("-until:1h30m", NOW - HOUR * 3 // 2, LAST_INSTANT),
        ("-since:90", None, NOW - 90 * SECOND),
        ("since:1d since:2h", NOW - 2 * HOUR, LAST_INSTANT),
        ("since:1970-01-02", DAY, LAST_INSTANT),
        ("since:1970-01-02T00:00", DAY, LAST_INSTANT),
        ("since:1970-01-02T02:00+02:00", DAY, LAST_INSTANT),
        ("since:9999-12-31T23:59-12:00", LAST_INSTANT, LAST_INSTANT),
    ],
)
def test_times_are_how_long_ago_or_instants_in_utc(text: str, since: int | None, until: int) -> None:
    found = sought(parse(text), NOW).asked
    assert since is None or found["since"] == since
    assert found["until"] == until


def test_since_when_jobs_are_enqueued_is_apart_from_when_they_ended() -> None:
    found = sought(parse("enqueued:2h -enqueued:1h since:30m"), NOW).asked
    assert (found["enqueued_since"], found["enqueued_until"]) == (NOW - 2 * HOUR, NOW - HOUR)
    assert found["since"] == NOW - HOUR // 2


def test_comparisons_narrow_each_other_and_turn_round_when_negated() -> None:
    found = sought(parse("attempt:>1 attempt:<=5 -attempt:>3 ran:>=1s -ran:>2s"), NOW).asked
    assert (found["attempt_low"], found["attempt_high"]) == (2, 3)
    assert (found["ran_low"], found["ran_high"]) == (SECOND, 2 * SECOND)


ARGS = {"a": {"b": [1, {"c": "x"}]}, "n": 42, "f": 1.5, "yes": True, "none": None, "s": "ann@example.com", "h": "***"}


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("args.n:42", True),
        ("args.n:42.0", False),
        ("args.n:4", False),
        ("args.f:1.5", True),
        ("args.yes:true", True),
        ("args.none:null", True),
        ("args.a.b.0:1", True),
        ("args.a.b.1.c:x", True),
        ("args.a.b.2:1", False),
        ("args.a.b:1", False),
        ("args.nothing:null", False),
        ("args.s:ann@example.com", True),
        ("args.s:*@example.com", True),
        ('args.s:"*@example.com"', False),
        ("args.s:a*@*.org", False),
        ('args.h:"***"', True),
        ("args.n:41 args.n:42", True),
        ("args.n:42 args.f:2", False),
        ("-args.n:42", False),
        ("-args.nothing:1", True),
    ],
)
def test_arguments_fit_by_their_spelling_in_json(text: str, fits: bool) -> None:
    assert fits_args(parse(text).terms, ARGS) is fits


@given(st.text("ab", max_size=8), st.text("ab*", max_size=6))
def test_a_star_is_any_text(text: str, pattern: str) -> None:
    def slowly(text: str, pattern: str) -> bool:
        if not pattern:
            return not text
        if pattern[0] == "*":
            return any(slowly(text[n:], pattern[1:]) for n in range(len(text) + 1))
        return bool(text) and text[0] == pattern[0] and slowly(text[1:], pattern[1:])

    assert like(text, pattern) is slowly(text, pattern)


def test_a_pattern_of_many_stars_takes_no_time() -> None:
    assert not like("a" * 200_000 + "b", "*a" * 900 + "*c")


def test_a_term_is_made_by_hand_too() -> None:
    assert Search((Term("error", "a b"), Term("text", "x", negated=True))).text() == 'error:"a b" -x'

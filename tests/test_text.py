"""Text for databases, terminals and logs: always storable, always printable, never a password."""

from __future__ import annotations

import re
import time
import tracemalloc
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dray.sanitize import clean, clean_traceback, escape_control, holds_password, redact
from dray.wording import counted, interval, plural, rate, with_short_ids

any_text = st.text(st.characters(categories=["L", "Cs", "Cc", "So", "Zs"]) | st.sampled_from("a\0\udc80é😀"))


# clean


@pytest.mark.parametrize("text", ["", "boom", "zoë", "日本 😀", "a\nb\tc"])
def test_clean_text_within_the_limit_is_left_alone(text: str) -> None:
    assert clean(text, 100) == text
    assert clean_traceback(text, 100) == text


def test_nul_becomes_the_replacement_character() -> None:
    assert clean("a\0b", 100) == "a\ufffdb"
    assert clean_traceback("a\0b", 100) == "a\ufffdb"


def test_a_lone_surrogate_becomes_its_visible_escape() -> None:
    assert clean("file \udc80.txt", 100) == "file \\udc80.txt"
    assert clean_traceback("é \ud800", 100) == "é \\ud800"


def test_a_long_text_keeps_its_beginning_and_says_how_long_it_was() -> None:
    assert clean("a" * 12_345, 50) == "a" * 14 + "… [truncated, 12,345 bytes in all]"


def test_a_long_traceback_keeps_its_beginning_and_twice_as_much_of_its_end() -> None:
    text = "".join(f"line {number}\n" for number in range(1000))
    cut = clean_traceback(text, 637)
    head, marker, tail = cut.partition("\n… [truncated, 8,890 bytes in all]\n")
    assert marker
    assert (len(head), len(tail)) == (200, 400)
    assert text.startswith(head)
    assert text.endswith(tail)


def test_the_size_in_the_marker_counts_what_would_have_been_stored() -> None:
    assert "[truncated, 3,000 bytes in all]" in clean("\0" * 1000, 50)
    assert "[truncated, 6,000 bytes in all]" in clean("\udc80" * 1000, 50)
    assert "[truncated, 2,000 bytes in all]" in clean_traceback("é" * 1000, 60)


def test_exactly_the_limit_is_not_cut_and_one_byte_more_is() -> None:
    assert clean("é" * 50, 100) == "é" * 50
    assert clean_traceback("é" * 50, 100) == "é" * 50
    assert "truncated" in clean("é" * 50 + "a", 100)
    assert "truncated" in clean_traceback("é" * 50 + "a", 100)


def test_the_cut_is_between_characters() -> None:
    for limit in range(60, 70):
        assert set(clean("😀" * 100, limit).partition("…")[0]) == {"😀"}
        assert "\ufffd" not in clean_traceback("😀" * 100, limit)


def test_a_limit_too_small_for_the_marker_still_holds() -> None:
    assert clean("abcdef", 3) == "abc"
    assert clean("😀😀", 5) == "😀"
    assert clean_traceback("abcdef", 3) == "abc"
    assert clean("abc", 0) == clean_traceback("abc", 0) == ""


@given(any_text, st.integers(0, 120))
def test_any_text_fits_can_be_stored_and_cleaning_it_again_changes_nothing(text: str, limit: int) -> None:
    for cleaner in (clean, clean_traceback):
        cleaned = cleaner(text, limit)
        assert len(cleaned.encode()) <= limit
        assert "\0" not in cleaned
        assert cleaner(cleaned, limit) == cleaned


def test_a_string_subclass_cannot_interfere() -> None:
    class Hostile(str):
        __slots__ = ()

        def __len__(self) -> int:
            return 0

        def encode(self, *_: object, **__: object) -> bytes:
            raise RuntimeError

    for cleaner in (clean, clean_traceback):
        cleaned = cleaner(Hostile("a\0b"), 100)
        assert type(cleaned) is str
        assert cleaned == "a\ufffdb"


@pytest.mark.parametrize("letter", ["a", "é", "\0"])
@pytest.mark.parametrize("cleaner", [clean, clean_traceback])
def test_a_hundred_million_characters_are_cut_without_a_copy_of_them(
    cleaner: Callable[[str, int], str], letter: str
) -> None:
    text = letter * 100_000_000
    tracemalloc.start()
    try:
        cleaned = cleaner(text, 65_536)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(cleaned.encode()) <= 65_536
    assert peak < 20_000_000


# escape_control


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain, ünïcode 日本 😀", "plain, ünïcode 日本 😀"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]8;;http://evil\x07link", "\\x1b]8;;http://evil\\x07link"),
        ("\x9b31m", "\\x9b31m"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x7f\x85\0", "\\x7f\\x85\\x00"),
        ("a\u2028b\u2029c", "a\\u2028b\\u2029c"),
        ("user\u202egnp.exe\u2066x\u2069", "user\\u202egnp.exe\\u2066x\\u2069"),
        ("a\u061cb\u200ec\u200f", "a\\u061cb\\u200ec\\u200f"),
        ("\udc80", "\\udc80"),
    ],
    ids=ascii,
)
def test_what_steers_a_terminal_is_escaped(text: str, escaped: str) -> None:
    assert escape_control(text) == escaped


@given(st.text(st.characters(categories=["Cc", "Zl", "Zp", "Cf", "Cs", "L"])))
def test_escaped_text_is_one_printable_line_and_escaping_it_again_changes_nothing(text: str) -> None:
    escaped = escape_control(text)
    assert not {unicodedata.category(letter) for letter in escaped} & {"Cc", "Zl", "Zp", "Cs"}
    assert not {unicodedata.bidirectional(letter) for letter in escaped} & {"RLO", "LRO", "RLE", "LRE", "PDF"}
    assert len(escaped.splitlines()) <= 1
    assert escape_control(escaped) == escaped


# redact

REDACTED = [
    ("postgresql://user:secret@host/db", "postgresql://user:***@host/db"),
    ("postgres://user:secret@host:5432/db?x=1", "postgres://user:***@host:5432/db?x=1"),
    ("PostgreSQL://user:secret@host", "PostgreSQL://user:***@host"),
    ("postgresql+psycopg://user:secret@host/db", "postgresql+psycopg://user:***@host/db"),
    ("postgresql://:secret@host/db", "postgresql://:***@host/db"),
    ("postgresql://user:@host/db", "postgresql://user:***@host/db"),
    ("postgresql://user:p@ss:w@rd@host/db", "postgresql://user:***@host/db"),
    ("postgresql://user:p%40ss%2Fword@host/db", "postgresql://user:***@host/db"),
    ("postgresql://user:p/w?o#r&d@host/db", "postgresql://user:***@host/db"),
    ("postgresql://user:1234/5@host/db", "postgresql://user:***@host/db"),
    ("""postgresql://user:p"w'd@host/db""", "postgresql://user:***@host/db"),
    ("postgresql://user@azure:secret@host/db", "postgresql://user@azure:***@host/db"),
    ("postgresql://user:secret@[::1]:5432/db", "postgresql://user:***@[::1]:5432/db"),
    ("postgresql://user:secret@h1:5432,h2:5433/db", "postgresql://user:***@h1:5432,h2:5433/db"),
    (
        "postgresql://user:secret@host/db?password=x1&sslmode=require&sslpassword=y1",
        "postgresql://user:***@host/db?password=***&sslmode=require&sslpassword=***",
    ),
    ("postgresql://host/db?password=p@ss", "postgresql://host/db?password=***"),
    ("postgresql://user:one@host/db?password=t@wo", "postgresql://user:***@host/db?password=***"),
    ("host=h password=secret dbname=d", "host=h password=*** dbname=d"),
    ("host=h password=a&b@c:d dbname=d", "host=h password=*** dbname=d"),
    ("host=h password='se cret' dbname=d", "host=h password=*** dbname=d"),
    (r"password='it\'s here' dbname=d", "password=*** dbname=d"),
    (r"password=se\ cret dbname=d", "password=*** dbname=d"),
    ("password = secret sslpassword = 'o ne'", "password = *** sslpassword = ***"),
    (r"""'host=h password=\'se cret\' dbname=d'""", "'host=h password=*** dbname=d'"),
    ("PGPASSWORD=secret psql", "PGPASSWORD=*** psql"),
    ('PGPASSWORD="se cret" psql', "PGPASSWORD=*** psql"),
    (
        "redis://:secret@cache:6379/0 and amqp://u:secret@mq//",
        "redis://:***@cache:6379/0 and amqp://u:***@mq//",
    ),
    (
        "cannot reach postgresql://a:one@h/x (was postgresql://b:two@h/y): mail ann@example.com",
        "cannot reach postgresql://a:***@h/x (was postgresql://b:***@h/y): mail ann@example.com",
    ),
    # An address that was cut off before its "@" still begins with the password.
    ("postgresql://user:secr… [truncated]", "postgresql://user:*** [truncated]"),
    ("host=h password='se cre", "host=h password=***"),
]


@pytest.mark.parametrize(("text", "redacted"), REDACTED)
def test_the_password_of_an_address_is_hidden(text: str, redacted: str) -> None:
    assert redact(text) == redacted
    assert redact(redacted) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing to hide, ann@example.com",
        "sqlite:///var/lib/jobs.db",
        "postgresql:///dray?host=/var/run/postgresql",
        "postgresql://user@host:5432/db",
        "postgresql://localhost:5432/db is down; ask ann@example.com",
        "postgresql://localhost:5432, postgresql://[::1]:5432/db",
        "postgresql://: cannot be reached",
        "postgresql://host: cannot be reached",
        "postgresql://user@host: cannot be reached",
        "postgresql://host:5432: cannot be reached",
        "http://127.0.0.1:8000/jobs/ann@example.com?at=12:30",
        'FATAL: password authentication failed for user "dray"',
        "wrong password: try again",
    ],
)
def test_what_holds_no_password_is_left_alone(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://",
        "postgresql://user@host/db",
        "postgresql://user:@host/db",
        "postgresql://user:@/db?host=/tmp",
        "postgresql://host/db?password=",
        "postgresql://user:@host/db?password=&sslpassword=",
        "jobs.db",
    ],
)
def test_an_empty_password_is_none(text: str) -> None:
    assert not holds_password(text)


@pytest.mark.parametrize("text", [text for text, _ in REDACTED if "user:@" not in text])
def test_an_address_that_holds_a_password_is_known(text: str) -> None:
    assert holds_password(text)


passwords = st.text(st.characters(min_codepoint=33, exclude_categories=("Cs",)), min_size=6, max_size=40)
encoded_passwords = st.from_regex(r"(?:[A-Za-z0-9._~!$*+,;:-]|%[0-9A-F]{2}){6,40}", fullmatch=True)
surroundings = st.sampled_from(["{}", "cannot open {}: no route", 'App("{}")', '{{"url":"{}","n":1}}', "a\n{}\nb"])


def assert_hidden(password: str, template: str, around: str = "{}") -> None:
    text = around.format(template.replace("PW", password))
    assume(password not in around.format(template))
    hidden = redact(text)
    assert password not in hidden
    assert "***" in hidden
    assert redact(hidden) == hidden


@given(passwords)
@example("''0000")
@example("a@b/c?d#e&f:g")
def test_nothing_but_the_password_is_hidden_and_no_part_of_it_is_left(password: str) -> None:
    assume("password" not in password.lower())
    quoted = re.sub(r"(['\\])", r"\\\1", password)
    assert redact(f"postgresql://u:{password}@h:1/d?a=b") == "postgresql://u:***@h:1/d?a=b"
    assert redact(f"host=h password='{quoted}' dbname=d") == "host=h password=*** dbname=d"
    assert redact(f"host=h password={quoted} dbname=d") == "host=h password=*** dbname=d"


@given(passwords | st.text(":@", min_size=1))
def test_no_password_counts_as_empty(password: str) -> None:
    assert holds_password(f"postgresql://u:{password}@h:1/d?a=b")


@given(passwords, surroundings)
@example("password=a@b", "{}")
@example("x?password=a@b", "{}")
@example("a://b:c@d", "{}")
@example("postgresql://a", "{}")
@example("12345/", "{}")
@example("'a'b'c'", "{}")
def test_no_password_without_spaces_survives_in_a_postgresql_url(password: str, around: str) -> None:
    assert_hidden(password, "postgresql://dray:PW@db.internal:5432/jobs", around)


@given(encoded_passwords, surroundings)
def test_no_encoded_password_survives_in_any_url(password: str, around: str) -> None:
    for scheme in ("postgresql", "mysql", "redis"):
        assert_hidden(password, f"{scheme}://dray:PW@db.internal/jobs", around)
    for name in ("password", "sslpassword"):
        assert_hidden(password, f"postgresql://db.internal/jobs?a=b&{name}=PW&c=d", around)


@given(passwords, st.sampled_from(["password", "sslpassword"]), surroundings)
def test_no_password_survives_in_a_libpq_string(password: str, name: str, around: str) -> None:
    quoted = re.sub(r"(['\\])", r"\\\1", password)
    assert_hidden(quoted, f"host=db {name}='PW' dbname=jobs", around)
    assert_hidden(quoted, f"host=db {name}=PW dbname=jobs", around)


@pytest.mark.parametrize(
    "unit",
    [
        "postgres://h:1/",
        "://a:",
        "://a:b",
        "password=\\'",
        "password='",
        "password =",
        "password=\\",
        "postgres+a",
        "a.",
    ],
)
def test_a_hostile_text_takes_linear_time(unit: str) -> None:
    text = unit * (500_000 // len(unit))
    began = time.process_time()
    redact(text)
    assert time.process_time() - began < 2  # milliseconds; quadratic time would be minutes


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs"), (1_234_567, "1,234,567 jobs"), (1.0, "1 job"), (0.1, "0.1 jobs")],
)
def test_a_count_goes_with_its_noun(count: float, said: str) -> None:
    assert counted(count, "job") == said


def test_a_count_goes_with_its_verb() -> None:
    assert counted(1, "body does not stop", "bodies do not stop") == "1 body does not stop"
    assert counted(2, "body does not stop", "bodies do not stop") == "2 bodies do not stop"
    assert (plural(1, "comes", "come"), plural(0, "comes", "come")) == ("comes", "come")


@pytest.mark.parametrize(
    ("per_second", "said"),
    [
        (0, "0 a second"),
        (2 / 3600, "2 an hour"),
        (0.3, "18 a minute"),
        (1, "1 a second"),
        (3.456, "3.5 a second"),
        (99.7, "100 a second"),
        (12_345.6, "12,346 a second"),
        (1 / 86_400, "1 a day"),
        (0.1 / 86_400, "0.1 a day"),
    ],
)
def test_a_rate_is_said_in_the_unit_that_makes_it_readable(per_second: float, said: str) -> None:
    assert rate(per_second) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (1, "second"),
        (30, "30 seconds"),
        (0.5, "0.5 seconds"),
        (1.5, "1.5 seconds"),
        (60, "minute"),
        (90, "1 minute 30 seconds"),
        (3600, "hour"),
        (5400, "1 hour 30 minutes"),
        (86_400, "day"),
        (604_800, "7 days"),
    ],
)
def test_an_interval_is_said_as_it_follows_every(seconds: float, said: str) -> None:
    assert interval(seconds) == said


def test_ids_in_a_sentence_are_short_but_for_those_in_python() -> None:
    job_id = "0193c5a1-0000-7000-8000-00005a0c93e1"

    said = with_short_ids(f'job {job_id} waits: app.retry("{job_id}"), or `dray job retry {job_id}`')

    assert said == f'job 5a0c93e1 waits: app.retry("{job_id}"), or `dray job retry 5a0c93e1`'

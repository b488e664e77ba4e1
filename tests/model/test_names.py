"""Names: which are accepted, which are refused, and the error message."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import ConfigError, InvalidName
from dray.model.values import check_name, shown

PLAIN = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-"


@given(st.text(PLAIN, min_size=1, max_size=200))
def test_a_name_of_plain_characters_comes_back_as_it_is(name: str) -> None:
    assert check_name("queue", name) == name


@given(st.text(st.characters().filter(str.isprintable), max_size=198).map(lambda text: f"a{text}z"))
def test_a_name_of_printable_text_comes_back_as_it_is(name: str) -> None:
    assert check_name("task", name) == name


@given(st.text(min_size=1).filter(lambda text: not text.isprintable()))
def test_a_name_with_a_character_that_cannot_be_printed_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        check_name("task", name)


@pytest.mark.parametrize(
    "name", ["a b", "ä", "٣", "a/b", "shop.views.<locals>.send", "50 %", "a,b", "x" * 200, "票" * 200]
)
def test_these_names_are_taken(name: str) -> None:
    assert check_name("task", name) == name


@pytest.mark.parametrize(
    "name",
    ["", "a" * 201, "mail\n", "\nmail", " mail", "mail ", " ", "mail\0", "a\tb", "a\xa0b", "\u202email", "\ud800"],
)
def test_these_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        check_name("queue", name)


def test_a_queue_has_no_comma_because_lists_of_queues_have() -> None:
    with pytest.raises(InvalidName, match="queue name 'a,b' cannot be used: a queue's name has no comma"):
        check_name("queue", "a,b")


@pytest.mark.parametrize("tag", ["", "a b", "ä", "a/b", 'x"y', "a" * 101, "a*"])
def test_a_tag_has_plain_characters_only(tag: str) -> None:
    with pytest.raises(InvalidName, match="a tag is 1 to 100 of the characters A-Z"):
        check_name("tag", tag)


@pytest.mark.parametrize("value", [None, 5, b"mail", ["mail"], True])
def test_only_a_string_is_a_name(value: Any) -> None:
    with pytest.raises(InvalidName, match=f"a queue name must be a string, not {type(value).__name__}"):
        check_name("queue", value)


def test_the_error_says_which_name_and_what_is_allowed() -> None:
    with pytest.raises(InvalidName) as caught:
        check_name("schedule", "every night ")

    assert str(caught.value) == (
        "schedule name 'every night ' cannot be used: "
        "a name is 1 to 200 printable characters, with no space at either end"
    )


def test_the_error_is_one_short_line_whatever_the_name_was() -> None:
    with pytest.raises(InvalidName) as caught:
        check_name("queue", "\x1b[31m\r\n" + "x" * 1_000_000)

    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


def test_a_wrong_name_is_a_configuration_error_and_a_value_error() -> None:
    assert issubclass(InvalidName, ConfigError)
    assert issubclass(InvalidName, ValueError)


def test_an_integer_too_long_to_print_can_still_be_shown() -> None:
    assert shown(10**5000) == "a huge int"

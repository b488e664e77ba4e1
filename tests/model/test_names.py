"""Names: which are accepted, which are refused, and the error message."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import ConfigError, InvalidName
from dray.model.values import check_name, shown

ALLOWED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-"


@given(st.text(ALLOWED, min_size=1, max_size=100))
def test_a_name_of_allowed_characters_comes_back_as_it_is(name: str) -> None:
    assert check_name("queue", name) == name


@given(st.text(min_size=1).filter(lambda text: set(text) - set(ALLOWED)))
def test_a_name_with_any_other_character_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        check_name("queue", name)


@pytest.mark.parametrize("name", ["", "a" * 101, "mail\n", "\nmail", "a b", "ä", "٣", "a/b", "mail\0", "\ud800"])
def test_these_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        check_name("queue", name)


@pytest.mark.parametrize("value", [None, 5, b"mail", ["mail"], True])
def test_only_a_string_is_a_name(value: Any) -> None:
    with pytest.raises(InvalidName, match=f"a queue name must be a string, not {type(value).__name__}"):
        check_name("queue", value)


def test_the_error_says_which_name_and_what_is_allowed() -> None:
    with pytest.raises(InvalidName) as caught:
        check_name("schedule", "every night")

    assert str(caught.value) == (
        "schedule name 'every night' cannot be used: a name is 1 to 100 of the characters A-Z a-z 0-9 _ . : -"
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

"""``dray limits``: what it lists, sets and takes back, and what it refuses."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell


def test_a_limit_is_set_listed_and_taken_back(shell: Shell) -> None:
    shell("enqueue", "tasks.add", "a=1", "b=2")

    said = shell("limits", "set", "queue", "default", "--limit", "2", "--rate", "10/s", "--rate", "1000/day")

    assert said.rows[0][:5] == ["queue", "default", "2", "10/s,1000/day", ""]
    assert said.err == ""
    assert shell("limits").rows == said.rows
    assert shell("limits", "--json").json[0]["override"] == {"limit": 2, "rate": ["10/s", "1000/day"]}
    assert shell("limits", "reset", "queue", "default").rows == []
    assert shell("limits").rows == []
    assert [row[4:7] for row in shell("actions").rows[:2]] == [
        ["reset", "queue", "default"],
        ["set", "queue", "default"],
    ]


def test_none_lifts_and_what_is_left_out_stays(shell: Shell) -> None:
    shell("limits", "set", "task", "tasks.add", "--limit", "0", "--key-limit", "1")

    said = shell("limits", "set", "task", "tasks.add", "--limit", "none", "--key-rate", "5/min")

    assert said.rows[0][2:6] == ["", "", "1", "5/min"]
    again = shell("limits", "set", "task", "tasks.add", "--key-rate", "5/min")
    assert again.err == "dray: task tasks.add had these limits already\n"


def test_an_unknown_name_is_taken_with_a_warning_that_says_what_may_be_meant(shell: Shell) -> None:
    shell("enqueue", "tasks.add", "a=1", "b=2", "--queue", "mail")
    shell("worker", "--burst", "-q", "mail")

    warned = [
        shell("limits", "set", scope, name, "--limit", "1").err
        for scope, name in (("queue", "mial"), ("queue", "zzz"), ("task", "tasks.ad"), ("task", "add"))
    ]

    assert warned == [
        "dray: queue mial has not been used so far; did you mean mail?\n",
        "dray: queue zzz has not been used so far\n",
        "dray: task tasks.ad has not been used so far; did you mean tasks.add?\n",
        "dray: task add has not been used so far; did you mean tasks.add?\n",
    ]
    said = shell("limits", "reset", "queue", "mialll")
    assert said.err == "dray: no limit of queue mialll was set by an operator; did you mean mial?\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "say what to limit"),
        (["--limit", "many"], "'many' is no whole number"),
        (["--limit", "-1"], "must be between 0 and"),
        (["--rate", "10/fortnight"], "is no rate"),
        (["--rate", "none", "--rate", "1/s"], "--rate is either none or rates"),
        (["--key-rate", "1/s", "--key-rate", "2/s"], "two rates for the same period"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_written(local: Shell, words: list[str], says: str) -> None:
    local("db", "init")

    said = local.try_("limits", "set", "queue", "mail", *words)

    assert said.code == 2
    assert says in said.err
    assert local("limits").rows == local("actions").rows == []

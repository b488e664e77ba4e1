"""Graphs as lines of text."""

from __future__ import annotations

from dray.cli.drawing import ASCII, BOXES, MOST_ROWS, Ink, Spot, draw


def drawn(graph: dict[str, str], ink: Ink = BOXES, **states: str) -> list[str] | None:
    """The drawing of a graph: step -> its parents, a letter each."""
    spots = {name: Spot(name, name, states.get(name, "queued")) for name in graph}
    edges = [(parent, child) for child, parents in graph.items() for parent in parents]
    return draw(spots, edges, ink)


def test_a_chain_is_a_column() -> None:
    assert drawn({"a": "", "b": "a"}, a="completed", b="running") == ["●  a  completed", "◉  b  running"]


def test_a_diamond_has_a_line_for_each_way() -> None:
    assert drawn({"a": "", "b": "a", "c": "a", "d": "bc"}, a="failed(error)", d="cancelled(parent)") == [
        "✗    a  failed(error)",
        "├─┐",
        "○ │  b  queued",
        "│ ○  c  queued",
        "├─┘",
        "⊘    d  cancelled(parent)",
    ]


def test_a_line_that_crosses_another_does_not_meet_it() -> None:
    assert drawn({"a": "", "b": "a", "c": "a", "d": "a", "e": "bd", "f": "c"}, ASCII) == [
        "o      a  queued",
        "+-+-+",
        "o | |  b  queued",
        "| o |  c  queued",
        "| | o  d  queued",
        "+-|-+",
        "o |    e  queued",
        "  o    f  queued",
    ]


def test_plain_characters_do_where_there_are_no_others() -> None:
    lines = drawn({"a": "", "b": "a", "c": "a", "d": "bc"}, ASCII, a="completed", b="failed", c="running")
    assert lines is not None
    assert "".join(lines).isascii()
    assert [line[0] for line in lines] == ["*", "+", "x", "|", "+", "o"]


def test_steps_that_are_alike_are_one_row() -> None:
    spots = {"a": Spot("a", "a", "completed"), "z": Spot("z", "z", "waiting")}
    spots |= {f"m{n}": Spot(f"m{n}", "map", "failed" if n == 7 else "completed") for n in range(10_000)}
    edges = [(parent, child) for n in range(10_000) for parent, child in (("a", f"m{n}"), (f"m{n}", "z"))]
    lines = draw(spots, edges, BOXES)
    assert lines is not None
    assert [line.split() for line in lines] == [
        ["●", "a", "completed"],
        ["✗", "map", "x", "10,000", "9,999", "completed,", "1", "failed"],
        ["│", "m7", "failed"],
        ["○", "z", "waiting"],
    ]


def test_what_is_too_large_is_not_drawn() -> None:
    chain = {f"s{n}": Spot(f"s{n}", "link", "queued") for n in range(MOST_ROWS + 1)}
    assert draw(chain, [(f"s{n}", f"s{n + 1}") for n in range(MOST_ROWS)], BOXES) is None
    comb = {f"s{n}": Spot(f"s{n}", f"kind {n}", "queued") for n in range(50)}
    assert draw(comb, [("s0", f"s{n}") for n in range(1, 50)], BOXES) is None


def test_of_many_failed_steps_in_one_row_the_first_are_named_with_their_errors() -> None:
    spots = {f"m{n}": Spot(f"m{n}", "map", "failed(error)", f"no {n}") for n in range(1_007)}
    spots |= {"z": Spot("z", "z", "failed", "at once"), "y": Spot("y", "y", "completed")}

    lines = draw(spots, [(f"m{n}", "z") for n in range(1_007)], BOXES)

    assert lines == [
        "✗  map x 1,007  failed(error)",
        *(f"│    m{n}  failed(error)  no {n}" for n in range(5)),
        "│    and 1,002 more",
        "✗  z            failed  at once",
        "●  y            completed",
    ]

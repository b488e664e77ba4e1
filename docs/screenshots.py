"""Takes the pictures of the documentation and the README: `python docs/screenshots.py`, in the environment of `make`.

Serves a seeded database and visits it with Debian's chromium; runs `dray top` on it and draws the terminal. Run it
when a page has changed its looks, or `python docs/screenshots.py top` when `dray top` has.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.cli.shell import Shell  # noqa: E402
from tests.cli.terminal import terminal  # noqa: E402
from tests.web.browser.chrome import CHROMIUM, Theme, Visitor, launched, served  # noqa: E402
from tests.web.seeded import Seeded, seeded  # noqa: E402

IMAGES = ROOT / "docs" / "images"
SIZE = 100  # about 8,000 jobs
README = "dashboard.png"
_ADDRESS = "document.querySelector('.side .foot .mono').textContent = 'sqlite:///shop.db'"  # not of this machine


def pictures(seed: Seeded) -> list[tuple[str, str, Theme]]:
    job = f"/jobs/{seed.jobs['running']}"
    return [
        ("overview-light.png", "/", "light"),
        ("overview-dark.png", "/", "dark"),
        ("jobs-light.png", "/jobs?q=state%3Afailed+since%3A1h+-queue%3Awebhooks", "light"),
        ("job-light.png", job, "light"),
    ]


_COLOURS = {
    "default": "#d7dde2", "black": "#5c6b77", "red": "#ff7b72", "green": "#7ee787", "brown": "#e3b341",
    "blue": "#79c0ff", "magenta": "#d2a8ff", "cyan": "#76e3ea", "white": "#ffffff",
}  # fmt: skip
_WIDE, _HIGH, _EDGE = 8.4, 18, 14  # of a character, and around all of them
_COLUMNS, _LINES = 110, 30
_SPACE = "\N{NO-BREAK SPACE}"  # several of the other kind are drawn as one


def draw_top(seed: Seeded, folder: Path) -> None:
    """Runs `dray top` on a terminal, and writes what it shows as an SVG."""
    with terminal(Shell(folder, seed.app.url), "top", columns=_COLUMNS, lines=_LINES) as shown:
        shown.until(lambda text: "running" in text and "workers" in text)
        shown.until(lambda text: text.count("\n") > 5)
        rows = [[shown.screen.buffer[y][x] for x in range(_COLUMNS)] for y in range(_LINES)]
        shown.press("q")
        shown.ends()
    width, height = _COLUMNS * _WIDE + 2 * _EDGE, _LINES * _HIGH + 2 * _EDGE
    size = f'viewBox="0 0 {width:g} {height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="dray top">'
    font = 'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14"'
    drawn = [head, f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/><g {font}>']
    place = seed.app.url.removeprefix("sqlite:///")
    for y, row in enumerate(rows):
        for x, piece in _pieces(row):
            text = "".join(char.data for char in piece).replace(place, "/srv/shop.db").ljust(len(piece))
            colour = _COLOURS.get(piece[0].fg, f"#{piece[0].fg}")
            if piece[0].reverse:
                at = f'x="{_EDGE + x * _WIDE:g}" y="{_EDGE + y * _HIGH + 4:g}"'
                drawn.append(f'<rect {at} width="{len(text) * _WIDE:g}" height="{_HIGH}" fill="#30363d"/>')
            if text.strip():
                at = f'x="{_EDGE + x * _WIDE:g}" y="{_EDGE + (y + 1) * _HIGH:g}" textLength="{len(text) * _WIDE:g}"'
                weight = ' font-weight="700"' if piece[0].bold else ""
                drawn.append(f'<text {at} fill="{colour}"{weight}>{escape(text).replace(" ", _SPACE)}</text>')
    (IMAGES / "top.svg").write_text("\n".join([*drawn, "</g></svg>", ""]))
    print(IMAGES / "top.svg")  # noqa: T201


def _pieces(row: list[Any]) -> Iterator[tuple[int, list[Any]]]:
    """Characters next to each other that look alike, and where they begin."""
    at = 0
    for _, alike in groupby(row, key=lambda char: (char.fg, char.bold, char.reverse)):
        piece = list(alike)
        yield at, piece
        at += len(piece)


def main() -> None:
    if sys.argv[1:] == ["top"]:
        with tempfile.TemporaryDirectory() as folder, seeded(Path(folder, "shop.db"), SIZE) as seed:
            draw_top(seed, Path(folder))
        return
    if CHROMIUM is None:
        raise SystemExit("there is no chromium: apt-get install chromium-headless-shell")
    logging.lastResort = None  # the seed has failures, and says so
    IMAGES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        seeded(Path(folder, "shop.db"), SIZE) as seed,
        served(seed.app) as site,
        launched() as browser,
    ):
        draw_top(seed, Path(folder))
        for name, path, theme in pictures(seed):
            visitor = Visitor(browser, site, color_scheme=theme, timezone_id="Europe/Berlin", reduced_motion="reduce")
            page = visitor.open(path)
            page.wait_for_timeout(1500)  # what it fetches once its stream is open
            page.evaluate(_ADDRESS)
            page.screenshot(path=IMAGES / name, full_page=not name.startswith("jobs"))
            if name == "overview-light.png":
                page.screenshot(path=IMAGES / README)
            visitor.close()
            print(IMAGES / name)  # noqa: T201


if __name__ == "__main__":
    main()

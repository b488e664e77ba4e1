"""Checks the built site: no page loads anything from another host, so that it works without a network, and what its
pages and its ``llms.txt`` name is there.

Links that a reader may follow are not loaded: ``<a href>``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

SITE = Path(__file__).parents[1] / "site"
_LOADING = {"src", "srcset", "poster", "data", "background"}  # attributes, of any element
_LOADING_LINKS = {"link", "use", "image", "feimage"}  # elements whose href is loaded
_OUTSIDE = re.compile(r"(?:^|[\s,])(?:https?:|wss?:)?//[^\s,]+", re.I)
_IN_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]*)""", re.I)
# What makes the theme's own script load from elsewhere: diagrams of Mermaid, and the figures of a repository.
_OF_THE_THEME = {("class", "mermaid"), ("data-md-component", "source")}


class _Page(HTMLParser):
    """Collects what a page loads from other hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.files: list[str] = []  # of this site, that it shows or links to
        self._is_in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._is_in_style = tag == "style"
        for name, given in attrs:
            value = given or ""
            is_loaded = name in _LOADING or (tag in _LOADING_LINKS and name in {"href", "xlink:href"})
            if (is_loaded and _OUTSIDE.search(value)) or any((name, word) in _OF_THE_THEME for word in value.split()):
                self.found.append(f"<{tag} {name}={value}>")
            if name in {"src", "href"} and value and not re.match(r"[a-z]+:|//|#", value, re.I):
                self.files.append(re.split("[?#]", value)[0])
            if name == "style":
                self.found += _IN_STYLES.findall(value)

    def handle_endtag(self, tag: str) -> None:
        self._is_in_style = self._is_in_style and tag != "style"

    def handle_data(self, data: str) -> None:
        if self._is_in_style:
            self.found += _IN_STYLES.findall(data)


def _read(file: Path) -> _Page:
    page = _Page()
    page.feed(file.read_text())
    page.close()
    return page


def loaded_from_elsewhere(site: Path) -> Iterator[str]:
    """What the files of a site load from other hosts: the file, and what it loads."""
    for file in sorted(site.rglob("*")):
        found: list[str] = []
        if file.suffix in {".html", ".svg"}:
            found = _read(file).found
        elif file.suffix == ".css":
            found = _IN_STYLES.findall(file.read_text())
        yield from (f"{file.relative_to(site)}: {each}" for each in found)


def missing(site: Path) -> Iterator[str]:
    """What pages show or link to that is not in the site. (MkDocs knows links in Markdown, not those in HTML.)"""
    for file in sorted(site.rglob("*.html")):
        if file.name != "404.html":  # it is served for any path, so its links begin at the top
            yield from (f"{file.relative_to(site)}: {each}" for each in _read(file).files if not _has(file, each))
    texts = site / "llms.txt"
    named = re.findall(r"\]\(([^)#:]+)", texts.read_text()) if texts.exists() else ["llms.txt"]
    yield from (f"llms.txt: {each}" for each in named if not _has(texts, each))


def _has(page: Path, link: str) -> bool:
    return (page.parent / unquote(link)).exists()


def main() -> None:
    if not (SITE / "index.html").exists():
        sys.exit("There is no site yet: run make docs")
    if found := list(loaded_from_elsewhere(SITE)):
        sys.exit("The site loads from other hosts:\n" + "\n".join(found))
    if found := list(missing(SITE)):
        sys.exit("The site names files that it does not have:\n" + "\n".join(found))


if __name__ == "__main__":
    main()

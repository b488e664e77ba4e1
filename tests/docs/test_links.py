"""Links of README, docs and examples lead to files and headings that exist, read in the repository."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), ROOT / "llms.txt", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
_CODE = re.compile(r"^( *)```.*?^\1```|`[^`\n]+`", re.M | re.S)
_LINK = re.compile(r"\]\(([^)\s]+)\)|<img\b[^>]*\bsrc=\"([^\"]+)\"")
_ELSEWHERE = re.compile(r"[a-z]+:|//")


def _links(text: str) -> list[str]:
    return [link or image for link, image in _LINK.findall(_CODE.sub("", text))]


@cache
def _anchors(page: Path) -> set[str]:
    """Where links into a page can lead: its headings, as GitHub names them, and ids that it sets itself."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.M | re.S)
    seen: Counter[str] = Counter()
    found = set(re.findall(r"\bid=\"([^\"]+)\"", text))
    for heading in re.findall(r"^#{1,6} (.+?) *$", text, re.M):
        words = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def _broken(page: Path) -> list[str]:
    found: list[str] = []
    for link in _links(page.read_text()):
        if _ELSEWHERE.match(link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        is_there = target.exists()
        # Names in the generated reference are made by the build, which checks them.
        is_generated = target.name == "api.md" and anchor.startswith("dray.")
        if not is_there or (anchor and not is_generated and anchor not in _anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert _broken(page) == []


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Any `code`, here\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n[a](#title) [b](#tilte) [c](other.md#any-code-here) [d](other.md#twice-1) [e](other.md#thrice)\n"
        "[f](gone.md)\n"
        '![g](gone.png) <img src="gone.svg"> [h](https://example.com) `[i](gone.py)`\n```\n[j](gone.txt)\n```\n'
    )

    assert _broken(page) == ["#tilte", "other.md#thrice", "gone.md", "gone.png", "gone.svg"]

"""Links out of docs/: in the site, a file of the repository that a page links to is a page of its own.

In the repository such a link leads to the file itself, and on the site there is no file outside docs/. So the files
that are linked to become pages below ``repository/``, and the links lead there. A link to nothing stays as it is, and
MkDocs, which is strict, refuses it. ``llms.txt`` is part of the site too, with links to its pages.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[2]
BELOW = "repository"
LLMS = "llms.txt"
_LINK = re.compile(r"(\]\()([^)#:\s]+)(#[^)\s]*)?\)")
_IMAGE = re.compile(r'(<img src=")([^":]+)(?=")')
_FENCE = re.compile(r"^```.*?^```", re.M | re.S)
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".json": "json", ".service": "ini"}


def on_files(files: Files, config: Any) -> Files:
    """Adds a page for each file outside docs/ that a page links to, and for those that these link to."""
    found: set[str] = set()
    new = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    new[LLMS] = (ROOT / LLMS).read_text()
    files.append(File.generated(config, LLMS, content=_LINK.sub(_html_link, new[LLMS])))
    while new:
        targets = {target for place, text in new.items() for target in _outside(place, text)} - found
        for target in sorted(targets):
            page, text = _page_of(target), _as_page(target)
            files.append(File.generated(config, page, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
        # Read as they are in the repository: on the site their links lead elsewhere.
        new = {target: (ROOT / target).read_text() for target in targets if target.endswith(".md")}
        found |= targets
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    place = page.file.src_uri
    return _LINK.sub(lambda link: _site_link(place, link), markdown) if not page.file.generated_by else markdown


def _outside(page: str, text: str) -> set[str]:
    """The files and folders outside docs/ that a page of the repository links to."""
    targets = {_target(page, link[2]) for link in _LINK.finditer(_FENCE.sub("", text))}
    return {each for each in targets if not each.startswith(("docs/", "../")) and (ROOT / each).exists()}


def _target(page: str, link: str) -> str:
    return os.path.normpath(PurePosixPath(page).parent / link)


def _page_of(target: str) -> str:
    is_page = target.endswith(".md")
    return f"{BELOW}/{target}" if is_page else f"{BELOW}/{target}.md"


def _as_page(target: str) -> str:
    """A file in a fence, a folder as a list, or a page with its links led to where they are on the site."""
    path, hidden = ROOT / target, "---\nsearch:\n  exclude: true\n---\n\n"
    if path.is_dir():
        names = sorted(each.relative_to(path).as_posix() for each in path.rglob("*") if each.is_file())
        listed = "\n".join(f"- `{name}`" for name in names if "__pycache__" not in name)
        return f"{hidden}# {target}\n\n{listed}\n"
    text = path.read_text()
    if path.suffix != ".md":
        return f"{hidden}# {target}\n\n````{_LANGUAGES.get(path.suffix, 'text')}\n{text}````\n"
    text = _IMAGE.sub(lambda image: image[1] + _moved(target, image[2]), text)
    return _LINK.sub(lambda link: f"{link[1]}{_moved(target, link[2])}{link[3] or ''})", text)


def _site_link(place: str, link: re.Match[str]) -> str:
    """A link of a page in docs/: to the page of a file outside, or as it is."""
    target = _target(f"docs/{place}", link[2])
    if target.startswith(("docs/", "../")) or not (ROOT / target).exists():
        return link[0]
    return f"{link[1]}{_relative(f'docs/{place}', f'docs/{_page_of(target)}')}{link[3] or ''})"


def _moved(page: str, link: str) -> str:
    """A link of a page outside docs/, which on the site is below ``repository/``."""
    target = _target(page, link)
    there = target if target.startswith("docs/") else f"docs/{_page_of(target)}"
    return _relative(f"docs/{_page_of(page)}", there)


def _html_link(link: re.Match[str]) -> str:
    """A link of a text file at the top of the site: MkDocs leads none of its links to the built pages."""
    path = link[2].removeprefix("docs/") if link[2].startswith("docs/") else _page_of(link[2])
    path = re.sub(r"(^|/)README\.md$", r"\1index.md", path)  # as MkDocs names it
    return f"{link[1]}{re.sub(r'[.]md$', '.html', path)})"


def _relative(page: str, target: str) -> str:
    return os.path.relpath(target, PurePosixPath(page).parent)

"""`make docs` refuses a site with a link that leads nowhere, or whose files load anything from other hosts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from checks.site import loaded_from_elsewhere, missing

ROOT = Path(__file__).parents[2]

LOADING = {
    "a script": '<script src="https://cdn.example.com/a.js"></script>',
    "a script of either scheme": "<script async src=//cdn.example.com/a.js></script>",
    "a style": '<link rel="stylesheet" href="https://cdn.example.com/a.css">',
    "a font": '<link rel="preload" as="font" href="https://fonts.example.com/a.woff2">',
    "a preconnect": '<link href="https://fonts.example.com" rel="preconnect" crossorigin>',
    "an image": '<p><img alt="build" src="https://badges.example.com/a.svg"></p>',
    "one of several images": '<img src="a.png" srcset="a.png 1x, https://cdn.example.com/b.png 2x">',
    "a frame": '<iframe src="https://video.example.com/1"></iframe>',
    "a film": '<video poster="https://cdn.example.com/a.png"><source src="a.mp4"></video>',
    "an object": '<object data="https://cdn.example.com/a.svg"></object>',
    "an icon": '<svg><use href="https://cdn.example.com/icons.svg#a"/></svg>',
    "a style in the page": "<style>@import 'https://cdn.example.com/a.css';</style>",
    "a style of an element": '<p style="background: url(https://cdn.example.com/a.png)">',
    "a diagram that the theme draws": '<pre class="mermaid"><code>graph TD</code></pre>',
    "the figures of a repository": '<a class="md-source" data-md-component="source" href="https://github.com/a/b">',
}
STYLES = {
    "a font": '@font-face { src: url("https://fonts.example.com/a.woff2") }',
    "an image": "p { background: url(//cdn.example.com/a.png) }",
    "another style": '@import "https://cdn.example.com/a.css";',
}


@pytest.mark.parametrize("what", LOADING)
def test_a_page_that_loads_from_another_host_is_refused(what: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(f"<!doctype html><title>Dray</title>{LOADING[what]}")

    (found,) = loaded_from_elsewhere(tmp_path)

    assert found.startswith("page.html: ")


@pytest.mark.parametrize("what", STYLES)
def test_a_style_that_loads_from_another_host_is_refused(what: str, tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "style.css").write_text(STYLES[what])

    (found,) = loaded_from_elsewhere(tmp_path)

    assert found.startswith("assets/style.css: ")


def test_links_that_are_followed_and_code_that_is_shown_load_nothing(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<script src="assets/a.js"></script><link rel="stylesheet" href="../a.css"><img src="a.png">'
        '<a href="https://www.sqlite.org/wal.html">WAL</a>'
        "<code>&lt;img src=&quot;https://example.com/a.png&quot;&gt; @import 'https://example.com/a.css'</code>"
    )
    (tmp_path / "style.css").write_text("p { background: url(a.png) } /* https://example.com */")

    assert list(loaded_from_elsewhere(tmp_path)) == []


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the repository, with the environment of `make docs`."""
    ready = ROOT / ".venv-docs" / "ready"
    if not ready.exists() or ready.stat().st_mtime < (ROOT / "pyproject.toml").stat().st_mtime:
        pytest.skip("the site cannot be built: run make docs, which installs what it needs")
    for entry in ROOT.iterdir():
        if entry.name not in {"docs", "site", ".git"}:
            (tmp_path / entry.name).symlink_to(entry)
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_links_that_lead_nowhere_fail_the_build(copy: Path) -> None:
    with (copy / "docs" / "index.md").open("a") as page:
        page.write("\n[a](nowhere.md) [b](reference/states.md#nowhere) [c](#nothing) ![d](images/nothing.png)\n")

    done = subprocess.run(["make", "docs"], cwd=copy, capture_output=True, text=True, timeout=600, check=False)

    assert done.returncode != 0
    refused = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    for target in ("nowhere.md", "states.md#nowhere", "#nothing", "nothing.png"):
        assert [line for line in refused if target in line], done.stderr
    assert len(refused) == 4, done.stderr


def test_files_that_the_site_names_and_lacks_are_refused(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<img src="there.png"><img src="gone.png"><a href="page.html#a">a</a><a href="gone.html?q#b">b</a>'
        '<a href="https://example.com/gone">c</a><a href="#top">d</a>'
    )
    (tmp_path / "there.png").touch()
    (tmp_path / "llms.txt").write_text("- [one](page.html)\n- [two](two.html)\n")

    assert list(missing(tmp_path)) == ["page.html: gone.png", "page.html: gone.html", "llms.txt: two.html"]

    (tmp_path / "llms.txt").unlink()
    assert "llms.txt: llms.txt" in list(missing(tmp_path))

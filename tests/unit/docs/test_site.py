"""The documentation site says what GitHub shows, every link of it leads somewhere, and it loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from docs.page import ROOT
from docs.site import SiteError, build
from markdown_it import MarkdownIt

#: Elements by which a paragraph that became a list, or a table that became text, shows.
_BLOCKS = {"blockquote", "code", "h1", "h2", "h3", "h4", "img", "li", "ol", "pre", "strong", "td", "th", "ul"}
_CONFIGURATION = """[project]
site_name = "Site"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
nav = ["README.md", { "More" = ["docs/page.md"] }]
[[project.extra.social]]
link = "https://example.org/repository"
icon = "fontawesome/brands/github"
[project.markdown_extensions]
attr_list = {}
tables = {}
toc.permalink = true
"""


@dataclass
class Html(HTMLParser):
    """What a page has: text and elements, of the article alone where there is one; anchors and addresses, of the whole page."""

    html: str
    text: str = ""
    blocks: Counter[str] = field(default_factory=Counter)
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._is_inside = "<article" not in self.html
        self._is_permalink = False
        self.feed(self.html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors.add(values.get("id", ""))
        self._is_inside |= tag == "article"
        self._is_permalink = values.get("class") == "headerlink"
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif "src" in values or tag == "link":
            self.loads.append(values.get("src") or values["href"])
        if self._is_inside and tag in _BLOCKS:
            self.blocks[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._is_inside &= tag != "article"
        self._is_permalink = False

    def handle_data(self, data: str) -> None:
        if self._is_inside and not self._is_permalink:
            self.text += "".join(data.split())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Html]:
    """By path in the site."""
    return {file.relative_to(site): Html(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")}


def test_every_page_says_what_github_shows(pages: dict[Path, Html]) -> None:
    markdown = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    compared = 0
    for path, page in pages.items():
        source = ROOT / path.with_suffix(".md")
        if path.stem == "index" and not source.exists():
            source = source.with_name("README.md")
        if path != Path("404.html"):
            wanted = Html(markdown.render(source.read_text(encoding="utf-8")))
            assert page.text == wanted.text, path
            assert page.blocks == wanted.blocks, path
            compared += 1
    assert compared > 40


def test_every_link_leads_somewhere(site: Path, pages: dict[Path, Html]) -> None:
    for path, page in pages.items():
        if path == Path("404.html"):  # its links begin at the root of the server
            continue
        for link in page.links:
            if re.match(r"(https?|mailto):", link):
                continue
            target, _, anchor = unquote(link).partition("#")
            file = (site / path.parent / target).resolve() if target else site / path
            file = file / "index.html" if file.is_dir() else file
            assert file.is_file(), f"{path}: {link}"
            if anchor and file.suffix == ".html":
                assert anchor in pages[file.relative_to(site)].anchors, f"{path}: {link}"


def test_links_to_code_lead_to_the_repository(pages: dict[Path, Html]) -> None:
    address = "https://github.com/triptych-ai/triptych"
    out = [link for page in pages.values() for link in page.links if link.startswith(f"{address}/")]
    assert len(out) > 300
    for link in out:
        kind, _, path = link.removeprefix(f"{address}/").partition("/main/")
        file = ROOT / unquote(path.partition("#")[0])
        assert kind == ("tree" if file.is_dir() else "blob"), link
        assert file.exists(), link


def test_pages_load_nothing_from_elsewhere(site: Path, pages: dict[Path, Html]) -> None:
    loads = {load for page in pages.values() for load in page.loads}
    assert len(loads) > 10
    assert [load for load in loads if re.match(r"[a-z]+:|//", load)] == []
    assert not any(re.search(r"url\(['\"]?(https?:)?//", file.read_text(encoding="utf-8")) for file in site.rglob("*.css"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small repository."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "a file.py").touch()
    (tmp_path / "zensical.toml").write_text(_CONFIGURATION)
    (tmp_path / "README.md").write_text("# Title\n\n[page](docs/page.md#twice-1)\n")
    (tmp_path / "docs" / "page.md").write_text("# Page\n\n## Twice\n\n## Twice\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


def built(root: Path, markdown: str) -> str:
    (root / "docs" / "page.md").write_text(f"# Page\n\n## Twice\n\n## Twice\n\n{markdown}\n")
    (root / "build").mkdir()
    return (build(root, root / "build") / "docs" / "page.html").read_text(encoding="utf-8")


def test_what_the_copies_change(root: Path) -> None:
    html = built(root, "[a](<../services/a%20file.py#L1>) [b](../services)\n\n| a | b |\n|---|---|\n| `<\\|x\\|>` | c |\n")
    assert 'href="https://example.org/repository/blob/main/services/a%20file.py#L1"' in html
    assert 'href="https://example.org/repository/tree/main/services"' in html
    assert "<code>&lt;|x|&gt;</code>" in html


@pytest.mark.parametrize("link", ["nowhere.md", "../services/gone.py", "../pictures/gone.png", "../../elsewhere.md"])
def test_a_link_to_no_file_ends_the_build(root: Path, link: str) -> None:
    with pytest.raises(SiteError, match=f"docs/page.md: {link}: no such file"):
        built(root, f"[a]({link})")


@pytest.mark.parametrize("link", ["../README.md#nowhere", "#twice-2"])
def test_an_unknown_anchor_ends_the_build(root: Path, link: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SiteError, match="the pages have the problems above"):
        built(root, f"[a]({link})")
    assert "anchor does not exist" in capfd.readouterr().err


def test_a_page_outside_of_the_navigation_is_refused(root: Path) -> None:
    (root / "docs" / "lost.md").write_text("# Lost\n")
    with pytest.raises(SiteError, match=r"docs/lost.md is not in the navigation of zensical.toml"):
        build(root, root)


def test_a_page_that_is_not_there_is_refused(root: Path) -> None:
    (root / "docs" / "page.md").unlink()
    with pytest.raises(SiteError, match=r"zensical.toml: docs/page.md: no such file"):
        build(root, root)

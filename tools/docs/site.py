"""Builds the documentation site in build/site from the Markdown of this repository, without a network: `python -m tools.docs.site`.

The Markdown stays what GitHub shows. Zensical reads copies in build/pages, which differ from it in three ways:

- a link to what is no page leads to the repository;
- a heading names its anchor, the one that GitHub makes, so that links work in both places;
- a bar in a table's code is not escaped, because Zensical's parser keeps the backslash.

The navigation of zensical.toml names the pages. A page of docs/ that it does not name is refused.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from .links import code, headings, links, markdown_files
from .page import ROOT

_CONFIGURATION = "zensical.toml"
_IMAGES = {".jpeg", ".png", ".svg"}


class SiteError(Exception):
    """The site cannot be built; the message says why."""


@dataclass(frozen=True)
class Site:
    """What of the repository is in the site.

    Attributes:
        root: the repository.
        pages: Markdown files, relative to the root.
        copies: directory in which Zensical reads the pages and their images.
        address: the repository's on the web.
    """

    root: Path
    pages: frozenset[Path]
    copies: Path
    address: str


def build(root: Path, out: Path) -> Path:
    """Build the site.

    Args:
        root: the repository, with zensical.toml.
        out: directory for the copies and the site, which are replaced.

    Returns:
        The directory of the site.

    Raises:
        SiteError: a page of docs/ is not in the navigation, a link leads to no file, or Zensical warned, e.g. of an anchor.
    """
    project = tomllib.loads((root / _CONFIGURATION).read_text(encoding="utf-8"))["project"]
    site = Site(root.resolve(), frozenset(_pages(project["nav"])), out / project["docs_dir"], project["extra"]["social"][0]["link"])
    for file in markdown_files(root):
        if file.parts[0] == "docs" and file not in site.pages:
            raise SiteError(f"{file} is not in the navigation of {_CONFIGURATION}")
    pages = sorted(site.pages)
    for page in pages:
        if not (root / page).is_file():
            raise SiteError(f"{_CONFIGURATION}: {page}: no such file")
    for directory in (site.copies, out / project["site_dir"]):
        shutil.rmtree(directory, ignore_errors=True)
    for page in pages:
        copy = site.copies / page
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(_converted(site, page), encoding="utf-8")
    shutil.copy(Path(__file__).with_suffix(".css"), site.copies)
    shutil.copy(root / _CONFIGURATION, out)
    if subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=out).returncode:
        raise SiteError("the pages have the problems above")
    return out / project["site_dir"]


def _pages(entry: Any) -> Iterator[Path]:
    """The files that a part of the navigation names."""
    if isinstance(entry, str):
        yield Path(entry)
        return
    for part in entry.values() if isinstance(entry, dict) else entry:
        yield from _pages(part)


def _converted(site: Site, page: Path) -> str:
    """The Markdown of a page as Zensical reads it. The page's images are copied."""
    text = (site.root / page).read_text(encoding="utf-8")
    changes = [(heading.end(1), heading.end(1), f" {{ #{anchor} }}") for heading, anchor in headings(text)]
    changes += [(*link.span(1), _destination(site, page, link[1])) for link in links(text)]
    for span in code(text):
        if text.startswith("|", text.rfind("\n", 0, span.start()) + 1):
            changes.append((*span.span(), span[0].replace(r"\|", "|")))
    for start, end, replacement in sorted(changes, reverse=True):
        text = text[:start] + replacement + text[end:]
    return text


def _destination(site: Site, page: Path, target: str) -> str:
    """Where a link of a page leads in the site. An image is copied there.

    Raises:
        SiteError: the link leads to no file of the repository.
    """
    path, mark, anchor = target.partition("#")
    file = (site.root / page.parent / unquote(path)).resolve()
    if not path or ":" in path:
        return target
    if not file.is_relative_to(site.root) or not file.exists():
        raise SiteError(f"{page}: {target}: no such file")
    relative = file.relative_to(site.root)
    if relative in site.pages:
        return target
    if file.suffix in _IMAGES:
        copy = site.copies / relative
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
        return target
    return f"{site.address}/{'tree' if file.is_dir() else 'blob'}/main/{quote(relative.as_posix())}{mark}{anchor}"


def main() -> None:
    """Build the site, or exit with what is wrong."""
    out = ROOT / "build"
    out.mkdir(exist_ok=True)
    try:
        print(f"{build(ROOT, out).relative_to(ROOT)}/index.html")
    except SiteError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

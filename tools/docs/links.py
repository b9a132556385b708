"""Checks every reference in the Markdown files of this repository, offline: `python -m tools.docs.links`.

Three kinds of reference are checked:

- relative links and images, with their anchors. Anchors follow GitHub's rules for headings.
- paths in code, such as `services/triptych_engine/core.py`: the file must exist. `*` and `{a,b}` are allowed.
- names beside a path, written `path.py`: `Class.method`, `function`: the file must contain each of them.

Addresses of the web are not checked, because that needs a network.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import unquote

_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*<?([^\s<>)]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?([^\s<>]+)>?", re.MULTILINE)
_HTML_LINK = re.compile(r"<[^>]*\b(?:href|src|srcset)=\"([^\"]+)\"")
_HTML_ANCHOR = re.compile(r"<[^>]*\b(?:id|name)=\"([^\"]+)\"")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,}).*?^ {0,3}\1[`~]*\s*$", re.MULTILINE | re.DOTALL)
#: Code ends before the next paragraph, and before the next row of a table.
_CODE = re.compile(r"(?<!`)(`+)(?!`)((?:(?!\n[ \t]*\n|\n\|).)+?)(?<!`)\1(?!`)", re.DOTALL)
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.*?)[ \t]*#*[ \t]*$", re.MULTILINE)
_PATH = re.compile(r"(?:benchmarks|cli|docs|examples|gateway|protos|services|tests|tools)/[\w./{},*-]+")
#: A path in code or in a link, a colon, and names in code.
_NAMED = re.compile(r"(?:\]\(([^)\s]+)\)|`([^`\s]+\.\w+)`):((?:,? `[A-Za-z_][\w.]*`)+)")


@dataclass(frozen=True)
class Problem:
    """A broken reference."""

    file: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


def markdown_files(root: Path) -> list[Path]:
    """The Markdown files that git tracks, or would track, relative to the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md"]
    output = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return [Path(line) for line in output.splitlines() if (root / line).is_file()]


def problems(root: Path, files: list[Path]) -> list[Problem]:
    """The broken references of these files, in order.

    Args:
        root: the repository. No link may lead outside of it.
        files: relative to the root.
    """
    return [problem for file in files for problem in _problems_of(root.resolve(), file)]


def _problems_of(root: Path, file: Path) -> Iterator[Problem]:
    text = (root / file).read_text(encoding="utf-8")
    prose = _blanked(text, _FENCE)
    found = [(match.start(), _link_problem(root, file, unquote(match[1]))) for match in links(text)]
    for match in code(text):
        found.append((match.start(), _path_problem(root, match[2])))
    for match in _NAMED.finditer(prose):
        found.append((match.start(), _name_problem(root, file, match[1], match[2], match[3])))
    for start, message in sorted(found):
        if message:
            yield Problem(file, text.count("\n", 0, start) + 1, message)


def links(text: str) -> Iterator[re.Match[str]]:
    """The links and images of a page, outside of code; the first group is the target."""
    prose = _blanked(_blanked(text, _FENCE), _CODE)
    for pattern in (_LINK, _DEFINITION, _HTML_LINK):
        yield from pattern.finditer(prose)


def code(text: str) -> Iterator[re.Match[str]]:
    """Code in the prose of a page; the second group is what the backticks enclose."""
    return _CODE.finditer(_blanked(text, _FENCE))


def _blanked(text: str, pattern: re.Pattern[str]) -> str:
    """The text with all matches replaced by spaces, so that positions do not change."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _link_problem(root: Path, file: Path, target: str) -> str:
    """The problem with a link; empty if there is none."""
    if re.match(r"[a-z][a-z0-9+.-]*:|//", target, re.IGNORECASE):
        return ""
    path, _, anchor = target.partition("#")
    if path.startswith("/"):
        return f"{target}: an absolute path works on no machine but one"
    destination = (root / file.parent / path).resolve() if path else root / file
    if not destination.is_relative_to(root) or not destination.exists():
        return f"{target}: no such file"
    if anchor and destination.suffix == ".md" and anchor not in anchors(destination):
        return f"{target}: no heading of that name"
    return ""


def _path_problem(root: Path, code: str) -> str:
    """The problem with a path in code; empty if it is not a path or the path exists."""
    if not _PATH.fullmatch(code):
        return ""
    missing = [path for path in _expanded(code) if not any(root.glob(path.rstrip("/")))]
    return f"`{missing[0]}`: no such file" if missing else ""


def _name_problem(root: Path, file: Path, link: str, code: str, names: str) -> str:
    """The problem with the names beside a path; empty if the file has all of them or is not in the repository."""
    path = (root / file.parent / link.partition("#")[0]).resolve() if link else root / code
    if not path.is_file():
        return ""
    words = set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    for name in re.findall(r"[\w.]+", names):
        if not words.issuperset(name.split(".")):
            return f"`{name}` is not in {link or code}"
    return ""


def _expanded(pattern: str) -> list[str]:
    """Brace expansion: `a/{b,c}.py` becomes `a/b.py` and `a/c.py`."""
    parts = [part.split(",") for part in re.split(r"[{}]", pattern)]
    # Commas separate alternatives only inside braces.
    choices = [part if number % 2 else [",".join(part)] for number, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*choices)]


@cache
def anchors(file: Path) -> frozenset[str]:
    """The anchors of a Markdown file: those that GitHub makes from headings, and those given in HTML."""
    text = file.read_text(encoding="utf-8")
    return frozenset(_html_anchors(text).union(anchor for _, anchor in headings(text)))


def headings(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """The headings of a page, whose first group is the text, and the anchor that GitHub makes from each."""
    taken = _html_anchors(text)
    for heading in _HEADING.finditer(_blanked(text, _FENCE)):
        # For a link take its text, for code take its content.
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        anchor = next(name for name in (_numbered(slug, number) for number in itertools.count()) if name not in taken)
        taken.add(anchor)
        yield heading, anchor


def _html_anchors(text: str) -> set[str]:
    return set(_HTML_ANCHOR.findall(_blanked(text, _FENCE)))


def _numbered(slug: str, number: int) -> str:
    return f"{slug}-{number}" if number else slug


def main() -> None:
    root = Path(__file__).resolve().parents[2]
    files = markdown_files(root)
    found = problems(root, files)
    for problem in found:
        print(problem)
    if found:
        sys.exit(f"{len(found)} broken references in {len({problem.file for problem in found})} files")
    print(f"references of {len(files)} Markdown files checked")


if __name__ == "__main__":
    main()

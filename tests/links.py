"""What leads from page to page: links to files of the project and to headings, and the navigation of the site."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BLOCK = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
_TARGET = re.compile(r"\]\(<?([^)>\s]*)>?[^)]*\)|^ *\[[^\]]+\]: *(\S+)", re.MULTILINE)
_ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:")
_HEADING = re.compile(r"^ {0,3}#{1,6} +(.+?)(?: +#+)? *$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Link:
    """As it is written, the file that it leads to, which may be the page itself, and the heading, which may be none."""

    written: str
    file: Path
    anchor: str


def links(page: Path) -> Iterator[Link]:
    """Those that lead to no other host, in a Markdown file; what stands in code is not a link."""
    text = _CODE.sub("", _BLOCK.sub("", page.read_text()))
    for match in _TARGET.finditer(text):
        written = match[1] or match[2] or ""
        if not _ELSEWHERE.match(written):
            path, _, anchor = written.partition("#")
            yield Link(written, (page.parent / path).resolve() if path else page.resolve(), anchor)


def anchor(title: str) -> str:
    """The name that a forge gives to a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def anchor_of_site(title: str) -> str:
    """The name that mkdocs gives to a heading."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def anchors(page: Path) -> set[str]:
    """Of the headings that have the same name on a forge and on the site. Of several with one title, only the first
    has: the others are numbered, and not in the same way."""
    headings = _HEADING.findall(_BLOCK.sub("", page.read_text()))
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {anchor(title) for title in titles if anchor(title) == anchor_of_site(title)}


def navigated(nav: Any) -> Iterator[str]:
    """The paths in the `nav` of mkdocs.yml, from the first to the last: a path, or a list or mapping of more."""
    if isinstance(nav, str):
        yield nav
    elif nav:
        for inner in nav.values() if isinstance(nav, dict) else nav:
            yield from navigated(inner)

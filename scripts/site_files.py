"""Hooks of mkdocs: the site has the layout of the repository, so a link that works in one works in the other.

Pages are those of docs/, those that the navigation names, and those that they link to. Any other file that a page links
to, such as a source file, is copied as it is. No page loads anything from another host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tests.links import links, navigated

ROOT = Path(__file__).parent.parent
_LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\s(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)")


def reached(files: Iterable[Path]) -> set[Path]:
    """These files and all that their links lead to, over any number of pages. What does not exist is left to mkdocs."""
    found: set[Path] = set()
    waiting = list(files)
    while waiting:
        file = waiting.pop()
        if file.is_file() and file not in found:
            found.add(file)
            waiting += [link.file for link in links(file)] if file.suffix == ".md" else []
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    named = [ROOT / name for name in navigated(config.nav)]
    pages = list(Path(config.docs_dir).rglob("*.md"))  # also one that the navigation forgot, so that mkdocs says so
    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    for path in sorted(reached([*named, *pages])):
        name = path.relative_to(ROOT).as_posix()
        files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> None:
    if loaded := _LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads {loaded[1]}: nothing may come from another host")

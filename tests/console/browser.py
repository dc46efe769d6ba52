"""A real browser that a test drives, and what must hold on every page: no error, no request to elsewhere, and nothing
that keeps people from using it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect, sync_playwright

EXECUTABLE = "/usr/bin/chromium-headless-shell"
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
VENDOR = Path(__file__).parent / "vendor"
DESKTOP = ViewportSize(width=1280, height=800)
PHONE = ViewportSize(width=390, height=844)
NOTHING = "(?!)"
GONE = "net::ERR_|htmx:sse:error|status of 503"
"""How the browser, and htmx, say that a server could not be reached."""
OF_COLOURS = ("color-contrast", "link-in-text-block")
"""The rules of axe that depend on colours, of those that it runs unless it is told otherwise."""
PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def running_browser() -> Iterator[Browser]:
    assert Path(EXECUTABLE).exists(), "the tests need Debian's Chromium: apt-get install chromium-headless-shell"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=EXECUTABLE, args=[*FLAGS])
        yield browser
        browser.close()


class Visitor:
    """One person's browser at one console. `troubles` is what no page may do."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.url = url
        self.troubles: list[str] = []
        self.expected = NOTHING
        """What the browser may say about requests that this test lets fail."""
        self.context: BrowserContext = browser.new_context(viewport=DESKTOP, timezone_id="Asia/Tokyo", **options)
        self.context.on("request", lambda request: self._is_ours(request.url))
        self.page = self.new_page()

    def new_page(self) -> Page:
        page = self.context.new_page()
        page.on("console", lambda said: self._said(said.type, said.text))
        page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        return page

    def open(self, path: str = "/") -> Page:
        self.page.goto(f"{self.url}/console{path}")
        return self.page

    def _is_ours(self, url: str) -> None:
        if urlsplit(url).netloc != urlsplit(self.url).netloc and not url.startswith(("data:", "blob:")):
            self.troubles.append(f"a request to elsewhere: {url}")

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not re.search(self.expected, text):
            self.troubles.append(f"{kind}: {text}")


@cache
def _axe() -> str:
    return (VENDOR / "axe.min.js").read_text()


def violations(page: Page) -> list[str]:
    """What axe finds against WCAG 2.2 AA, and against good practice."""
    page.evaluate(_axe())
    return _found(page)


def dark_violations(page: Page) -> list[str]:
    """What axe finds once the page is dark, where it has found nothing before: a theme changes nothing but colours."""
    page.emulate_media(color_scheme="dark")
    page.evaluate("document.getAnimations().forEach(each => each.finish())")
    found = _found(page, runOnly=OF_COLOURS)
    page.emulate_media(color_scheme="light")
    return found


def _found(page: Page, **options: Any) -> list[str]:
    """Style sheets and media are not loaded once more. Only rules for turned screens, which axe does not run unless it
    is told to, and for sound, which the pages may not load, would look at them."""
    options = {"resultTypes": ["violations"], "preload": False} | options
    found = page.evaluate("options => axe.run(document, options)", options)["violations"]
    return [f"{each['id']}: {each['help']}: {node['html'][:200]}" for each in found for node in each["nodes"]]


def is_too_wide(page: Page) -> bool:
    """Whether the page has to be scrolled sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))

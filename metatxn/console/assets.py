"""The files that pages refer to: style, scripts, the typeface. All of them come from here, and from no other host.

What others have written is in `static/vendor`, with its licence. `vendored.json` says from which package it is, and the
hash that the browser compares.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Any

from starlette.responses import Response

_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_FOREVER = "public, max-age=31536000, immutable"
"""Each version of a file has a URL of its own."""


@dataclass(frozen=True, slots=True)
class Asset:
    url: str
    content: bytes
    media_type: str
    integrity: str | None = None

    def response(self) -> Response:
        return Response(self.content, media_type=self.media_type, headers={"Cache-Control": _FOREVER})


class Assets:
    """All files, in memory: they are few and small."""

    def __init__(self) -> None:
        package = files("metatxn.console")
        vendored: list[dict[str, Any]] = json.loads((package / "vendored.json").read_text())
        integrity = {each["file"]: each["integrity"] for each in vendored}
        self._assets: dict[str, Asset] = {}
        for directory in (package / "static", package / "static" / "vendor"):
            for found in directory.iterdir():
                kind = _KINDS.get("." + found.name.rpartition(".")[2])
                if kind is not None:
                    self._assets[found.name] = _asset(found.name, found.read_bytes(), kind, integrity.get(found.name))

    def get(self, name: str) -> Asset | None:
        return self._assets.get(name)

    def __getitem__(self, name: str) -> Asset:
        return self._assets[name]


def _asset(name: str, content: bytes, kind: str, integrity: str | None) -> Asset:
    version = sha256(content).hexdigest()[:12]
    return Asset(f"/console/static/{name}?v={version}", content, kind, integrity)

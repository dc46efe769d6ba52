"""Somebody who sends the forms of the console without a browser, as it should be done or not."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Self

import httpx

_FORM_TOKEN = re.compile('name="form_token" value="([0-9a-f]+)"')


class Sender:
    def __init__(self, url: str, token: str | None = None) -> None:
        # Nothing here is TLS; reading the certificates of all authorities takes as long as a page.
        self._http = httpx.Client(base_url=url, headers={"sec-fetch-site": "same-origin"}, verify=False)
        self.form_token = self._read("/console/sign-in")
        if token is not None:
            assert self.post("/sign-in", token=token).status_code == 303
            self.form_token = self._read("/console/transactions")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str) -> httpx.Response:
        return self._http.get(f"/console{path}")

    def first_event(self, url: str) -> str:
        """The beginning of what a live page shows first."""
        with self._http.stream("GET", url, headers={"accept": "text/event-stream"}) as answer:
            return next(answer.iter_text())

    def post(self, path: str, **fields: str | list[str]) -> httpx.Response:
        return self._http.post(f"/console{path}", data={"form_token": self.form_token, **fields})

    def _read(self, path: str) -> str:
        found = _FORM_TOKEN.search(self._http.get(path).raise_for_status().text)
        assert found is not None
        return found[1]

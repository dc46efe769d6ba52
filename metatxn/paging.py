"""Results that come page by page, and are iterated over item by item."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from metatxn.answers import json_of, parsed_part
from metatxn.connection import Connection
from metatxn.http import Call, Endpoint

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Paged(ABC, Generic[T]):
    """`page` requests a page, and `passed` moves on to the next. A page that was not finished is requested again."""

    @abstractmethod
    async def page(self) -> Iterable[T] | None:
        """The items after those already passed, or None at the end."""

    @abstractmethod
    def passed(self) -> None:
        """All items of the last page have been returned."""

    async def __aiter__(self) -> AsyncIterator[T]:
        while (items := await self.page()) is not None:
            for item in items:
                yield item
            self.passed()


class Listing(Paged[M]):
    """A list of a service, in pages as the conventions in docs/contract.md describe them."""

    def __init__(
        self, connection: Connection, endpoint: Endpoint, path: str, params: Mapping[str, Any], item: type[M]
    ) -> None:
        self._connection = connection
        self._endpoint = endpoint
        self._path = path
        self._params = params
        self._item = item
        self._token: str | None = None
        self._next: str | None = None
        self._over = False

    async def page(self) -> list[M] | None:
        if self._over:
            return None
        call = Call("GET", self._path, {**self._params, "page_token": self._token})
        answer = await self._connection.http.request(self._endpoint, call)
        page = json_of(answer)
        self._next = page.get("next_page_token")
        return [parsed_part(self._item, found, answer) for found in page["items"]]

    def passed(self) -> None:
        self._token = self._next
        self._over = not self._next

    async def page_at(self, token: str | None) -> tuple[list[M], str | None]:
        """One page, for a caller that turns pages itself: the one that a token of an earlier page leads to, or the
        first, and the token of the next one, or None at the end."""
        self._token, self._over = token, False
        items = await self.page()
        return items or [], self._next

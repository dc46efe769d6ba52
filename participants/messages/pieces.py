"""Large entries in pieces, so that work on one on the event loop lets other tasks run in between.

A thread would not help, because parsing JSON and converting columns to Python values hold the interpreter's lock all
the time. A piece is bounded by its number of items and by its length, except for a single longer item.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
PIECE_ITEMS = 1_000
PIECE_CHARACTERS = 1 << 20
_WHITESPACE = " \t\n\r"
_ITEM = json.JSONDecoder()


async def in_turns(pieces: Iterable[T]) -> AsyncIterator[T]:
    """The same pieces, letting other tasks run after each."""
    for piece in pieces:
        yield piece
        await asyncio.sleep(0)


def is_one_piece(text: str) -> bool:
    """Whether the list in `text` needs no cutting: a list has at most one item more than commas. To find the ends of
    items they must be parsed, which costs half as much as the work on them."""
    return len(text) <= PIECE_CHARACTERS and text.count(",") < PIECE_ITEMS


def json_pieces(text: str) -> Iterator[str]:
    """JSON lists that together are the list in `text`. Raises `ValueError` or `RecursionError` if it is not a list."""
    start = at = _behind(text, _skipped(text, 0), "[")
    items, ended = 0, text[at : at + 1] == "]"
    if ended:
        yield "[]"
    while not ended:
        _, end = _ITEM.raw_decode(text, at)
        items, at = items + 1, _skipped(text, end)
        ended = text[at : at + 1] == "]"
        if not ended:
            at = _behind(text, at, ",")
        if ended or items >= PIECE_ITEMS or end - start >= PIECE_CHARACTERS:
            yield f"[{text[start:end]}]"
            start, items = at, 0
    if _skipped(text, at + 1) != len(text):
        raise ValueError(f"there is more text after the end of the list, at character {at + 1}")


def _skipped(text: str, at: int) -> int:
    while text[at : at + 1] in _WHITESPACE and at < len(text):
        at += 1
    return at


def _behind(text: str, at: int, sign: str) -> int:
    """The index after `sign`, which must be at `at`, and the white space that follows."""
    if text[at : at + 1] != sign:
        raise ValueError(f"no {sign!r} at character {at}")
    return _skipped(text, at + 1)

"""The answer to a read of a topic in batches: entries of several segments, as they are stored.

4 bytes   little-endian: the length of the head
head      a `PageHead` in JSON
frames    of one part after another (see `frames`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from metatxn.wire.frames import Frame, FrameError, decode_frames
from metatxn.wire.models import example

PAGE_MEDIA_TYPE = "application/vnd.metatxn.page"
_LENGTH_SIZE = 4


class PagePart(BaseModel):
    """Entries of one segment, in order: the next `bytes` bytes of frames. The first `skip` messages of the first entry
    were taken before."""

    segment: str
    bytes: int
    skip: int = 0


class PageHead(BaseModel):
    """The head of a page. The next read continues at `next`; `revision` is that of the snapshot. With `more` something
    more was readable when this was read."""

    model_config = example(
        parts=[{"segment": "segment://public/default/orders/0000-ffff-0", "bytes": 4096, "skip": 0}],
        next="W3sic2VnbWVudDovL3B1YmxpYy9kZWZhdWx0L29yZGVycy8wMDAwLWZmZmYtMCI6WyI3OjEyIiwwXX0sbnVsbF0",
        revision=None,
        more=False,
    )

    parts: list[PagePart]
    next: str
    revision: int | None = None
    more: bool = False


@dataclass(frozen=True, slots=True)
class PageEntry:
    """An entry without its first `skip` messages."""

    segment: str
    frame: Frame
    skip: int


def encode_head(head: PageHead) -> bytes:
    encoded = head.model_dump_json(exclude_defaults=True).encode()
    return len(encoded).to_bytes(_LENGTH_SIZE, "little") + encoded


def decode_page(body: bytes | bytearray | memoryview) -> tuple[PageHead, list[PageEntry]]:
    """The head and the entries of an answer. The payloads are views into the body. Raises `ValueError` for anything
    else."""
    view = memoryview(body).toreadonly()
    start = _LENGTH_SIZE + int.from_bytes(view[:_LENGTH_SIZE], "little")
    head = PageHead.model_validate_json(bytes(view[_LENGTH_SIZE:start]))
    frames = view[start:]
    if len(frames) != sum(part.bytes for part in head.parts):
        raise FrameError("the frames are not as long as the head says")
    return head, list(_entries(head.parts, frames))


def _entries(parts: Sequence[PagePart], frames: memoryview) -> Iterator[PageEntry]:
    at = 0
    for part in parts:
        skip = part.skip
        for frame in decode_frames(frames[at : at + part.bytes]):
            yield PageEntry(part.segment, frame, skip)
            skip = 0
        at += part.bytes

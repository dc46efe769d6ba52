"""Frames: how an entry looks in a ledger file and on the wire.

The format is public. Clients decode it, so a change needs a new format version. All numbers are unsigned and
little-endian, except the transaction id, whose 16 bytes are in the order of its hexadecimal text.

    offset  size  field
         0     4  length          number of bytes after the crc field
         4     4  crc             CRC-32 (the zlib one) of those `length` bytes
    ------------------------------------------------------------------------
         8     1  format version  1
         9     1  payload kind    0 opaque bytes, 1 Arrow IPC stream, 2 JSON list of messages,
                                 3 Kafka record batch (magic 2),    4 record batch of messages (see `batches`),
                                 5 entry of Pulsar's clients (see `pulsar_entries`)
        10     1  flags           1 txn id, 2 writer, 4 producer, 8 sequence; the other bits are zero
        11     4  count           messages (rows) in the payload
        15     8  publish time    milliseconds since the epoch
        23     8  ledger      |  the position: a frame knows where it belongs,
        31     8  entry       |  so it can never be served as another one
        39     8  durable         how many entries of this ledger were durable when this frame was written
        47    16  txn id          only with flag 1
         .     2  writer length   only with flag 2: bytes of UTF-8
         .     n  writer
         .     2  producer length only with flag 4: bytes of UTF-8
         .     n  producer
         .     8  sequence        only with flag 8
         .     .  payload         up to the end of the frame, at most 16 MiB

Frames follow each other without padding. A frame has exactly one encoding. An area of zero bytes, which a file system
may leave behind after a crash, is not a frame: `length` is at least 39.

`durable` is for recovery (see `recovery`): entries 0 to `durable` - 1 were on the device before the first byte of this
frame was written, so `durable` is at most `entry`. A frame of a later group thus proves that a damaged one was once
whole.

`docs/ledger-format.md` repeats the table for other programs and works through an example.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from metatxn.wire.crc import crc32
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position

FORMAT_VERSION = 1

_PREFIX = struct.Struct("<II")
_FIXED = struct.Struct("<BBBIQQQQ")
_U16 = struct.Struct("<H")
_U64 = struct.Struct("<Q")

_HAS_TXN, _HAS_WRITER, _HAS_PRODUCER, _HAS_SEQUENCE = 1, 2, 4, 8
_ALL_FLAGS = _HAS_TXN | _HAS_WRITER | _HAS_PRODUCER | _HAS_SEQUENCE
_TXN_BYTES = 16

MAX_PAYLOAD_BYTES = 16 << 20
MAX_NAME_BYTES = (1 << 16) - 1
MIN_FRAME_BYTES = _PREFIX.size + _FIXED.size
MAX_HEADER_BYTES = MIN_FRAME_BYTES + _TXN_BYTES + 2 * (_U16.size + MAX_NAME_BYTES) + _U64.size
MAX_FRAME_BYTES = MAX_PAYLOAD_BYTES + MAX_HEADER_BYTES

POSITION_OFFSET = 23
"""The offset of the position (ledger, entry) in a frame, which `durable` follows. Recovery searches for them."""

_ENTRY_IN_BODY = POSITION_OFFSET + _U64.size - _PREFIX.size
_DURABLE_IN_BODY = _ENTRY_IN_BODY + _U64.size


class PayloadKind(IntEnum):
    BYTES = 0
    ARROW = 1
    MESSAGES = 2
    KAFKA = 3
    BATCH = 4
    PULSAR = 5


HIGHEST_KIND = max(PayloadKind)


class FrameError(ValueError):
    """These bytes are not a whole frame."""


class CorruptFrame(FrameError):
    """No further bytes could make this a frame."""


class NewerFrame(CorruptFrame):
    """A whole frame in a form that this release does not know: a later one has written it."""


class IncompleteFrame(FrameError):
    """The bytes end before the frame does. `needed` is the size of the frame, counted from its own offset, as far as it
    is known."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"the frame needs {needed} bytes, and the buffer ends before that")
        self.needed = needed


NO_SEQUENCE = -1
"""A number below every sequence."""


class Behind(NamedTuple):
    """What a segment knows about a producer that numbers its messages itself: the highest sequence of its entries
    there, and of those that the segment has inherited. Each is `NO_SEQUENCE` if there is none."""

    own: int = NO_SEQUENCE
    inherited: int = NO_SEQUENCE


@dataclass(frozen=True, slots=True)
class Entry:
    """What is appended to a segment as one unit. `count` is the number of messages or rows in `payload`; the other
    fields say who sent it. With `behind` it is appended only if its producer has appended nothing else, and with
    `epoch` only while that is the one of the topic's exclusive producer. With `before_commit` its sender vouches that
    it was sent before anybody had committed its transaction (DESIGN §5.1). These three are not stored."""

    payload: bytes | memoryview
    kind: PayloadKind
    count: int
    txn_id: TxnId | None = None
    writer: str | None = None
    producer: str | None = None
    sequence: int | None = None
    behind: Behind | None = None
    epoch: int | None = None
    before_commit: bool = False

    @property
    def size(self) -> int:
        """The size of the payload in bytes, which `MAX_PAYLOAD_BYTES` limits."""
        return self.payload.nbytes if isinstance(self.payload, memoryview) else len(self.payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame(Entry):
    """An entry in its place. The `payload` of a decoded frame is a view into the buffer that it was decoded from."""

    position: Position
    publish_ms: int
    durable: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFrame(Frame):
    """A frame within `buffer`, which may hold others too: `buffer[start:end]` is the whole frame."""

    buffer: memoryview
    """The view that was peeked into: two frames lie side by side only if it is the same object."""
    start: int
    end: int

    @property
    def data(self) -> memoryview:
        return self.buffer[self.start : self.end]


def encode_frame(frame: Frame) -> bytes:
    """The bytes of `frame`. Raises the errors of `encode_parts`."""
    return b"".join(encode_parts(frame))


def encode_parts(frame: Frame) -> tuple[bytes, bytes | memoryview]:
    """The header and the payload of `frame`, in the order of the file; the payload is not copied.

    Raises `ValueError` if a field does not fit the format: a payload above `MAX_PAYLOAD_BYTES`, a name above
    `MAX_NAME_BYTES` or with a lone surrogate, a number that is negative or too large, a position that is only a bound,
    a `durable` above the entry, a payload that is not contiguous.
    """
    return finish(draft(frame, frame.position, frame.publish_ms), frame.payload, frame.durable), frame.payload


@dataclass(frozen=True, slots=True)
class Draft:
    """A frame whose fields fit the format, before its `durable` and its CRC are known."""

    body: bytes  # what lies between crc and payload, `durable` still zero
    size: int  # of the whole frame


def draft(entry: Entry, position: Position, publish_ms: int) -> Draft:
    """The frame of `entry` except `durable`, without reading the bytes of the payload. Raises the errors of
    `encode_parts`."""
    if isinstance(entry.payload, memoryview) and not entry.payload.c_contiguous:
        raise ValueError("a payload must be contiguous bytes")
    if entry.size > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a payload of {entry.size} bytes is above the limit of {MAX_PAYLOAD_BYTES}")
    flags, optional = _encode_optional(entry)
    try:
        fixed = _FIXED.pack(
            FORMAT_VERSION,
            PayloadKind(entry.kind),
            flags,
            entry.count,
            publish_ms,
            position.ledger,
            position.entry,
            0,
        )
    except struct.error as error:
        raise ValueError(f"a number of the frame is out of range: {error}") from error
    body = fixed + optional
    return Draft(body, _PREFIX.size + len(body) + entry.size)


def finish(draft: Draft, payload: bytes | memoryview, durable: int) -> bytes:
    """The header that completes a draft's frame. Raises `ValueError` for an impossible `durable`."""
    body = bytearray(draft.body)
    (entry,) = _U64.unpack_from(body, _ENTRY_IN_BODY)
    if not 0 <= durable <= entry:
        raise ValueError(f"entry {entry} cannot have been written after {durable} durable ones")
    _U64.pack_into(body, _DURABLE_IN_BODY, durable)
    crc = crc32(payload, crc32(body))
    return _PREFIX.pack(draft.size - _PREFIX.size, crc) + body


def _encode_optional(entry: Entry) -> tuple[int, bytes]:
    flags, parts = 0, b""
    if entry.txn_id is not None:
        flags |= _HAS_TXN
        parts += bytes.fromhex(str(entry.txn_id))
    if entry.writer is not None:
        flags |= _HAS_WRITER
        parts += _encode_name(entry.writer)
    if entry.producer is not None:
        flags |= _HAS_PRODUCER
        parts += _encode_name(entry.producer)
    if entry.sequence is not None:
        flags |= _HAS_SEQUENCE
        if not 0 <= entry.sequence < 1 << 64:
            raise ValueError(f"sequence {entry.sequence} is out of range")
        parts += _U64.pack(entry.sequence)
    return flags, parts


def _encode_name(name: str) -> bytes:
    raw = name.encode()
    if len(raw) > MAX_NAME_BYTES:
        raise ValueError(f"a name of {len(raw)} bytes is above the limit of {MAX_NAME_BYTES}")
    return _U16.pack(len(raw)) + raw


def peek(buffer: bytes | memoryview, offset: int = 0) -> RawFrame:
    """The frame at `offset`, after checking its CRC. Nothing is copied.

    Raises `IncompleteFrame` if the buffer ends before the frame, and `CorruptFrame` for anything else that is not a
    frame. It raises nothing else, whatever the bytes.
    """
    view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
    start, end = _bounds(view, offset)
    return RawFrame(**_decode_fields(view, start, end), buffer=view, start=start, end=end)


class FramePlace(NamedTuple):
    """Which frame it is, how many entries were durable when it was written, and where it ends in its buffer."""

    ledger: int
    entry: int
    durable: int
    end: int


def peek_place(view: memoryview, offset: int) -> FramePlace:
    """Like `peek`, for the same frames with the same errors, in a third of the time: for the scan of a whole ledger."""
    start, end = _bounds(view, offset)
    version, kind, flags, _, _, ledger, entry, durable = _FIXED.unpack_from(view, start + _PREFIX.size)
    known = version == FORMAT_VERSION and kind <= HIGHEST_KIND and not flags & ~_ALL_FLAGS
    if not known or durable > entry or not _fields_fit(view, flags, start + MIN_FRAME_BYTES, end):
        _decode_fields(view, start, end)  # which says what is wrong
    return FramePlace(ledger, entry, durable, end)


def _fields_fit(view: memoryview, flags: int, at: int, end: int) -> bool:
    """Whether the fields that these flags name, and a payload that is not too large, are between `at` and `end`. Raises
    `CorruptFrame` for a name that is not valid."""
    if flags & _HAS_TXN:
        at += _TXN_BYTES
    for name in (_HAS_WRITER, _HAS_PRODUCER):
        if flags & name:
            _, at = _decode_name(view, at, end)
    if flags & _HAS_SEQUENCE:
        at += _U64.size
    return at <= end <= at + MAX_PAYLOAD_BYTES


def _bounds(view: memoryview, offset: int) -> tuple[int, int]:
    """Where the frame at `offset` begins and ends, if its CRC matches."""
    assert 0 <= offset <= len(view), (offset, len(view))
    available = len(view) - offset
    if available < _PREFIX.size:
        raise IncompleteFrame(_PREFIX.size)
    length, crc = _PREFIX.unpack_from(view, offset)
    if not _FIXED.size <= length <= MAX_FRAME_BYTES - _PREFIX.size:
        raise CorruptFrame(f"a frame length of {length} bytes is impossible")
    if available < _PREFIX.size + length:
        raise IncompleteFrame(_PREFIX.size + length)
    start = offset + _PREFIX.size
    end = start + length
    if crc32(view[start:end]) != crc:
        raise CorruptFrame("the frame does not match its CRC")
    return offset, end


def _decode_fields(view: memoryview, start: int, end: int) -> dict[str, Any]:
    """The fields of a frame whose CRC matches. Whatever is wrong here was never written by `encode_frame`."""
    version, kind, flags, count, publish_ms, ledger, entry, durable = _FIXED.unpack_from(view, start + _PREFIX.size)
    if version != FORMAT_VERSION:
        raise NewerFrame(f"format version {version} is unknown")
    if kind > HIGHEST_KIND:
        raise NewerFrame(f"payload kind {kind} is unknown")
    if flags & ~_ALL_FLAGS:
        raise NewerFrame(f"flags {flags:#04x} are unknown")
    if durable > entry:
        raise CorruptFrame(f"entry {entry} cannot have been written after {durable} durable ones")
    at = start + MIN_FRAME_BYTES
    txn_id = writer = producer = sequence = None
    if flags & _HAS_TXN:
        txn_id = TxnId.parse(bytes(_take(view, at, _TXN_BYTES, end)).hex())
        at += _TXN_BYTES
    if flags & _HAS_WRITER:
        writer, at = _decode_name(view, at, end)
    if flags & _HAS_PRODUCER:
        producer, at = _decode_name(view, at, end)
    if flags & _HAS_SEQUENCE:
        (sequence,) = _U64.unpack(_take(view, at, _U64.size, end))
        at += _U64.size
    if end - at > MAX_PAYLOAD_BYTES:
        raise CorruptFrame(f"a payload of {end - at} bytes is above the limit")
    return {
        "position": Position(ledger, entry),
        "payload": view[at:end],
        "kind": PayloadKind(kind),
        "count": count,
        "publish_ms": publish_ms,
        "txn_id": txn_id,
        "writer": writer,
        "producer": producer,
        "sequence": sequence,
        "durable": durable,
    }


def _take(view: memoryview, at: int, size: int, end: int) -> memoryview:
    if at + size > end:
        raise CorruptFrame("a field reaches beyond the end of its frame")
    return view[at : at + size]


def _decode_name(view: memoryview, at: int, end: int) -> tuple[str, int]:
    (size,) = _U16.unpack(_take(view, at, _U16.size, end))
    at += _U16.size
    try:
        return str(_take(view, at, size, end), "utf-8"), at + size
    except UnicodeDecodeError as error:
        raise CorruptFrame("a name is not UTF-8") from error


def decode_frame(buffer: bytes | memoryview, offset: int = 0) -> tuple[Frame, int]:
    """The frame at `offset`, and the offset after it. Its payload is a view into `buffer`. Raises the errors of
    `peek`."""
    view = memoryview(buffer)
    start, end = _bounds(view, offset)
    return Frame(**_decode_fields(view, start, end)), end


def decode_frames(buffer: bytes | memoryview) -> Iterator[Frame]:
    """All frames of `buffer`, which must end where a frame ends. Raises the errors of `peek`."""
    offset = 0
    while offset < len(buffer):
        frame, offset = decode_frame(buffer, offset)
        yield frame


def peek_all(buffer: bytes | memoryview) -> Iterator[RawFrame]:
    """Like `decode_frames`, with each frame in its place in one view of `buffer`."""
    view, offset = memoryview(buffer), 0
    while offset < len(view):
        frame = peek(view, offset)
        offset = frame.end
        yield frame


def check_crcs(buffer: bytes | memoryview) -> None:
    """Raises the errors of `peek` unless the buffer is whole frames, one after another. Their contents are not looked
    at, so this takes a tenth of the time.

    The first loop passes what is plainly right, in half the time of `_bounds`. That says what is wrong with the rest.
    """
    view, offset = memoryview(buffer), 0
    size, prefix_at, head_bytes = len(view), _PREFIX.unpack_from, _PREFIX.size
    least, most = _FIXED.size, MAX_FRAME_BYTES - _PREFIX.size
    while offset + MIN_FRAME_BYTES <= size:
        length, crc = prefix_at(view, offset)
        start = offset + head_bytes
        end = start + length
        if not least <= length <= most or end > size or crc32(view[start:end]) != crc:
            break
        offset = end
    while offset < size:
        _, offset = _bounds(view, offset)

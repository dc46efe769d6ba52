"""Goal: a frame is read back as it was written, and no other bytes pass for one.

Method: round trips of generated frames, arbitrary bytes and flipped bits, and the example of the format's page.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metatxn.wire.frames import (
    MAX_FRAME_BYTES,
    MAX_PAYLOAD_BYTES,
    MIN_FRAME_BYTES,
    CorruptFrame,
    Frame,
    FrameError,
    FramePlace,
    IncompleteFrame,
    PayloadKind,
    RawFrame,
    check_crcs,
    decode_frame,
    decode_frames,
    draft,
    encode_frame,
    encode_parts,
    finish,
    peek,
    peek_all,
    peek_place,
)
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position

PAGE = Path(__file__).parents[3] / "docs" / "ledger-format.md"

U64 = st.integers(0, (1 << 64) - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
POSITIONS = st.builds(Position, U64, U64)
FRAMES = st.builds(
    Frame,
    position=st.shared(POSITIONS, key="position"),
    durable=st.shared(POSITIONS, key="position").flatmap(lambda position: st.integers(0, position.entry)),
    payload=st.binary(max_size=200),
    kind=st.sampled_from(PayloadKind),
    count=st.integers(0, (1 << 32) - 1),
    publish_ms=U64,
    txn_id=st.none() | st.builds(TxnId, st.integers(0, (1 << 16) - 1), st.integers(0, (1 << 112) - 1)),
    writer=st.none() | NAMES,
    producer=st.none() | NAMES,
    sequence=st.none() | U64,
)
PLAIN = Frame(b"payload", PayloadKind.BYTES, 1, position=Position(1, 2), publish_ms=1000)


def sealed_body(body: bytes) -> bytes:
    """`body` with a length and CRC that fit, as only a writer gone wrong would make it."""
    return struct.pack("<II", len(body), zlib.crc32(body)) + body


@given(FRAMES)
def test_round_trip(frame: Frame) -> None:
    raw = encode_frame(frame)
    assert decode_frame(raw) == (frame, len(raw))
    assert b"".join(encode_parts(frame)) == raw


@given(st.lists(FRAMES, max_size=5))
def test_frames_follow_each_other(frames: list[Frame]) -> None:
    assert list(decode_frames(b"".join(map(encode_frame, frames)))) == frames


@given(st.lists(FRAMES, min_size=1, max_size=3), st.data())
def test_checking_crcs_finds_what_peeking_finds(frames: list[Frame], data: st.DataObject) -> None:
    """Also of half a frame, and of zero bytes between two, which are their own CRC."""
    encoded = list(map(encode_frame, frames))
    assert error_of(check_crcs, b"".join(encoded)) is None
    at = data.draw(st.integers(0, len(encoded) - 1))
    match data.draw(st.sampled_from(["flipped", "cut", "zeros before it"])):
        case "flipped":
            flipped = bytearray(encoded[at])
            flipped[data.draw(st.integers(0, len(flipped) - 1))] ^= 1 << data.draw(st.integers(0, 7))
            encoded[at] = bytes(flipped)
        case "cut":
            encoded[at] = encoded[at][: data.draw(st.integers(0, len(encoded[at]) - 1))]
        case _:
            encoded.insert(at, bytes(8 * data.draw(st.integers(1, 8))))
    raw = b"".join(encoded)
    assert error_of(check_crcs, raw) == error_of(lambda found: list(peek_all(found)), raw)


def error_of(read: Callable[[bytes], object], raw: bytes) -> str | None:
    try:
        read(raw)
    except FrameError as error:
        return repr(error)
    return None


@given(FRAMES, st.binary(max_size=20))
def test_peek_gives_the_frame_and_where_it_lies(frame: Frame, before: bytes) -> None:
    raw = before + encode_frame(frame)
    peeked = peek(raw, len(before))
    assert (peeked.start, peeked.end) == (len(before), len(raw))
    assert peeked.data == raw[len(before) :]
    for field in fields(Frame):
        assert getattr(peeked, field.name) == getattr(frame, field.name)


@given(st.lists(FRAMES, max_size=5))
def test_peeked_frames_lie_one_behind_another(frames: list[Frame]) -> None:
    raw = b"".join(map(encode_frame, frames))
    peeked = list(peek_all(raw))
    assert [decode_frame(each.data)[0] for each in peeked] == frames
    assert b"".join(each.data for each in peeked) == raw


@given(st.binary(max_size=300))
def test_any_bytes_are_a_frame_or_a_frame_error(raw: bytes) -> None:
    try:
        frame, end = decode_frame(raw)
    except FrameError:
        return
    assert encode_frame(frame) == raw[:end]


@given(st.binary(min_size=39, max_size=300) | FRAMES.map(lambda frame: encode_frame(frame)[8:]), st.data())
def test_any_body_with_a_fitting_crc_is_a_frame_or_corrupt(body: bytes, data: st.DataObject) -> None:
    changed = bytearray(body)
    changed[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    raw = sealed_body(bytes(changed))
    try:
        frame, end = decode_frame(raw)
    except CorruptFrame:
        return
    assert encode_frame(frame) == raw[:end]  # one encoding per frame


@pytest.mark.parametrize("named", list(product([False, True], repeat=4)))
def test_a_place_is_what_peeking_gives(named: tuple[bool, bool, bool, bool]) -> None:
    """Of a frame with some of the fields, whole, cut, and with each body that is shorter or has another byte, and a CRC
    that fits it."""
    given: dict[str, Any] = {"txn_id": TxnId(1, 2), "writer": "wü", "producer": "p", "sequence": 3}
    wanted = {name: value for (name, value), is_there in zip(given.items(), named, strict=True) if is_there}
    raw = encode_frame(replace(PLAIN, durable=2, **wanted))
    body = raw[8:]
    others = [raw[:size] for size in range(len(raw) + 1)]
    others += [sealed_body(body[:size]) for size in range(len(body) + 1)]
    for at, value in product(range(len(body)), (0, 1, 2, 3, 7, 31, 128, 255)):
        others.append(sealed_body(body[:at] + bytes([value]) + body[at + 1 :]))
    for each in others:
        assert told(peek_place, each) == told(peek, each)


def test_a_place_of_a_payload_above_the_limit_is_none() -> None:
    body = encode_frame(replace(PLAIN, payload=bytes(MAX_PAYLOAD_BYTES)))[8:] + b"x"
    assert told(peek_place, sealed_body(body)) == told(peek, sealed_body(body)) != told(peek, encode_frame(PLAIN))


def told(look: Callable[[memoryview, int], RawFrame | FramePlace], raw: bytes) -> tuple[object, ...]:
    try:
        found = look(memoryview(raw), 0)
    except FrameError as error:
        return type(error), str(error)
    place = found.position if isinstance(found, RawFrame) else found
    return place.ledger, place.entry, found.durable, found.end


@given(FRAMES, st.data())
def test_a_flipped_bit_is_noticed(frame: Frame, data: st.DataObject) -> None:
    raw = bytearray(encode_frame(frame))
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        decode_frame(bytes(raw))


@given(FRAMES, st.data())
def test_a_cut_frame_is_incomplete(frame: Frame, data: st.DataObject) -> None:
    raw = encode_frame(frame)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(IncompleteFrame) as caught:
        decode_frame(raw[:cut])
    assert caught.value.needed == (len(raw) if cut >= 8 else 8)


def test_zero_bytes_are_no_frame() -> None:
    with pytest.raises(CorruptFrame):
        decode_frame(bytes(4096))


def test_the_largest_payload_fits_and_one_byte_more_does_not() -> None:
    largest = Frame(bytes(MAX_PAYLOAD_BYTES), PayloadKind.BYTES, 0, position=Position(0, 0), publish_ms=0)
    raw = encode_frame(largest)
    assert len(raw) == MAX_PAYLOAD_BYTES + MIN_FRAME_BYTES <= MAX_FRAME_BYTES
    assert decode_frame(raw)[0] == largest
    with pytest.raises(ValueError, match="above the limit"):
        encode_frame(Frame(bytes(MAX_PAYLOAD_BYTES + 1), PayloadKind.BYTES, 0, position=Position(0, 0), publish_ms=0))


def test_a_payload_above_the_limit_is_corrupt_even_with_a_fitting_crc() -> None:
    body = encode_frame(PLAIN)[8:MIN_FRAME_BYTES] + bytes(MAX_PAYLOAD_BYTES + 1)
    with pytest.raises(CorruptFrame):
        decode_frame(sealed_body(body))


def test_an_entry_below_its_durable_ones_is_corrupt_even_with_a_fitting_crc() -> None:
    body = bytearray(encode_frame(PLAIN)[8:])
    for durable in range(5):
        struct.pack_into("<Q", body, 31, durable)
        if durable <= PLAIN.position.entry:
            assert peek(sealed_body(bytes(body))).durable == durable
        else:
            with pytest.raises(CorruptFrame):
                peek(sealed_body(bytes(body)))


@given(FRAMES)
def test_a_draft_is_finished_with_what_is_durable_then(frame: Frame) -> None:
    begun = draft(frame, frame.position, frame.publish_ms)
    raw = finish(begun, frame.payload, frame.durable) + bytes(frame.payload)
    assert raw == encode_frame(frame)
    assert begun.size == len(raw)


@pytest.mark.parametrize(
    "frame",
    [
        Frame(b"", PayloadKind.BYTES, 0, position=Position(1, -1), publish_ms=0),
        Frame(b"", PayloadKind.BYTES, -1, position=Position(1, 0), publish_ms=0),
        Frame(b"", PayloadKind.BYTES, 0, position=Position(1, 0), publish_ms=-1),
        Frame(b"", PayloadKind.BYTES, 0, position=Position(1, 0), publish_ms=0, sequence=-1),
        Frame(b"", PayloadKind.BYTES, 0, position=Position(1, 5), publish_ms=0, durable=-1),
        Frame(b"", PayloadKind.BYTES, 0, position=Position(1, 5), publish_ms=0, durable=6),
        Frame(memoryview(b"every other")[::2], PayloadKind.BYTES, 0, position=Position(1, 0), publish_ms=0),
        Frame(b"", PayloadKind.BYTES, 0, position=Position(1, 0), publish_ms=0, writer="w" * 65536),
        Frame(b"", PayloadKind.BYTES, 0, position=Position(1, 0), publish_ms=0, producer="\ud800"),
    ],
)
def test_what_does_not_fit_is_refused(frame: Frame) -> None:
    with pytest.raises(ValueError):
        encode_frame(frame)


def test_the_payload_of_a_decoded_frame_is_a_view() -> None:
    raw = encode_frame(PLAIN)
    payload = decode_frame(raw)[0].payload
    assert isinstance(payload, memoryview) and payload.obj is raw


def test_the_example_of_the_page() -> None:
    block = re.search(r"## An example.*?```hex\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    raw = b"".join(bytes.fromhex(line[:50]) for line in block[1].splitlines())
    example = Frame(
        position=Position(3, 17),
        payload=b"hello",
        kind=PayloadKind.BYTES,
        count=1,
        publish_ms=1_700_000_000_000,
        txn_id=TxnId.parse("0001000000000000000000000000002a"),
        writer="task-4",
        sequence=7,
        durable=15,
    )
    assert len(raw) == 84
    assert encode_frame(example) == raw
    assert decode_frame(raw) == (example, 84)

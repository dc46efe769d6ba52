"""Goal: whatever a power cut leaves of a group, exactly what was acknowledged before is safe, and the ledger opens.
Damage that no power cut can do is told from it wherever the file can tell.

Method: ledger files as groups of frames. Of the last group, any sectors or frames reach the device; or bytes of an
acknowledged one are flipped. Payloads quote frames, as an audit log would.
"""

from __future__ import annotations

import struct
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metatxn.wire.crc import crc32
from metatxn.wire.frames import Frame, PayloadKind, encode_frame
from metatxn.wire.position import Position
from participants.ledger import recovery
from participants.ledger.disk import Disk
from participants.ledger.local import LocalStorage
from participants.ledger.reading import checked_frames
from participants.ledger.recovery import recover_file
from participants.ledger.storage import LedgerCorrupt, LedgerTooNew
from tests.extent import usually
from tests.participants.ledger.ledgers import SEGMENT, append_all, ledger_file, payloads

LEDGER = 3
SECTOR_BYTES = 64  # smaller than real ones, so that frames and sectors overlap in all ways

Groups = list[list[bytes]]
"""Frames, one list per sync."""


class QuickDisk(Disk):
    def fsync(self, fd: int) -> None:
        pass


def frame(
    entry: int, durable: int, payload: bytes = b"", ledger: int = LEDGER, kind: PayloadKind = PayloadKind.BYTES
) -> bytes:
    return encode_frame(
        Frame(
            payload,
            kind,
            1,
            position=Position(ledger, entry),
            publish_ms=1_700_000_000_000,
            durable=durable,
        )
    )


@contextmanager
def file_of(content: bytes) -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(content)
        yield file


def recovered(content: bytes) -> list[bytes]:
    """The frames that recovery keeps. Raises `LedgerCorrupt`."""
    with file_of(content) as file:
        offsets = recover_file(QuickDisk(), file.fileno(), LEDGER)
        file.seek(0)
        kept = file.read()
        assert content.startswith(kept)
        assert offsets[-1] == len(kept)
        return [kept[start:end] for start, end in pairwise(offsets)]


def is_corrupt(content: bytes) -> bool:
    with file_of(content) as file:
        try:
            recover_file(QuickDisk(), file.fileno(), LEDGER)
        except LedgerCorrupt:
            file.seek(0)
            assert file.read() == content, "a damaged ledger is left as it is"
            return True
    return False


@st.composite
def grown(draw: st.DrawFn, min_groups: int = 1) -> Groups:
    """A ledger in groups. Payloads are bytes, frames of this ledger as readers got them, or those of another one."""
    groups: Groups = []
    entries = 0
    for size in draw(st.lists(st.integers(1, 5), min_size=min_groups, max_size=4)):
        readable = [one for group in groups for one in group]
        quotes = st.lists(st.sampled_from(readable), max_size=3).map(b"".join) if readable else st.nothing()
        others = st.integers(0, 9).map(lambda entry: frame(entry, entry, b"other", ledger=LEDGER + 1))
        durable = entries
        group = []
        for _ in range(size):
            payload = draw(st.binary(max_size=150) | quotes | others)
            group.append(frame(entries, durable, payload))
            entries += 1
        groups.append(group)
    return groups


@settings(max_examples=usually(150, 400), deadline=None)
@given(grown(), st.data())
def test_any_sectors_of_an_unsynced_group_may_survive(groups: Groups, data: st.DataObject) -> None:
    acknowledged = [one for group in groups[:-1] for one in group]
    before = b"".join(acknowledged)
    after = before + b"".join(groups[-1])
    content = bytearray(after[: data.draw(st.integers(len(before), len(after)), label="size")])
    for start in range(len(before) // SECTOR_BYTES * SECTOR_BYTES, len(content), SECTOR_BYTES):
        if not data.draw(st.booleans(), label=f"sector at {start} survives"):
            old = before[start : start + SECTOR_BYTES]
            content[start : start + SECTOR_BYTES] = old.ljust(min(SECTOR_BYTES, len(content) - start), b"\0")
    kept = recovered(bytes(content))
    assert kept[: len(acknowledged)] == acknowledged
    assert kept == (acknowledged + groups[-1])[: len(kept)]


@settings(max_examples=usually(80, 200), deadline=None)
@given(grown(), st.data())
def test_any_frames_of_an_unsynced_group_may_survive(groups: Groups, data: st.DataObject) -> None:
    acknowledged = [one for group in groups[:-1] for one in group]
    survive = data.draw(st.lists(st.booleans(), min_size=len(groups[-1]), max_size=len(groups[-1])))
    whole = [*survive, False].index(False)
    tail = [one if there else bytes(len(one)) for one, there in zip(groups[-1], survive, strict=True)]
    assert recovered(b"".join(acknowledged + tail)) == acknowledged + groups[-1][:whole]


@settings(max_examples=usually(80, 200), deadline=None)
@given(grown(min_groups=2), st.data())
def test_damage_to_a_synced_frame_is_told_by_any_frame_of_a_later_group(groups: Groups, data: st.DataObject) -> None:
    """Frames, damaged or not, in all places: the rule itself, against a model that knows the groups."""
    frames = [(number, one) for number, group in enumerate(groups) for one in group]
    sound = data.draw(st.lists(st.booleans(), min_size=len(frames), max_size=len(frames)))
    content = b"".join(one if good else bytes(len(one)) for (_, one), good in zip(frames, sound, strict=True))
    bad = [*sound, False].index(False)
    behind = zip(frames[bad:], sound[bad:], strict=True)
    if any(good and number > frames[bad][0] for (number, _), good in behind):
        assert is_corrupt(content)
    else:
        assert recovered(content) == [one for _, one in frames[:bad]]


@pytest.mark.parametrize("lost", range(4))
async def test_a_group_that_lost_one_frame_is_cut_there(tmp_path: Path, lost: int) -> None:
    async with LocalStorage.open(tmp_path) as storage:
        ledger = await storage.create(SEGMENT, 1)
        await append_all(ledger, [b"a", b"b"])
        acknowledged = ledger.size_bytes
        await append_all(ledger, [b"c", b"d", b"e", b"f"])
    path = ledger_file(tmp_path, 1)
    content = bytearray(path.read_bytes())
    size = (len(content) - acknowledged) // 4
    at = acknowledged + lost * size
    content[at : at + size] = bytes(size)
    path.write_bytes(content)
    async with LocalStorage.open(tmp_path) as storage:
        assert await payloads(await storage.seal(SEGMENT, 1)) == [b"a", b"b", b"c", b"d", b"e", b"f"][: 2 + lost]
    assert path.stat().st_size == at


@pytest.mark.parametrize("hurt", range(6))
async def test_damage_to_a_group_with_a_later_one_is_corrupt(tmp_path: Path, hurt: int) -> None:
    async with LocalStorage.open(tmp_path) as storage:
        ledger = await storage.create(SEGMENT, 1)
        await append_all(ledger, [b"a", b"b", b"c"])
        await append_all(ledger, [b"d", b"e"])
        await append_all(ledger, [b"f"])
    path = ledger_file(tmp_path, 1)
    content = bytearray(path.read_bytes())
    size = len(content) // 6
    content[(hurt + 1) * size - 1] ^= 1
    path.write_bytes(content)
    async with LocalStorage.open(tmp_path) as storage:
        if hurt < 5:
            with pytest.raises(LedgerCorrupt, match=f"entry {hurt}"):
                await storage.seal(SEGMENT, 1)
            assert path.read_bytes() == content
        else:  # nothing was written later: it looks like a torn tail
            assert await payloads(await storage.seal(SEGMENT, 1)) == [b"a", b"b", b"c", b"d", b"e"]


SOUND = [frame(0, 0, b"first"), frame(1, 1, b"second")]


@pytest.mark.parametrize(
    "quoted",
    [
        SOUND[0] + SOUND[1],  # as readers of this ledger got them
        frame(5, 2, b"never written by this ledger, but it says nothing about entry 2"),
        frame(4, 4, b"of another ledger", ledger=LEDGER + 1),
        frame(1000, 1000, b"between here and there is no room for this many entries"),
        frame(3, 3, b"does not match its crc")[:-1] + b"?",
    ],
)
@pytest.mark.parametrize("follows", [b"", frame(3, 2, b"of the same group")])
def test_quoted_frames_in_a_torn_one_are_no_proof(quoted: bytes, follows: bytes) -> None:
    torn = frame(2, 2, quoted + b"end")[:-1]
    assert recovered(b"".join(SOUND) + torn) == SOUND
    assert recovered(b"".join(SOUND) + torn + bytes(1) + follows) == SOUND


def test_a_quoted_frame_whose_numbers_fit_is_taken_for_a_proof() -> None:
    """Forged, or of another segment's ledger 3. The safe side: nothing is lost, but someone must look."""
    assert is_corrupt(b"".join(SOUND) + frame(2, 2, frame(3, 3) + b"end")[:-1])


def test_a_proof_is_found_at_any_distance() -> None:
    proof = frame(4, 3, b"x" * 100)
    for distance in [*range(94, 400, 7), 100_000, (16 << 20) + 5]:
        assert is_corrupt(b"".join(SOUND) + b"\xff" * distance + proof)


@pytest.mark.parametrize("kind", PayloadKind)
def test_a_frame_of_any_kind_is_a_proof(kind: PayloadKind) -> None:
    assert is_corrupt(b"".join(SOUND) + b"\xff" * 100 + frame(4, 3, b"x", kind=kind))


@pytest.mark.parametrize(("field", "value"), [(0, 2), (1, 0x7F), (2, 0x10)], ids=["version", "kind", "flags"])
def test_a_whole_frame_of_a_later_release_is_no_torn_group(field: int, value: int) -> None:
    body = bytearray(frame(2, 1, b"of a form that is not known here")[8:])
    body[field] = value
    newer = struct.pack("<II", len(body), crc32(body)) + bytes(body)
    assert is_corrupt(b"".join(SOUND) + newer)
    with file_of(b"".join(SOUND) + newer) as file, pytest.raises(LedgerTooNew, match=r"is of a later release at byte"):
        recover_file(QuickDisk(), file.fileno(), LEDGER)
    with pytest.raises(LedgerTooNew, match=rf"entry {LEDGER}:2 is of a later release"):
        checked_frames(memoryview(newer), LEDGER, 2, array("Q", [0, len(newer)]))
    assert recovered(b"".join(SOUND) + newer[:-1]) == SOUND, "torn, it is cut like any other"


def test_a_proof_is_found_although_it_seems_to_begin_earlier() -> None:
    """Its length 0x101 reads as a version and a kind, and its publish time as the ledger that belongs behind them."""
    proof = encode_frame(
        Frame(bytes(257 - 39), PayloadKind.BYTES, 1, position=Position(LEDGER, 4), publish_ms=LEDGER, durable=3)
    )
    assert is_corrupt(b"".join(SOUND) + b"\xff" * 100 + proof)


def test_more_bytes_than_a_group_can_have_are_no_torn_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "REWRITE_BYTES", 1000)
    assert recovered(b"".join(SOUND) + bytes(1000)) == SOUND
    assert is_corrupt(b"".join(SOUND) + bytes(1001))


def test_a_whole_frame_in_the_place_of_another_is_no_torn_group() -> None:
    assert is_corrupt(SOUND[1])
    assert is_corrupt(SOUND[0] + SOUND[0])
    assert is_corrupt(SOUND[0] + frame(1, 1, ledger=LEDGER + 1))

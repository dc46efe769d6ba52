"""Goal: recovery cuts what nobody was told about, and nothing else; damage is never served.

Method: ledger files cut at every byte of the last frame, bits flipped at random places, marks lost and damaged. What a
power cut makes of a group of several frames is in `test_torn_groups`.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metatxn.wire.frames import MIN_FRAME_BYTES, Frame, PayloadKind, encode_frame
from metatxn.wire.position import Position
from participants.ledger.disk import Disk
from participants.ledger.local import LocalStorage
from participants.ledger.storage import LedgerCorrupt, LedgerError, LedgerMissing
from tests.participants.ledger.ledgers import SEGMENT, append_all, ledger_file, mark_file, payloads

PAYLOADS = [b"one", b"two" * 30, b"", b"four" * 20]


@pytest.fixture
async def unsealed(tmp_path: Path) -> Path:
    """A data directory with one ledger that was not sealed, each of its entries synced alone."""
    async with LocalStorage.open(tmp_path / "data") as storage:
        ledger = await storage.create(SEGMENT, 0)
        for payload in PAYLOADS:
            await append_all(ledger, [payload])
    return tmp_path / "data"


@pytest.fixture
async def reopened(unsealed: Path) -> AsyncIterator[LocalStorage]:
    async with LocalStorage.open(unsealed) as storage:
        yield storage


def frame_bytes(entry: int, payload: bytes, ledger: int = 0) -> bytes:
    return encode_frame(
        Frame(payload, PayloadKind.BYTES, 1, position=Position(ledger, entry), publish_ms=1_700_000_000_000)
    )


ENDS = [0]
for _entry, _payload in enumerate(PAYLOADS):
    ENDS.append(ENDS[-1] + len(frame_bytes(_entry, _payload)))


async def test_an_undamaged_ledger_is_kept_whole(reopened: LocalStorage) -> None:
    assert await payloads(await reopened.seal(SEGMENT, 0)) == PAYLOADS


async def test_a_tail_torn_at_any_byte_is_cut(unsealed: Path, reopened: LocalStorage) -> None:
    path = ledger_file(unsealed, 0)
    content = path.read_bytes()
    assert len(content) == ENDS[-1]
    for cut in range(ENDS[-2], ENDS[-1]):
        for tail in (b"", bytes(ENDS[-1] - cut)):  # the file ends there, or zeros follow
            mark_file(unsealed, 0).unlink(missing_ok=True)
            path.write_bytes(content[:cut] + tail)
            if content[:cut] + tail == content:
                continue
            sealed = await reopened.seal(SEGMENT, 0)
            assert await payloads(sealed) == PAYLOADS[:-1], cut
            assert path.stat().st_size == sealed.size_bytes == ENDS[-2]


async def test_flipped_bits_are_never_served(unsealed: Path, reopened: LocalStorage) -> None:
    path = ledger_file(unsealed, 0)
    content = path.read_bytes()
    chance = random.Random(7)
    for bit in chance.sample(range(8 * len(content)), 400):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        mark_file(unsealed, 0).unlink(missing_ok=True)
        if bit // 8 >= ENDS[-2]:  # the last group: cannot be told from a torn tail
            assert await payloads(await reopened.seal(SEGMENT, 0)) == PAYLOADS[:-1]
        else:
            with pytest.raises(LedgerCorrupt):
                await reopened.seal(SEGMENT, 0)
            assert path.read_bytes() == damaged, "a damaged ledger is left as it is"
        with pytest.raises(LedgerError):
            await reopened.open_sealed(SEGMENT, 0, len(PAYLOADS))


async def test_bits_flipped_after_the_seal_fail_the_read(unsealed: Path, reopened: LocalStorage) -> None:
    sealed = await reopened.seal(SEGMENT, 0)
    path = ledger_file(unsealed, 0)
    content = path.read_bytes()
    chance = random.Random(8)
    for bit in chance.sample(range(8 * len(content)), 400):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        entry = next(entry for entry in range(len(PAYLOADS)) if bit // 8 < ENDS[entry + 1])
        for first in range(len(PAYLOADS)):
            if first <= entry:
                with pytest.raises(LedgerCorrupt):
                    await sealed.read(first, 1 << 20)
            else:
                assert len(await sealed.read(first, 1 << 20)) == len(PAYLOADS) - first


async def test_swapped_frames_are_not_served(unsealed: Path, reopened: LocalStorage) -> None:
    """Each is valid, but not in its place."""
    path = ledger_file(unsealed, 0)
    path.write_bytes(frame_bytes(1, b"same") + frame_bytes(0, b"size"))
    with pytest.raises(LedgerCorrupt):
        await reopened.seal(SEGMENT, 0)
    path.write_bytes(frame_bytes(0, b"same") + frame_bytes(1, b"other", ledger=9))
    with pytest.raises(LedgerCorrupt):
        await reopened.seal(SEGMENT, 0)


async def test_a_frame_replaced_after_the_seal_is_not_served(unsealed: Path, reopened: LocalStorage) -> None:
    sealed = await reopened.seal(SEGMENT, 0)
    path = ledger_file(unsealed, 0)
    path.write_bytes(frame_bytes(7, PAYLOADS[0]) + path.read_bytes()[ENDS[1] :])
    with pytest.raises(LedgerCorrupt):
        await sealed.read(0, 1)


@pytest.mark.parametrize("ledger", [0, 1, 1 << 40])
async def test_a_damaged_length_in_the_middle_is_found_to_be_damage(tmp_path: Path, ledger: int) -> None:
    """A length that reaches beyond the end looks like a torn tail; only the frames behind it tell."""
    path = ledger_file(tmp_path, ledger)
    async with LocalStorage.open(tmp_path) as storage:
        appended_to = await storage.create(SEGMENT, ledger)
        for group in ([bytes(70_000)], [bytes(70_000), b"last"]):
            await append_all(appended_to, group)
        await storage.create(SEGMENT, ledger + 1)
    content = bytearray(path.read_bytes())
    content[2] ^= 0x80
    path.write_bytes(content)
    async with LocalStorage.open(tmp_path) as storage:
        with pytest.raises(LedgerCorrupt, match=f"frame {ledger}:1 says that 1 were durable"):
            await storage.seal(SEGMENT, ledger)


async def test_frames_larger_than_a_chunk_are_read_through(tmp_path: Path) -> None:
    wanted = [bytes(3 << 20), b"small", b"x" * (1 << 20), b"y" * ((1 << 20) - MIN_FRAME_BYTES)]
    async with LocalStorage.open(tmp_path) as storage:
        await append_all(await storage.create(SEGMENT, 1), wanted)
    async with LocalStorage.open(tmp_path) as storage:
        assert await payloads(await storage.seal(SEGMENT, 1)) == wanted


def change_mark(data_dir: Path, mark: str) -> None:
    """What becomes of the mark of the sealed ledger 0: one of `MARKS`."""
    path = mark_file(data_dir, 0)
    content = bytearray(path.read_bytes())
    if mark == "lost":
        path.unlink()
    elif mark == "nonsense":
        path.write_bytes(b"mtxnseal and then nonsense")
    elif mark == "flipped":
        content[-8] ^= 1  # in the length of the ledger
        path.write_bytes(content)


MARKS = ["kept", "lost", "nonsense", "flipped"]


async def test_sealing_again_changes_nothing_and_makes_a_new_mark(unsealed: Path, reopened: LocalStorage) -> None:
    path = ledger_file(unsealed, 0)
    with path.open("ab") as file:
        file.write(b"torn")
    first = await reopened.seal(SEGMENT, 0)
    content, mark = path.read_bytes(), mark_file(unsealed, 0).read_bytes()
    for change in MARKS:
        change_mark(unsealed, change)
        again = await reopened.seal(SEGMENT, 0)
        assert (again.entries, again.size_bytes) == (first.entries, first.size_bytes)
        assert (path.read_bytes(), mark_file(unsealed, 0).read_bytes()) == (content, mark), change


@pytest.mark.parametrize("mark", MARKS)
async def test_a_sealed_ledger_that_is_only_looked_at_will_not_change(
    unsealed: Path, reopened: LocalStorage, mark: str
) -> None:
    """Unless nothing says that it was sealed: then its last entry may be undone."""
    await reopened.seal(SEGMENT, 0)
    change_mark(unsealed, mark)
    found = await reopened.look(SEGMENT, 0)
    assert await payloads(found.ledger) == PAYLOADS
    assert found.settled == (3 if mark == "lost" else 4)


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("recorded", [0, 3, 5])
async def test_another_length_than_recorded_is_refused(
    unsealed: Path, reopened: LocalStorage, mark: str, recorded: int
) -> None:
    await reopened.seal(SEGMENT, 0)
    change_mark(unsealed, mark)
    assert await payloads(await reopened.open_sealed(SEGMENT, 0, 4)) == PAYLOADS
    with pytest.raises(LedgerCorrupt):
        await reopened.open_sealed(SEGMENT, 0, recorded)


@pytest.mark.parametrize("mark", MARKS)
async def test_a_ledger_that_lost_its_end_is_refused(unsealed: Path, reopened: LocalStorage, mark: str) -> None:
    await reopened.seal(SEGMENT, 0)
    path = ledger_file(unsealed, 0)
    path.write_bytes(path.read_bytes()[:-1])
    change_mark(unsealed, mark)
    with pytest.raises(LedgerCorrupt):
        await reopened.open_sealed(SEGMENT, 0, 4)
    if mark != "lost":  # it had been sealed: nothing may be cut any more
        for call in (reopened.seal, reopened.look):
            with pytest.raises(LedgerCorrupt):
                await call(SEGMENT, 0)


async def test_a_ledger_that_loses_its_end_later_is_not_copied_in_part(unsealed: Path, reopened: LocalStorage) -> None:
    sealed = await reopened.seal(SEGMENT, 0)
    path = ledger_file(unsealed, 0)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert await sealed.raw_bytes(1, 2) == content[ENDS[1] : ENDS[3]]
    with pytest.raises(LedgerCorrupt, match=f"ends at byte {ENDS[4] - 1}, and has had {ENDS[4]}"):
        await sealed.raw_bytes(1, 3)


async def test_a_missing_ledger_never_recovers_as_empty(unsealed: Path, reopened: LocalStorage) -> None:
    for ledger in (0, 1):
        ledger_file(unsealed, ledger).unlink(missing_ok=True)
        with pytest.raises(LedgerMissing):
            await reopened.seal(SEGMENT, ledger)
        with pytest.raises(LedgerMissing):
            await reopened.open_sealed(SEGMENT, ledger, 0)
    shutil.rmtree(ledger_file(unsealed, 0).parent)
    with pytest.raises(LedgerMissing):
        await reopened.seal(SEGMENT, 0)


async def test_a_new_ledger_is_durable_with_its_directories(tmp_path: Path) -> None:
    class RecordingDisk(Disk):
        def __init__(self) -> None:
            self.synced: list[str] = []

        def fsync(self, fd: int) -> None:
            super().fsync(fd)
            self.synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)

        def fsync_dir(self, path: Path) -> None:
            super().fsync_dir(path)
            self.synced.append(path.name)

    disk = RecordingDisk()
    async with LocalStorage.open(tmp_path / "data", disk=disk) as storage:
        assert disk.synced == [tmp_path.name, "storage.json.tmp", "data", "data"]
        disk.synced.clear()
        await storage.create("s", 1)
        assert disk.synced == ["ledgers", "00000000000000000001.ledger", "s"]


async def test_deleting_removes_all_of_it_and_may_be_repeated(unsealed: Path, reopened: LocalStorage) -> None:
    sealed = await reopened.seal(SEGMENT, 0)
    await reopened.create(SEGMENT, 1)
    for ledger in (0, 1, 1, 2):
        await reopened.delete(SEGMENT, ledger)
    assert list((unsealed / "ledgers").iterdir()) == []
    with pytest.raises(LedgerMissing):
        await sealed.read(0, 1)

"""Goal: a descriptor that is read from stays that file's, and a file that is not read any more is let go.

Method: a disk that counts what is open, on real files; many threads, more files than are kept, files unlinked before.
"""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from participants.ledger.disk import Disk
from participants.ledger.open_files import OpenFiles

KEPT = 3


class CountingDisk(Disk):
    def __init__(self) -> None:
        self.opened = 0
        self.open_now: set[int] = set()

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        self.opened += 1
        self.open_now.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.open_now.remove(fd)
        super().close(fd)


@pytest.fixture
def disk() -> CountingDisk:
    return CountingDisk()


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / str(number) for number in range(2 * KEPT)]
    for path in paths:
        path.write_text(path.name)
    return paths


def read(files: OpenFiles, path: Path) -> str:
    with files.reading(path) as fd:
        return os.pread(fd, 100, 0).decode()


def test_a_file_is_opened_once(disk: CountingDisk, paths: list[Path]) -> None:
    files = OpenFiles(disk, KEPT)
    for _ in range(3):
        assert [read(files, path) for path in paths[:KEPT]] == ["0", "1", "2"]
    assert disk.opened == KEPT
    files.close()
    assert not disk.open_now


def test_the_one_that_was_read_longest_ago_is_let_go(disk: CountingDisk, paths: list[Path]) -> None:
    files = OpenFiles(disk, KEPT)
    for number in (0, 1, 2, 0, 3, 0, 1):
        assert read(files, paths[number]) == str(number)
        assert len(disk.open_now) <= KEPT
    assert disk.opened == 5, "1 was let go for 3"


def test_a_descriptor_in_use_is_closed_by_its_last_reader(disk: CountingDisk, paths: list[Path]) -> None:
    files = OpenFiles(disk, KEPT)
    with files.reading(paths[0]) as first, files.reading(paths[0]) as second:
        assert first == second
        files.forget(paths[0])
        for path in paths:
            read(files, path)
        files.close()
        assert os.pread(first, 100, 0) == b"0"
        assert disk.open_now == {first}
    assert not disk.open_now


def test_an_unlinked_file_is_not_read_any_more(disk: CountingDisk, paths: list[Path]) -> None:
    files = OpenFiles(disk, KEPT)
    read(files, paths[0])
    paths[0].unlink()
    files.forget(paths[0])
    assert not disk.open_now, "its space is free"
    with pytest.raises(FileNotFoundError):
        read(files, paths[0])
    files.forget(paths[0])


def test_many_threads_read_what_they_asked_for(disk: CountingDisk, paths: list[Path]) -> None:
    files = OpenFiles(disk, KEPT)

    def look(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(300):
            path = dice.choice(paths)
            assert read(files, path) == path.name
            if dice.random() < 0.1:
                files.forget(path)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(look, range(8)))
    assert len(disk.open_now) <= KEPT
    files.close()
    assert not disk.open_now

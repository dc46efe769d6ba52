"""The blocking half of local ledgers. It handles files and returns offsets; `local` calls it in threads.

For each segment, the calls that change files exclude each other: a caller that gave up (a cancelled task) may call
again while the thread of the first call still works.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from metastore import keys
from metatxn.wire.frames import RawFrame
from participants.ledger.directories import segment_directory
from participants.ledger.disk import Disk, make_directory, read_all, read_file, replace_file, write_all
from participants.ledger.form import FORM_HEAD_BYTES, Form, FormDamaged, whole_header_bytes
from participants.ledger.group_commit import device_errors
from participants.ledger.hidden_index import HiddenIndex, HiddenRanges
from participants.ledger.open_files import KEPT_FILES, OpenFiles
from participants.ledger.reading import checked_form, checked_frames, checked_hidden, unreadable
from participants.ledger.recovery import recover_file, scan, whole_frames
from participants.ledger.seal_mark import MarkDamaged, read_mark, write_mark
from participants.ledger.storage import LedgerCorrupt, LedgerExists, LedgerMissing, StorageFull
from participants.ledger.watermark import Space

_SUFFIX = ".ledger"
_FORM = re.compile(r"(\d+)\.form\.(\d+\.\d+)(\.tmp)?")


class LedgerFiles:
    """The files of local ledgers. All methods block, and raise the errors of `storage.LedgerStorage`."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self.disk = disk
        self._root = root
        self._read = OpenFiles(disk, KEPT_FILES)
        self._guard = threading.Lock()
        self._segment_locks: dict[str, threading.Lock] = {}

    def space(self) -> Space:
        with device_errors(f"cannot measure the disk of {self._root}"):
            return self.disk.space(self._root)

    def path(self, segment: str, ledger: int) -> Path:
        return self._root / segment_directory(segment) / f"{keys.number(ledger)}{_SUFFIX}"

    @contextmanager
    def _exclusive(self, segment: str) -> Iterator[None]:
        with self._guard:
            lock = self._segment_locks.setdefault(segment, threading.Lock())
        with lock:
            yield

    def create(self, segment: str, ledger: int) -> int:
        """Create the file and return its descriptor."""
        path = self.path(segment, ledger)
        with self._exclusive(segment), device_errors(f"cannot create ledger {ledger} of {segment}"):
            make_directory(self.disk, path.parent)
            if self.disk.exists(path) or self.disk.exists(_mark(path)):
                raise LedgerExists(f"ledger {ledger} of {segment} exists")
            fd = self.disk.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                self.disk.fsync(fd)
                self.disk.fsync_dir(path.parent)
            except BaseException:
                self.disk.close(fd)
                with contextlib.suppress(OSError):
                    self.disk.unlink(path)
                raise
            return fd

    def stop_reading(self) -> None:
        """Close the files that are kept open. Call this when no reads are left."""
        self._read.close()

    def close(self, fd: int) -> None:
        with contextlib.suppress(OSError):  # the sync has already reported any failure
            self.disk.close(fd)

    def seal(self, segment: str, ledger: int) -> array[int]:
        """Recover and seal a ledger to which another process (or an earlier object) was appending."""
        path = self.path(segment, ledger)
        with (
            self._exclusive(segment),
            device_errors(f"cannot seal ledger {ledger} of {segment}"),
            self._opened(path, os.O_RDWR) as fd,
        ):
            try:
                offsets = read_mark(self.disk, _mark(path))
            except MarkDamaged:
                offsets = self._read_through(fd, ledger)  # it was sealed, so nothing may be cut now
                self._write_mark(path, offsets)
            if offsets is None:
                offsets = recover_file(self.disk, fd, ledger)
                self._write_mark(path, offsets)
            self._check_size(fd, ledger, offsets)
        return offsets

    def seal_finished(self, segment: str, ledger: int, offsets: array[int]) -> array[int]:
        """Seal a ledger whose appends are all known to be durable at `offsets`."""
        path = self.path(segment, ledger)
        with self._exclusive(segment), device_errors(f"cannot seal ledger {ledger} of {segment}"):
            with self._opened(path, os.O_RDONLY) as fd:
                self._check_size(fd, ledger, offsets)
            self._write_mark(path, offsets)
        return offsets

    def seal_failed(self, segment: str, ledger: int, durable_bytes: int) -> array[int]:
        """Seal a ledger whose last group had an unknown outcome. Up to `durable_bytes` it is known to be durable."""
        path = self.path(segment, ledger)
        with (
            self._exclusive(segment),
            device_errors(f"cannot seal ledger {ledger} of {segment}"),
            self._opened(path, os.O_RDWR) as fd,
        ):
            offsets = recover_file(self.disk, fd, ledger, durable_bytes=durable_bytes)
            self._write_mark(path, offsets)
        return offsets

    def open_sealed(self, segment: str, ledger: int, entries: int) -> array[int]:
        path = self.path(segment, ledger)
        with (
            device_errors(f"cannot open ledger {ledger} of {segment}"),
            self._opened(path, os.O_RDONLY) as fd,
        ):
            try:
                offsets = read_mark(self.disk, _mark(path))
            except MarkDamaged:
                offsets = None
            if offsets is None:
                offsets = self._read_through(fd, ledger)
            self._check_size(fd, ledger, offsets)
        if len(offsets) - 1 != entries:
            raise LedgerCorrupt(
                f"ledger {ledger} of {segment} has {len(offsets) - 1} entries, but {entries} are recorded"
            )
        return offsets

    def look(self, segment: str, ledger: int) -> tuple[array[int], int]:
        """The whole frames of a file that may grow, and how many of them say that they were durable, or were sealed."""
        path = self.path(segment, ledger)
        with device_errors(f"cannot read ledger {ledger} of {segment}"), self._opened(path, os.O_RDONLY) as fd:
            try:
                offsets = read_mark(self.disk, _mark(path))
            except MarkDamaged:
                offsets = self._read_through(fd, ledger)
            if offsets is not None:
                self._check_size(fd, ledger, offsets)
                return offsets, len(offsets) - 1
            return whole_frames(self.disk, fd, ledger)

    def open_form(self, segment: str, ledger: int, entries: int | None, form: Form) -> array[int]:
        """The places of the entries in the file of a form. None: it is not known how many the ledger has."""
        path = form_path(self.path(segment, ledger), form)
        with (
            device_errors(f"cannot open form {form} of ledger {ledger} of {segment}"),
            self._opened(path, os.O_RDONLY) as fd,
        ):
            head = read_all(self.disk, fd, FORM_HEAD_BYTES, 0)
            try:
                header = read_all(self.disk, fd, whole_header_bytes(head), 0)
            except FormDamaged as error:
                raise unreadable(f"form {form} of ledger {ledger} of {segment}", error) from error
            found = checked_form(header, ledger, entries)
            offsets = array("Q", (len(header) + offset for offset in found.offsets()))
            self._check_size(fd, ledger, offsets)
        return offsets

    def write_form_part(self, path: Path, form: Form, offset: int, content: Sequence[bytes | memoryview]) -> None:
        """Write to the draft of a form. `path` is that of the ledger."""
        with (
            device_errors(f"cannot write form {form} of {path.name}"),
            self._opened(_draft(path, form), os.O_RDWR | os.O_CREAT) as fd,
        ):
            write_all(self.disk, fd, content, offset)

    def finish_form(self, segment: str, ledger: int, form: Form, header: bytes) -> None:
        """Turn the draft into the form, once all frames are in it."""
        path = self.path(segment, ledger)
        with self._exclusive(segment), device_errors(f"cannot write form {form} of ledger {ledger} of {segment}"):
            if not self._is_there(path):
                raise LedgerMissing(f"ledger {ledger} of {segment} was deleted")
            with self._opened(_draft(path, form), os.O_RDWR | os.O_CREAT) as fd:
                write_all(self.disk, fd, [header], 0)
                self.disk.fsync(fd)
            self.disk.rename(_draft(path, form), form_path(path, form))
            self.disk.fsync_dir(path.parent)

    def discard_form(self, path: Path, form: Form) -> None:
        """Delete a draft, if possible. What is left goes with the next form, or with the ledger."""
        with contextlib.suppress(OSError):
            self.disk.unlink(_draft(path, form))

    def forms(self, segment: str, ledger: int) -> list[Form]:
        path = self.path(segment, ledger)
        with device_errors(f"cannot list the forms of ledger {ledger} of {segment}"):
            return [form for form, draft in self._forms(path) if not draft]

    def delete_forms_before(self, segment: str, ledger: int, form: Form) -> None:
        path = self.path(segment, ledger)
        with self._exclusive(segment), device_errors(f"cannot delete ledger {ledger} of {segment} as it was"):
            old = [path, _mark(path)]
            for each, draft in self._forms(path):
                if each < form:
                    old.append(_draft(path, each) if draft else form_path(path, each))
            for each_path in old:
                if self.disk.exists(each_path):
                    self._unlink(each_path)
            if self.disk.exists(path.parent):
                self.disk.fsync_dir(path.parent)

    def _forms(self, path: Path) -> list[tuple[Form, bool]]:
        """The forms of the ledger at `path`, in order, and whether they are drafts."""
        names = self.disk.names(path.parent) if self.disk.exists(path.parent) else []
        matches = (_FORM.fullmatch(name) for name in names if name.startswith(f"{path.stem}."))
        return sorted((Form.parse(found[2]), found[3] is not None) for found in matches if found is not None)

    def _is_there(self, path: Path) -> bool:
        return self.disk.exists(path) or any(not draft for _, draft in self._forms(path))

    def write_hidden(self, segment: str, generation: int, index: HiddenIndex) -> None:
        path = self.path(segment, index.ledger)
        content = index.encode()
        with (
            self._exclusive(segment),
            device_errors(f"cannot write the index of hidden entries of ledger {index.ledger} of {segment}"),
        ):
            if not self._is_there(path):
                raise LedgerMissing(f"ledger {index.ledger} of {segment} was deleted")
            replace_file(self.disk, _hidden(path, generation), [content])

    def read_index(self, segment: str, ledger: int, generation: int, entries: int) -> HiddenIndex:
        path = self.path(segment, ledger)
        with device_errors(f"cannot read the index {generation} of hidden entries of ledger {ledger} of {segment}"):
            content = read_file(self.disk, _hidden(path, generation))
        return checked_hidden(content, ledger, entries)

    def read_hidden(self, segment: str, ledger: int, generation: int, entries: int) -> HiddenRanges:
        return self.read_index(segment, ledger, generation, entries).ranges

    def delete(self, segment: str, ledger: int) -> None:
        path = self.path(segment, ledger)
        with self._exclusive(segment), device_errors(f"cannot delete ledger {ledger} of {segment}"):
            if not self.disk.exists(path.parent):
                return
            # Every file with this number, including indexes, and drafts of them and of the mark.
            for name in self.disk.names(path.parent):
                if name.startswith(f"{path.stem}."):
                    self._unlink(path.parent / name)
            self._remove_if_empty(path.parent)

    def directories(self) -> list[str]:
        with device_errors("cannot list the segments"):
            return self.disk.names(self._root)

    def numbers(self, directory: str) -> list[int]:
        path = self._root / directory
        with device_errors(f"cannot list {directory}"):
            names = self.disk.names(path) if self.disk.exists(path) else []
        return sorted({int(name.partition(".")[0]) for name in names if _is_ledger(name)})

    def set_aside(self, directory: str, ledger: int, aside: Path) -> None:
        source, target = self._root / directory, aside / directory
        with device_errors(f"cannot set ledger {ledger} of {directory} aside"):
            if not self.disk.exists(source):
                return
            for path in (aside.parent, aside, target):
                make_directory(self.disk, path)
            stem = f"{keys.number(ledger)}."
            # The ledger itself comes last: as long as it exists, this is repeated.
            for name in sorted(self.disk.names(source), key=_is_ledger):
                if name.startswith(stem):
                    self.disk.rename(source / name, target / name)
            self.disk.fsync_dir(target)
            self._remove_if_empty(source)

    def drop(self, segment: str) -> None:
        """Delete the directory of a segment with everything in it."""
        directory = self._root / segment_directory(segment)
        with self._exclusive(segment), device_errors(f"cannot remove what is left of {segment}"):
            if not self.disk.exists(directory):
                return
            for name in self.disk.names(directory):
                self._unlink(directory / name)
            self.disk.rmdir(directory)
            self.disk.fsync_dir(self._root)

    def read_note(self, path: Path) -> bytes | None:
        with device_errors(f"cannot read {path.name}"):
            return read_file(self.disk, path) if self.disk.exists(path) else None

    def write_note(self, path: Path, content: bytes) -> None:
        with device_errors(f"cannot write {path.name}"):
            replace_file(self.disk, path, [content])

    def read(self, path: Path, ledger: int, first_entry: int, offsets: array[int]) -> list[RawFrame]:
        """The frames between `offsets`, after checking them."""
        content = self.read_bytes(path, ledger, offsets[0], offsets[-1])
        return checked_frames(content, ledger, first_entry, offsets)

    def read_bytes(self, path: Path, ledger: int, begin: int, end: int) -> memoryview:
        """The bytes from `begin` up to `end`, or to the end of the file."""
        with device_errors(f"cannot read ledger {ledger}"), self._read.reading(path) as fd:
            return memoryview(read_all(self.disk, fd, end - begin, begin))

    def read_at_once(self, path: Path, begin: int, end: int) -> memoryview | None:
        """The bytes from `begin` up to `end`, if they can be had without waiting for a device. It can be called on the
        event loop, and raises nothing."""
        return self._read.read_at_once(path, end - begin, begin)

    def _remove_if_empty(self, directory: Path) -> None:
        self.disk.fsync_dir(directory)
        if not self.disk.names(directory):
            self.disk.rmdir(directory)
            self.disk.fsync_dir(self._root)

    def _unlink(self, path: Path) -> None:
        self.disk.unlink(path)
        self._read.forget(path)

    @contextmanager
    def _opened(self, path: Path, flags: int) -> Iterator[int]:
        fd = self.disk.open(path, flags)
        try:
            yield fd
        finally:
            self.disk.close(fd)

    def _read_through(self, fd: int, ledger: int) -> array[int]:
        found = scan(self.disk, fd, ledger)
        if found.damage is not None:
            raise found.error(ledger, found.damage)
        return found.offsets

    def _check_size(self, fd: int, ledger: int, offsets: array[int]) -> None:
        size = self.disk.size(fd)
        if size != offsets[-1]:
            raise LedgerCorrupt(f"ledger {ledger} has {size} bytes, but was sealed with {offsets[-1]}")

    def _write_mark(self, path: Path, offsets: array[int]) -> None:
        """Write the seal mark, if there is space: a full disk must not keep a segment from being recovered."""
        with contextlib.suppress(StorageFull), device_errors(f"cannot write {_mark(path).name}"):
            write_mark(self.disk, _mark(path), offsets)


def _is_ledger(name: str) -> bool:
    """Whether a file holds the frames of a ledger, in whatever form."""
    form = _FORM.fullmatch(name)
    return name.endswith(_SUFFIX) or (form is not None and form[3] is None)


def form_path(path: Path, form: Form) -> Path:
    """The file of a form of the ledger at `path`."""
    return path.with_suffix(f".form.{form}")


def _draft(path: Path, form: Form) -> Path:
    return path.with_suffix(f".form.{form}.tmp")


def _mark(path: Path) -> Path:
    return path.with_suffix(".sealed")


def _hidden(path: Path, generation: int) -> Path:
    return path.with_suffix(f".hidden.{generation}")

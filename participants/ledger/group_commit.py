"""One write and one sync for all appends that are waiting.

This step runs in a writer thread. It determines the outcome of a group, which is the difficult part:

    write      sync      truncate + sync    outcome
    ------------------------------------------------------------------------------------------------
    ok         ok                           durable
    no space             ok                 `StorageFull`: undone, certainly
    no space             fails              `StorageFailed`: a part may be there
    fails                                   `StorageFailed`: a part may be there
    ok         fails                        `StorageFailed`: all, a part or nothing may be there

The truncation is synced before "no space" is answered: otherwise, after a power cut, a frame that was refused could
be found in the file, whole and valid. A failed sync is never repeated on these bytes (see `recovery`); "no space" from
a sync is such a failure too.

The frames are completed here too: the number of durable entries, which each of them contains, is only known now, and
the event loop need not wait for their CRCs.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from metatxn.wire.frames import Draft, finish
from participants.ledger.append_queue import GroupOutcome
from participants.ledger.disk import Disk, write_all
from participants.ledger.storage import LedgerError, LedgerMissing, StorageFailed, StorageFull

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def write_group(
    disk: Disk,
    fd: int,
    group: Sequence[tuple[Draft, bytes | memoryview]],
    durable: int,
    offset: int,
    clock: Callable[[], float],
) -> GroupOutcome:
    """Write the frames of `group`, drafts and payloads, at `offset`, and sync them.

    `offset` is the durable end of the file, and `durable` the number of entries before it. Failures of the device are
    in the outcome; none are raised.
    """
    parts = [part for draft, payload in group for part in (finish(draft, payload, durable), payload)]
    try:
        write_all(disk, fd, parts, offset)
    except OSError as error:
        if error.errno in _NO_SPACE:
            return _undo(disk, fd, offset, error)
        return GroupOutcome(StorageFailed(f"cannot write the ledger: {error}"))
    began = clock()
    try:
        disk.fdatasync(fd)
    except OSError as error:
        return GroupOutcome(StorageFailed(f"cannot sync the ledger: {error}"), clock() - began)
    return GroupOutcome(None, clock() - began)


def _undo(disk: Disk, fd: int, offset: int, cause: OSError) -> GroupOutcome:
    try:
        disk.truncate(fd, offset)
        disk.fsync(fd)
    except OSError as error:
        return GroupOutcome(StorageFailed(f"no space for the ledger ({cause}), and cannot take back a part: {error}"))
    return GroupOutcome(StorageFull(f"no space for the ledger: {cause}"))


@contextmanager
def device_errors(what: str) -> Iterator[None]:
    """Convert an `OSError` of the body to the errors of `storage`."""
    try:
        yield
    except FileNotFoundError as error:
        raise LedgerMissing(f"{what}: the ledger does not exist in this storage") from error
    except OSError as error:
        kind: type[LedgerError] = StorageFull if error.errno in _NO_SPACE else StorageFailed
        raise kind(f"{what}: {error}") from error

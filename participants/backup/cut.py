"""Which entries belong to a backup: those that were there at its revision (DESIGN §13).

The records are of one revision. A ledger that was open then is copied later, so its last entries may be newer:

    outside transactions                                 stays: such an entry has no revision
    header decided at the revision                       stays: readers see it, or it is hidden, as the records say
    header open, and an operation of its writer          stays: it ends with its transaction
    header open, but no operation of its writer          newer: the operation is stored before the first entry
    no header                                            newer: the transaction began after the revision

Only entries that were not there when the copy began are judged: a transaction without a header that has written an
earlier one was collected, and the backup is only taken if nothing was collected that was decided since.
"""

from __future__ import annotations

from collections.abc import Iterable

from metastore.txn import paths
from metastore.txn.records.operations import WriteOp, decode_op
from metastore.txn.records.transactions import Header
from metatxn.wire.frames import RawFrame


class Cut:
    """The transactions of a backup, according to its records."""

    def __init__(self, records: Iterable[tuple[str, bytes]]) -> None:
        self._decided: dict[str, bool] = {}
        self._writers: set[tuple[str, str, str | None]] = set()
        for key, value in records:
            if key.startswith(paths.HEADERS):
                self._decided[paths.txn_id_of_header(key)] = Header.decode(value).state.final
            elif key.startswith(paths.OPS):
                operation = decode_op(value)
                if isinstance(operation, WriteOp):
                    txn_id = key.removeprefix(paths.OPS).partition("/")[0]
                    self._writers.add((txn_id, operation.segment, operation.writer))

    def holds(self, segment: str, frame: RawFrame) -> bool:
        txn_id = frame.txn_id
        if txn_id is None:
            return True
        decided = self._decided.get(txn_id)
        return bool(decided) or (decided is False and (txn_id, segment, frame.writer) in self._writers)

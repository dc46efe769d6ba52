"""What a coordinator presumes of what it has written itself (DESIGN §5.17).

A decision checks every record of its transaction. So it may begin with a presumption instead of a read: that the header
is still as this coordinator created it, and that no other record exists. If another coordinator has changed anything
meanwhile, the apply has no effect, and the transaction is read. The same is true of the record of a transaction key,
which a begin checks.
"""

from __future__ import annotations

from collections.abc import Iterable

from metastore.txn import paths
from metastore.txn.key_records import KeyRecord
from metastore.txn.records.transactions import SHORT_HEADER_BYTES, Header, TransactionKey
from metastore.txn.store import TransactionRecords
from metastore.types import Record, Revision
from metatxn.service.security.principal import Principal
from metatxn.wire.ids import TxnId

REMEMBERED = 10_000
"""The transactions that began last. Others are read when they end."""
REMEMBERED_KEYS = 1_000
KEY_BYTES = 4_096
"""Longer records are not remembered: a key may name 64 sessions."""


class Presumed:
    """The transactions without a key that began here, until something here changes or ends them."""

    def __init__(self) -> None:
        self._begun: dict[TxnId, tuple[Header, bytes, Revision]] = {}

    def begun(self, txn_ids: Iterable[TxnId], header: Header, revision: Revision) -> None:
        """Remember transactions that began with equal headers in the apply of this revision, unless these are long."""
        as_created = header, header.encode(), revision
        if len(as_created[1]) > SHORT_HEADER_BYTES:
            return
        for txn_id in txn_ids:
            self._begun[txn_id] = as_created
            if len(self._begun) > REMEMBERED:
                del self._begun[next(iter(self._begun))]

    def forget(self, *txn_ids: TxnId) -> None:
        for txn_id in txn_ids:
            self._begun.pop(txn_id, None)

    def take(self, txn_id: TxnId, caller: Principal) -> TransactionRecords | None:
        """The presumed records, once: who ends the transaction a second time has to read it. A caller who may not end
        it has to read it, too, because only an apply may be presumed, and no refusal."""
        found = self._begun.get(txn_id)
        if found is None or not caller.owns(found[0].owner):
            return None
        self.forget(txn_id)
        header, value, revision = found
        record = Record(paths.header(txn_id), value, revision, first=True)
        return TransactionRecords(txn_id, revision, record, header, None, None, None)


class PresumedKeys:
    """The records of the transaction keys whose holders ended a transaction here, until they begin the next one, unless
    these are long."""

    def __init__(self) -> None:
        self._written: dict[tuple[str | None, str], KeyRecord] = {}

    def written(self, key: KeyRecord, value: TransactionKey, revision: Revision) -> None:
        """The key was read, and then written by the apply of this revision."""
        assert key.record is not None, "a transaction of the key was ended"
        record = Record(key.record.key, value.encode(), revision, first=False)
        if len(record.value) > KEY_BYTES:
            return
        self._written[key.owner, key.key] = KeyRecord(key.owner, key.key, record)
        if len(self._written) > REMEMBERED_KEYS:
            del self._written[next(iter(self._written))]

    def take(self, owner: str | None, key: str) -> KeyRecord | None:
        """The presumed record, once: only an apply may be presumed, and no refusal."""
        return self._written.pop((owner, key), None)

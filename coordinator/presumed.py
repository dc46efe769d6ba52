"""What a coordinator presumes of the transactions that it began itself (DESIGN §5.17).

A decision checks every record of its transaction. So it may begin with a presumption instead of a read: that the header
is still as this coordinator created it, and that no other record exists. If another coordinator has changed anything
meanwhile, the apply has no effect, and the transaction is read.
"""

from __future__ import annotations

from collections.abc import Iterable

from metastore.txn import paths
from metastore.txn.records.transactions import SHORT_HEADER_BYTES, Header
from metastore.txn.store import TransactionRecords
from metastore.types import Record, Revision
from metatxn.service.security.principal import Principal
from metatxn.wire.ids import TxnId

REMEMBERED = 10_000
"""The transactions that began last. Others are read when they end."""


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

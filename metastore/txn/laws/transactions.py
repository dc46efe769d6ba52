"""Transactions: a header with the records beside it, its index entries and its transaction key."""

from __future__ import annotations

from metastore.txn import paths
from metastore.txn.laws.cluster import sequence_value
from metastore.txn.laws.law import Law, Problems, UnreadableError, View, decoded, parsed_key, parsed_number, txn_of
from metastore.txn.laws.remedies import DELETE, RESTORE
from metastore.txn.records.json_record import JsonRecord
from metastore.txn.records.transactions import Header, Lease, Prepared, TransactionKey
from metastore.txn.states import TxnState
from metastore.types import Record
from metatxn.wire.ids import TxnId


def header_law(record: Record, view: View) -> Problems:
    txn_id = txn_of(record.key, paths.HEADERS)
    header = decoded(record, Header.decode)
    if header.state.final:
        yield from _final_header(record, txn_id, header, view)
    else:
        yield from _open_header(record, txn_id, header, view)
    sequence = view.get(paths.id_sequence(txn_id.coordinator))
    if sequence is None or decoded(sequence, sequence_value) <= txn_id.sequence:
        problem = f"its id has not been leased: {paths.id_sequence(txn_id.coordinator)} does not go beyond it"
        yield problem, "Stop the coordinators and set the sequence above the highest id, or ids will repeat."


def _open_header(record: Record, txn_id: TxnId, header: Header, view: View) -> Problems:
    if not record.first:
        yield "the header is OPEN but was written more than once", f"It can no longer be decided. {RESTORE}"
    if header.finalized_ms is not None:
        yield "the header is OPEN but has the time of a decision", RESTORE
    if view.get(paths.lease(txn_id)) and view.get(paths.prepared(txn_id)):
        yield (
            "the transaction is prepared but has a keep-alive",
            f"Delete {paths.lease(txn_id)}: it has no effect any more.",
        )
    entry = paths.deadline_entry(_deadline_ms(txn_id, header, view), txn_id)
    if view.get(entry) is None:
        problem = f"the transaction is OPEN but missing in the deadline index: {entry}"
        yield problem, f"It would never time out: abort it with `metatxn txn abort {txn_id} --force`."
    if header.key is not None:
        yield from _held_by_key(txn_id, header, header.key, view)


def _held_by_key(txn_id: TxnId, header: Header, name: str, view: View) -> Problems:
    path = paths.transaction_key(header.owner, name)
    key = view.decode(TransactionKey, path)
    abort = f"It cannot commit: abort it with `metatxn txn abort {txn_id}`."
    if key is None or key.txn_id != str(txn_id):
        yield f"the transaction is OPEN but its transaction key does not hold it: {path}", abort
        return
    # A prepared transaction outlives its epoch: a newer connection learns of it and ends it.
    prepared = view.get(paths.prepared(txn_id)) is not None
    if header.epoch is None or (key.epoch < header.epoch if prepared else key.epoch != header.epoch):
        yield f"the transaction has epoch {header.epoch}, but its transaction key has epoch {key.epoch}: {path}", abort
    if header.version is not None and key.last_version is not None and header.version <= key.last_version:
        yield f"version {header.version} is OPEN, but {path} says that {key.last_version} was committed", abort


def _final_header(record: Record, txn_id: TxnId, header: Header, view: View) -> Problems:
    if record.first:
        yield f"the header is {header.state} but was written only once, so brokers treat it as OPEN", RESTORE
    if header.finalized_ms is None:
        yield f"the header is {header.state} without the time of the decision", RESTORE
        return
    if header.state is not TxnState.COMMITTED and header.writers is not None:
        yield "the header is ABORTED but has a list of writers that count", "This is harmless: the list is not read."
    if header.expired_by is not None and header.state is not TxnState.ABORTED:
        yield f"the header is {header.state} but says that it expired by {header.expired_by}", RESTORE
    entry = paths.final_state_entry(header.state, header.finalized_ms, str(txn_id))
    if view.get(entry) is None:
        problem = f"the transaction is {header.state} but missing in the index of final states: {entry}"
        yield problem, f"Put {entry} with an empty value: its header would never be collected."


def _deadline_ms(txn_id: TxnId, header: Header, view: View) -> int:
    """The deadline in force, like `TransactionRecords.deadline_ms`."""
    if prepared := view.decode(Prepared, paths.prepared(txn_id)):
        return prepared.deadline_ms
    lease = view.decode(Lease, paths.lease(txn_id))
    return lease.deadline_ms if lease else header.timeout_ms


def beside_open_header(kind: type[JsonRecord], prefix: str) -> Law:
    def law(record: Record, view: View) -> Problems:
        txn_id = txn_of(record.key, prefix)
        decoded(record, kind.decode)
        header = view.decode(Header, paths.header(txn_id))
        if header is None or header.state.final:
            state = header.state if header else "without a header"
            yield f"the record belongs to open transactions only, and {txn_id} is {state}", DELETE

    return law


def deadline_entry_law(record: Record, view: View) -> Problems:
    def parse() -> tuple[int, TxnId]:
        deadline, _, txn_id = record.key.removeprefix(paths.DEADLINE_INDEX).partition("/")
        return parsed_number(deadline), TxnId.parse(txn_id)

    deadline_ms, txn_id = parsed_key(record.key, parse, lambda parts: paths.deadline_entry(*parts))
    header = view.decode(Header, paths.header(txn_id))
    if header is None or header.state.final:
        yield f"the deadline index lists {txn_id}, which is {header.state if header else 'without a header'}", DELETE
    elif (in_force := _deadline_ms(txn_id, header, view)) != deadline_ms:
        yield f"the deadline index lists {txn_id} at {deadline_ms}, but its deadline is {in_force}", DELETE


def final_state_entry_law(record: Record, view: View) -> Problems:
    def parse() -> tuple[TxnState, int, str]:
        state, _, rest = record.key.removeprefix(paths.FINAL_STATE_INDEX).partition("/")
        finalized, _, txn_id = rest.partition("/")
        return TxnState(state), parsed_number(finalized), str(TxnId.parse(txn_id))

    state, finalized_ms, text = parsed_key(record.key, parse, lambda parts: paths.final_state_entry(*parts))
    header = view.decode(Header, paths.header(TxnId.parse(text)))
    if header is None or (header.state, header.finalized_ms) != (state, finalized_ms):
        found = f"{header.state} at {header.finalized_ms}" if header else "without a header"
        yield f"the index of final states lists {text} as {state} at {finalized_ms}, but it is {found}", DELETE


def key_law(record: Record, view: View) -> Problems:
    owner, name = parsed_key(
        record.key, lambda: paths.parse_transaction_key(record.key), lambda parts: paths.transaction_key(*parts)
    )
    key = decoded(record, TransactionKey.decode)
    if key.epoch < 0:
        yield f"the epoch {key.epoch} is negative", RESTORE
    if key.txn_id is None:
        return
    if key.deleted:
        yield f"the transaction key is deleted but holds transaction {key.txn_id}", RESTORE
    try:
        header = view.decode(Header, paths.header(TxnId.parse(key.txn_id)))
    except ValueError as error:
        raise UnreadableError(record.key, error) from error
    if header is None or header.state.final:
        state = header.state if header else "without a header"
        action = (
            "This is harmless by itself, because the next begin under the key clears it; but find out what wrote it."
        )
        yield f"the transaction key holds {key.txn_id}, which is {state}", action
    elif (header.owner or None, header.key) != (owner, name):
        yield f"the transaction key holds {key.txn_id}, which belongs to another key", RESTORE

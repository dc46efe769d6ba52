"""Transactions over many streams, decided by one compare-and-set in a metadata store.

client = metatxn.connect("http://127.0.0.1:8470")
with client.transaction() as txn:               # commits on leaving, aborts on an exception
    client.producer("orders").send({"id": 7}, key="7", txn=txn)
    client.producer("audit").send({"order": 7}, txn=txn)
"""

from metatxn.client import Client, connect
from metatxn.consumer import Consumer
from metatxn.errors import (
    AlreadyExists,
    ExpiredTransaction,
    InvalidArgument,
    InvalidTransactionState,
    MetatxnError,
    NotAllowed,
    NotFound,
    NotOwner,
    OutcomeUnknown,
    PayloadTooLarge,
    PositionTrimmed,
    RateLimited,
    SchemaMismatch,
    SegmentSealed,
    ServiceUnreachable,
    StorageFull,
    StoreUnavailable,
    TransactionConflict,
    TransactionNotFound,
    Unauthenticated,
)
from metatxn.frames import FramesPage
from metatxn.producer import Producer
from metatxn.reader import Message, Reader
from metatxn.table_writer import TableWriter
from metatxn.transaction import Transaction

__all__ = [
    "AlreadyExists",
    "Client",
    "Consumer",
    "ExpiredTransaction",
    "FramesPage",
    "InvalidArgument",
    "InvalidTransactionState",
    "Message",
    "MetatxnError",
    "NotAllowed",
    "NotFound",
    "NotOwner",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "PositionTrimmed",
    "Producer",
    "RateLimited",
    "Reader",
    "SchemaMismatch",
    "SegmentSealed",
    "ServiceUnreachable",
    "StorageFull",
    "StoreUnavailable",
    "TableWriter",
    "Transaction",
    "TransactionConflict",
    "TransactionNotFound",
    "Unauthenticated",
    "connect",
]

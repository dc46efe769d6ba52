"""Transactions over many streams, decided by one compare-and-set in a metadata store.

client = metatxn.connect("http://127.0.0.1:8470")
with client.transaction() as txn:               # commits on leaving, aborts on an exception
    client.producer("orders").send({"id": 7}, key="7", txn=txn)
    client.producer("audit").send({"order": 7}, txn=txn)

`connect_async` is the same for `async with` and `await`.
"""

from metatxn.client import AsyncClient, connect_async
from metatxn.consumer import AsyncConsumer
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
from metatxn.producer import AsyncProducer
from metatxn.reader import AsyncReader, Message
from metatxn.sync.client import Client, connect
from metatxn.sync.consumer import Consumer
from metatxn.sync.producer import Producer
from metatxn.sync.reader import Reader
from metatxn.sync.table_writer import TableWriter
from metatxn.sync.transaction import Transaction
from metatxn.table_writer import AsyncTableWriter
from metatxn.transaction import AsyncTransaction

__all__ = [
    "AlreadyExists",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncReader",
    "AsyncTableWriter",
    "AsyncTransaction",
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
    "connect_async",
]

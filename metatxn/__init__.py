"""Transactions over many streams, decided by one compare-and-set in a metadata store.

client = metatxn.connect("http://127.0.0.1:8470")
with client.transaction() as txn:               # commits on leaving, aborts on an exception
    client.producer("orders").send({"id": 7}, key="7", txn=txn)
    client.producer("audit").send({"order": 7}, txn=txn)

`connect_async` is the same for `async with` and `await`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metatxn.client import AsyncClient, connect_async
    from metatxn.consumer import AsyncConsumer
    from metatxn.frames import FramesPage
    from metatxn.producer import AsyncProducer
    from metatxn.read_hold import AsyncReadHold
    from metatxn.reader import AsyncReader, Message
    from metatxn.stored.looking import StoredMessage
    from metatxn.sync.client import Client, connect
    from metatxn.sync.consumer import Consumer
    from metatxn.sync.producer import Producer
    from metatxn.sync.read_hold import ReadHold
    from metatxn.sync.reader import Reader
    from metatxn.sync.table_writer import TableWriter
    from metatxn.sync.topics_consumer import TopicsConsumer
    from metatxn.sync.transaction import Transaction
    from metatxn.table_writer import AsyncTableWriter
    from metatxn.topics_consumer import AsyncTopicsConsumer
    from metatxn.transaction import AsyncTransaction
    from metatxn.wire.access import AccessInfo
    from metatxn.wire.broker import (
        HorizonsAnswer,
        PositionAnswer,
        ReadHoldInfo,
        SeekAnswer,
        SegmentDetail,
        SubscriptionInfo,
        SubscriptionSummary,
        TopicInfo,
    )
    from metatxn.wire.coordinator import (
        ConnectAnswer,
        HangingTransaction,
        Operation,
        TransactionHeader,
        TransactionKeyInfo,
        UpgradeStatus,
    )
    from metatxn.wire.errors import (
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
        SegmentInUse,
        SegmentSealed,
        ServiceUnreachable,
        StorageFull,
        StoreUnavailable,
        TransactionConflict,
        TransactionNotFound,
        Unauthenticated,
        UpgradePending,
    )
    from metatxn.wire.frames import Frame
    from metatxn.wire.models import BrokerInfo, BrokerSegment, Cluster, ServiceStatus, ThroughputAnswer


__all__ = [
    "AccessInfo",
    "AlreadyExists",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncReadHold",
    "AsyncReader",
    "AsyncTableWriter",
    "AsyncTopicsConsumer",
    "AsyncTransaction",
    "BrokerInfo",
    "BrokerSegment",
    "Client",
    "Cluster",
    "ConnectAnswer",
    "Consumer",
    "ExpiredTransaction",
    "Frame",
    "FramesPage",
    "HangingTransaction",
    "HorizonsAnswer",
    "InvalidArgument",
    "InvalidTransactionState",
    "Message",
    "MetatxnError",
    "NotAllowed",
    "NotFound",
    "NotOwner",
    "Operation",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "PositionAnswer",
    "PositionTrimmed",
    "Producer",
    "RateLimited",
    "ReadHold",
    "ReadHoldInfo",
    "Reader",
    "SchemaMismatch",
    "SeekAnswer",
    "SegmentDetail",
    "SegmentInUse",
    "SegmentSealed",
    "ServiceStatus",
    "ServiceUnreachable",
    "StorageFull",
    "StoreUnavailable",
    "StoredMessage",
    "SubscriptionInfo",
    "SubscriptionSummary",
    "TableWriter",
    "ThroughputAnswer",
    "TopicInfo",
    "TopicsConsumer",
    "Transaction",
    "TransactionConflict",
    "TransactionHeader",
    "TransactionKeyInfo",
    "TransactionNotFound",
    "Unauthenticated",
    "UpgradePending",
    "UpgradeStatus",
    "connect",
    "connect_async",
]

_MODULES = (
    *("client", "consumer", "frames", "producer", "read_hold", "reader", "table_writer", "topics_consumer"),
    *("sync.client", "sync.consumer", "sync.producer", "sync.reader", "sync.table_writer", "sync.topics_consumer"),
    *("transaction", "sync.read_hold", "sync.transaction", "stored.looking"),
    *("wire.errors", "wire.models", "wire.frames", "wire.coordinator", "wire.broker", "wire.access"),
)
"""The modules in which these names are defined; if two modules define a name, the first one counts. They are imported
when the first of their names is requested: the servers import `metatxn.wire` and never load the client."""


if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name in __all__:
            for module in _MODULES:
                if (found := vars(import_module(f"metatxn.{module}")).get(name)) is not None:
                    globals()[name] = found
                    return found
        raise AttributeError(f"module 'metatxn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)

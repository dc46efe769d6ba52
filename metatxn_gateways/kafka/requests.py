"""The supported requests, with their versions. ApiVersions lists these, and nothing else is answered."""

from __future__ import annotations

from enum import IntEnum

from metatxn_gateways.kafka import fetch, produce


class KafkaRequest(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66

    @property
    def label(self) -> str:
        """The name as Kafka writes it: `InitProducerId`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


_R = KafkaRequest
OFFERED: dict[int, range] = {
    _R.PRODUCE: produce.VERSIONS,
    _R.FETCH: fetch.VERSIONS,
    _R.LIST_OFFSETS: range(1, 10),
    _R.METADATA: range(1, 13),
    _R.OFFSET_COMMIT: range(2, 10),
    _R.OFFSET_FETCH: range(1, 9),
    _R.FIND_COORDINATOR: range(7),
    _R.JOIN_GROUP: range(10),
    _R.HEARTBEAT: range(5),
    _R.LEAVE_GROUP: range(6),
    _R.SYNC_GROUP: range(6),
    _R.DESCRIBE_GROUPS: range(6),
    _R.LIST_GROUPS: range(5),
    _R.SASL_HANDSHAKE: range(1, 2),
    _R.API_VERSIONS: range(5),
    _R.CREATE_TOPICS: range(2, 6),
    _R.DELETE_TOPICS: range(1, 5),
    _R.DELETE_RECORDS: range(3),
    _R.INIT_PRODUCER_ID: range(5),
    _R.OFFSET_FOR_LEADER_EPOCH: range(2, 5),
    _R.ADD_PARTITIONS_TO_TXN: range(4),
    _R.ADD_OFFSETS_TO_TXN: range(4),
    _R.END_TXN: range(4),
    _R.TXN_OFFSET_COMMIT: range(5),
    _R.DESCRIBE_CONFIGS: range(1, 5),
    _R.ALTER_CONFIGS: range(3),
    _R.SASL_AUTHENTICATE: range(3),
    _R.CREATE_PARTITIONS: range(4),
    _R.DELETE_GROUPS: range(3),
    _R.INCREMENTAL_ALTER_CONFIGS: range(2),
    _R.OFFSET_DELETE: range(1),
    _R.DESCRIBE_CLUSTER: range(2),
    _R.DESCRIBE_PRODUCERS: range(1),
    _R.DESCRIBE_TRANSACTIONS: range(1),
    _R.LIST_TRANSACTIONS: range(2),
}

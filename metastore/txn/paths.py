"""The whole schema: every key of the public layout, built here and nowhere else.

    /txn/<txnId>                                      Header
    /txn-lease/<txnId>                                Lease
    /txn-writers/<txnId>                              RememberedWriters
    /txn-prepared/<txnId>                             Prepared
    /txn-op/<txnId>/<seq>                             WriteOp | AckOp | OffsetOp
    /txn-key/<owner>&<key>                            TransactionKey
    /txn-seq/<coordinatorId>                          next free id (see MetadataStore.lease_ids)
    /idx/writes-by-segment/<segment>/<txnId>/<seq>    empty
    /idx/acks-by-segment-subscription/<segment>/<subscription>/<txnId>/<seq>   empty
    /idx/offsets-by-group/<group>/<txnId>/<seq>       empty
    /idx/txn-by-deadline/<ms20>/<txnId>               empty, open transactions only
    /idx/txn-by-final-state/<state>/<ms20>/<txnId>    empty, decided transactions only
    /segment-state/<segment>/outcome/<txnId>          Outcome
    /segment-state/<segment>/dedup/<snapshot>/<chunk> sequences of producers that retries are held against
    /subscription/<topic>/<subscription>              definition and incarnation; a tombstone once it is dropped
    /cursor/<segment>/<subscription>/<incarnation>/mark-delete      everything before it is acknowledged
    /cursor/<segment>/<subscription>/<incarnation>/acked/<bucket>   ranges behind it that are, a bounded number
    /cursor/<segment>/<subscription>/<incarnation>/deliveries       how often what is left was delivered
    /group/<group>                                    GroupRecord: a consumer group's generation
    /group-offset/<group>/<segment>                   CommittedOffset
    /topic/<name>  /segment/<id>  /segment-owner/<id> topics, segments, ownership
    /exclusive-producer/<topic>                       ExclusiveProducerRecord: who alone may publish
    /read-hold/<topic>/<hold>                         ReadHoldRecord: a revision at which the topic stays readable
    /pulsar-schema/<topic>/<version>                  PulsarSchemaRecord: what a client of Pulsar's has named
    /policy/cluster  /policy/namespace/<namespace>    PolicyRecord: what counts where a topic's own policy says nothing
    /quota/default  /quota/principal/<name>           QuotaRecord: how much a principal may use in a second
    /quota-use/<process>                              QuotaUseRecord: what a running service has let principals use
    /cluster/coordinator/<id>  /cluster/broker/<id>   ephemeral: the running services
    /cluster/drain/<storage>                          DrainRecord: its broker takes no new topics
    /cluster/process/<id>                             ephemeral: ProcessRecord, the release of each of them
    /cluster/incarnation                              Incarnation: the current incarnation of the store
    /cluster/version                                  VersionRecord: which forms may be written
    /gc/horizon                                       GcHorizon
    /gc/first-number                                  FirstNumber: where counters of forgotten records continue
    /batch/<process>/<slot>                           group-commit markers (etcd)

`<seq>` is `<segment>:w:<generation>:<counter>` for a write and `<segment>:a:<subscription>:<generation>:<counter>` for
an ack. A colon is always escaped inside a part, so one participant's operations are exactly one key prefix: it writes
them without contention and deletes no others. It is `<segment>:o:<group>` for the offset that a consumer group
commits: there is one, which a later one in the same transaction replaces.

The escape and padding rules are those of `metastore.keys`.
"""

from __future__ import annotations

from metastore.keys import escape, number, unescape
from metastore.txn.states import TxnState
from metatxn.wire.ids import TxnId

HEADERS = "/txn/"
LEASES = "/txn-lease/"
REMEMBERED_WRITERS = "/txn-writers/"
PREPARED = "/txn-prepared/"
OPS = "/txn-op/"
TRANSACTION_KEYS = "/txn-key/"
ID_SEQUENCES = "/txn-seq/"
WRITES_INDEX = "/idx/writes-by-segment/"
ACKS_INDEX = "/idx/acks-by-segment-subscription/"
OFFSETS_INDEX = "/idx/offsets-by-group/"
DEADLINE_INDEX = "/idx/txn-by-deadline/"
FINAL_STATE_INDEX = "/idx/txn-by-final-state/"
SEGMENT_STATES = "/segment-state/"
SUBSCRIPTIONS = "/subscription/"
CURSORS = "/cursor/"
DELIVERY_COUNTS = "deliveries"
GROUPS = "/group/"
GROUP_OFFSETS = "/group-offset/"
TOPICS = "/topic/"
SEGMENTS = "/segment/"
EXCLUSIVE_PRODUCERS = "/exclusive-producer/"
READ_HOLDS = "/read-hold/"
PULSAR_SCHEMAS = "/pulsar-schema/"
POLICIES = "/policy/"
CLUSTER_POLICY = "/policy/cluster"
NAMESPACE_POLICIES = "/policy/namespace/"
SEGMENT_OWNERS = "/segment-owner/"
QUOTAS = "/quota/"
DEFAULT_QUOTA = "/quota/default"
PRINCIPAL_QUOTAS = "/quota/principal/"
QUOTA_USES = "/quota-use/"
CLUSTER = "/cluster/"
COORDINATORS = "/cluster/coordinator/"
BROKERS = "/cluster/broker/"
DRAINS = "/cluster/drain/"
PROCESSES = "/cluster/process/"
INCARNATION = "/cluster/incarnation"
VERSION = "/cluster/version"
GC_HORIZON = "/gc/horizon"
FIRST_NUMBER = "/gc/first-number"
GROUP_COMMIT_MARKERS = "/batch/"


def header(txn_id: TxnId) -> str:
    return f"{HEADERS}{txn_id}"


def txn_id_of_header(key: str) -> TxnId:
    return TxnId.parse(key.removeprefix(HEADERS))


def lease(txn_id: TxnId) -> str:
    return f"{LEASES}{txn_id}"


def remembered_writers(txn_id: TxnId) -> str:
    return f"{REMEMBERED_WRITERS}{txn_id}"


def prepared(txn_id: TxnId) -> str:
    return f"{PREPARED}{txn_id}"


def ops_of_transaction(txn_id: TxnId) -> str:
    return f"{OPS}{txn_id}/"


def write_ops_of_segment(txn_id: TxnId, segment: str) -> str:
    """Prefix of the write operations of one transaction on one segment."""
    return f"{OPS}{txn_id}/{escape(segment)}:w:"


def write_op(txn_id: TxnId, segment: str, generation: int, counter: int) -> str:
    return f"{write_ops_of_segment(txn_id, segment)}{number(generation)}:{number(counter)}"


def ack_ops_of_subscription(txn_id: TxnId, segment: str, subscription: str) -> str:
    """Prefix of the acks of one transaction on one segment and subscription."""
    return f"{OPS}{txn_id}/{escape(segment)}:a:{escape(subscription)}:"


def ack_op(txn_id: TxnId, segment: str, subscription: str, generation: int, counter: int) -> str:
    return f"{ack_ops_of_subscription(txn_id, segment, subscription)}{number(generation)}:{number(counter)}"


def offset_op(txn_id: TxnId, segment: str, group: str) -> str:
    return f"{OPS}{txn_id}/{escape(segment)}:o:{escape(group)}"


def op_key_parts(key: str) -> tuple[str, str]:
    """(transaction id, seq) of an operation record's key."""
    txn_id, _, seq = key.removeprefix(OPS).partition("/")
    return txn_id, seq


def participant_of_op(key: str) -> tuple[str, str | None, str]:
    """(segment, subscription of an ack, prefix of all the participant's operations in this transaction) of an operation
    record's key. A group has one operation."""
    if offset_entry(key) is not None:
        return unescape(op_key_parts(key)[1].partition(":")[0]), None, key
    participant = key.rsplit(":", 2)[0]
    segment, _, *subscription = op_key_parts(participant)[1].split(":")
    return unescape(segment), unescape(subscription[0]) if subscription else None, f"{participant}:"


def writes_by_segment(segment: str) -> str:
    """Prefix, inside the index `writes-by-segment`, of one segment's entries."""
    return f"{escape(segment)}/"


def write_entry(op_key: str) -> str | None:
    """The entry in the index `writes-by-segment` of the operation record with this key; None if it is an ack's."""
    seq = op_key.rpartition("/")[2]
    segment, kind, _ = seq.split(":", 2)
    return f"{segment}/{op_key.removeprefix(OPS)}" if kind == "w" else None


def acks_by_segment(segment: str) -> str:
    """Prefix, inside the index `acks-by-segment-subscription`, of one segment's entries."""
    return f"{escape(segment)}/"


def acks_by_subscription(segment: str, subscription: str) -> str:
    """Prefix, inside the index `acks-by-segment-subscription`, of one subscription's entries on one segment."""
    return f"{acks_by_segment(segment)}{escape(subscription)}/"


def op_of_write_entry(entry: str) -> str:
    """The key of the operation record behind an entry of the index `writes-by-segment`."""
    return OPS + entry.split("/", 1)[1]


def ack_entry(op_key: str) -> str | None:
    """The entry in the index `acks-by-segment-subscription` of the operation record with this key; None if it is a
    write's."""
    if ":a:" not in op_key:
        return None
    segment, kind, subscription, *_ = op_key.rpartition("/")[2].split(":")
    return f"{segment}/{subscription}/{op_key.removeprefix(OPS)}" if kind == "a" else None


def op_of_ack_entry(entry: str) -> str:
    """The key of the operation record behind an entry of the index `acks-by-segment-subscription`."""
    return OPS + entry.split("/", 2)[2]


def offsets_by_group(group: str) -> str:
    """Prefix, inside the index `offsets-by-group`, of one group's entries."""
    return f"{escape(group)}/"


def offset_entry(op_key: str) -> str | None:
    """The entry in the index `offsets-by-group` of the operation record with this key; None if it is another one's."""
    parts = op_key.rpartition("/")[2].split(":")
    return f"{parts[2]}/{op_key.removeprefix(OPS)}" if len(parts) == 3 and parts[1] == "o" else None


def op_of_offset_entry(entry: str) -> str:
    """The key of the operation record behind an entry of the index `offsets-by-group`."""
    return OPS + entry.split("/", 1)[1]


def group_of_offset_entry(entry: str) -> str:
    return unescape(entry.partition("/")[0])


def transaction_key(owner: str | None, key: str) -> str:
    """The key of a transaction key, which is unique per owner; `&` is escaped in both, so the pair is never
    ambiguous."""
    return f"{TRANSACTION_KEYS}{escape(owner) if owner else ''}&{escape(key)}"


def parse_transaction_key(path: str) -> tuple[str | None, str]:
    owner, _, key = path.removeprefix(TRANSACTION_KEYS).partition("&")
    return unescape(owner) or None, unescape(key)


def id_sequence(coordinator: int) -> str:
    return f"{ID_SEQUENCES}{number(coordinator)}"


def next_id(key: str, value: bytes) -> TxnId:
    """The lowest id that is not leased yet, as this record of `id_sequence` tells it."""
    return TxnId(int(key.removeprefix(ID_SEQUENCES)), int(value))


def deadline_entry(deadline_ms: int, txn_id: TxnId) -> str:
    return f"{DEADLINE_INDEX}{number(deadline_ms)}/{txn_id}"


def final_state_entry(state: TxnState, finalized_ms: int, txn_id: str) -> str:
    return f"{FINAL_STATE_INDEX}{decided_at(state, finalized_ms)}/{txn_id}"


def decided_at(state: TxnState, finalized_ms: int) -> str:
    return f"{state}/{number(finalized_ms)}"


def segment_states(segment: str) -> str:
    """Prefix of the outcomes and snapshots of one segment."""
    return f"{SEGMENT_STATES}{escape(segment)}/"


def outcomes(segment: str) -> str:
    return f"{segment_states(segment)}outcome/"


def outcome(segment: str, txn_id: TxnId) -> str:
    return f"{outcomes(segment)}{txn_id}"


def dedup_snapshots(segment: str) -> str:
    """Prefix of every snapshot of one segment's dedup table."""
    return f"{segment_states(segment)}dedup/"


def dedup_chunk(segment: str, snapshot: str, chunk: int) -> str:
    return f"{dedup_snapshots(segment)}{escape(snapshot)}/{number(chunk)}"


def subscriptions(topic_name: str) -> str:
    """Prefix of the subscriptions of one topic."""
    return f"{SUBSCRIPTIONS}{escape(topic_name)}/"


def subscription(topic_name: str, name: str) -> str:
    return f"{subscriptions(topic_name)}{escape(name)}"


def cursors_of_segment(segment: str) -> str:
    """Prefix of every cursor on one segment."""
    return f"{CURSORS}{escape(segment)}/"


def cursors(segment: str, subscription_name: str) -> str:
    """Prefix of what all incarnations of one subscription keep on one segment."""
    return f"{cursors_of_segment(segment)}{escape(subscription_name)}/"


def cursor(segment: str, subscription_name: str, incarnation: int) -> str:
    """Prefix of the records of one cursor."""
    return f"{cursors(segment, subscription_name)}{number(incarnation)}/"


def cursor_mark(segment: str, subscription_name: str, incarnation: int) -> str:
    return f"{cursor(segment, subscription_name, incarnation)}mark-delete"


def cursor_buckets(segment: str, subscription_name: str, incarnation: int) -> str:
    return f"{cursor(segment, subscription_name, incarnation)}acked/"


def cursor_bucket(segment: str, subscription_name: str, incarnation: int, start: tuple[int, int, int]) -> str:
    """The key of a bucket. `start` (ledger, entry, index) was the first place of its first range when it was made."""
    name = ":".join(map(number, start))
    return f"{cursor_buckets(segment, subscription_name, incarnation)}{name}"


def delivery_counts(segment: str, subscription_name: str, incarnation: int) -> str:
    return f"{cursor(segment, subscription_name, incarnation)}{DELIVERY_COUNTS}"


def group(name: str) -> str:
    return f"{GROUPS}{escape(name)}"


def group_offsets(name: str) -> str:
    """Prefix of the committed offsets of one group."""
    return f"{GROUP_OFFSETS}{escape(name)}/"


def group_offset(name: str, segment_id: str) -> str:
    return f"{group_offsets(name)}{escape(segment_id)}"


def segment_of_group_offset(key: str) -> str:
    return unescape(key.rpartition("/")[2])


def topic(name: str) -> str:
    return f"{TOPICS}{escape(name)}"


def segment(segment_id: str) -> str:
    return f"{SEGMENTS}{escape(segment_id)}"


def segments_of_topic(topic_name: str) -> str:
    """Prefix of the segments of one topic, including those that are removed or deleted and not gone yet."""
    return segment(f"segment://{topic_name}/")


def owners_of_topic(topic_name: str) -> str:
    """Prefix of the owners of these segments."""
    return segment_owner(f"segment://{topic_name}/")


def segment_owner(segment_id: str) -> str:
    return f"{SEGMENT_OWNERS}{escape(segment_id)}"


def exclusive_producer(topic_name: str) -> str:
    return f"{EXCLUSIVE_PRODUCERS}{escape(topic_name)}"


def read_holds(topic_name: str) -> str:
    """Prefix of the read holds of one topic."""
    return f"{READ_HOLDS}{escape(topic_name)}/"


def read_hold(topic_name: str, hold_id: str) -> str:
    return f"{read_holds(topic_name)}{escape(hold_id)}"


def parse_read_hold(key: str) -> tuple[str, str]:
    """The topic and the id of a hold."""
    topic_name, hold_id = key.removeprefix(READ_HOLDS).split("/")
    return unescape(topic_name), unescape(hold_id)


def pulsar_schemas(topic_name: str) -> str:
    """Prefix of the versions of the schema of one topic for Pulsar's clients."""
    return f"{PULSAR_SCHEMAS}{escape(topic_name)}/"


def pulsar_schema(topic_name: str, version: int) -> str:
    return f"{pulsar_schemas(topic_name)}{number(version)}"


def parse_pulsar_schema(key: str) -> tuple[str, int]:
    """The topic and the version."""
    topic_name, version = key.removeprefix(PULSAR_SCHEMAS).split("/")
    return unescape(topic_name), int(version)


def namespace_policy(namespace: str) -> str:
    """The key of the policy of a namespace, `tenant/namespace`."""
    return f"{NAMESPACE_POLICIES}{escape(namespace)}"


def coordinator_process(process_id: str) -> str:
    return f"{COORDINATORS}{escape(process_id)}"


def broker_process(process_id: str) -> str:
    return f"{BROKERS}{escape(process_id)}"


def drain_of_storage(storage: str) -> str:
    return f"{DRAINS}{escape(storage)}"


def quota_of_principal(name: str) -> str:
    return f"{PRINCIPAL_QUOTAS}{escape(name)}"


def quota_use(process: str) -> str:
    return f"{QUOTA_USES}{escape(process)}"


def process(process_id: str) -> str:
    return f"{PROCESSES}{escape(process_id)}"

"""The bounds of the services and of the client, drawn anew for each seed of the simulation and of chaos.

What is done in slices, pages and groups, and what is kept in caches, is bounded so generously that a minute of a test
never comes to the second slice. So half of the bounds of a seed are as in production, and the others so small that they
are met all the time: a ledger of three entries, one operation in an apply, one frame in a page.

A bound is a constant that is looked up when it is used, so that it can be replaced while nothing runs.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest import mock

SMALL: Mapping[str, Sequence[int]] = {
    # ledgers
    "participants.segment.segment.MAX_LEDGER_ENTRIES": (3, 20),
    "participants.segment.segment.MANY_LEDGERS": (3, 10),
    "participants.segment.hidden.KEPT_INDEX_BYTES": (0, 500),
    "participants.segment.indexing.IDLE_MS": (1, 5_000),
    "participants.segment.indexing.FEW_OUTCOMES": (1, 3),
    "participants.segment.indexing.MANY_OUTCOMES": (2, 20),
    "participants.segment.indexing.READ_BYTES": (1, 500),
    "participants.segment.indexing.OUTCOMES_PER_APPLY": (1, 3),
    "participants.segment.indexing.INDEXED_AT_ONCE": (1,),
    "participants.segment.compacting.KEYS_PER_PASS": (1, 5),
    "participants.segment.compacting.READ_BYTES": (1, 500),
    "participants.segment.compacting.FILTER_BYTES": (1, 20),
    "participants.ledger.reading.COPIED_BYTES": (1, 500),
    "participants.ledger.object_storage.FORM_PART_BYTES": (1, 500),
    "participants.segment.reading.LOOKED_AT_ONCE": (1, 3),
    "participants.segment.reading.READ_BYTES": (1, 500),
    "participants.segment.recovery.READ_BYTES": (1, 500),
    "participants.segment.record_times.READ_BYTES": (1, 500),
    "participants.segment.record_times.REMEMBERED_LEDGERS": (1, 2),
    "participants.ledger.append_queue.GROUP_BYTES": (1, 500),
    "participants.ledger.local_files.KEPT_FILES": (1, 2),
    "participants.ledger.local_ledger.AT_ONCE_BYTES": (0, 500),
    "participants.ledger.workers.CALLS_AT_ONCE": (1, 2),
    "participants.ledger.object_ledger.ObjectOpenLedger.groups_at_once": (1, 2),
    "participants.ledger.object_ledger._OBJECTS_PER_READ": (1, 2),
    "participants.ledger.object_ledger._CACHED_OBJECT_BYTES": (0, 500),
    "participants.ledger.object_ledger._CACHE_BYTES": (0, 2_000),
    "participants.ledger.object_storage._GETS_AT_ONCE": (1, 2),
    "participants.backup.taking.CHUNK_BYTES": (1, 500),
    "participants.backup.taking._AT_ONCE": (1, 2),
    "participants.backup.place._DELETED_AT_ONCE": (1, 3),
    "participants.backup.records.PAGE_BYTES": (1, 500),
    "participants.backup.loading._TOGETHER": (1, 3),
    "participants.backup.loading._AT_ONCE": (1, 2),
    # segments
    "participants.segment.dedup_snapshot.CHUNK_BYTES": (1, 500),
    "participants.segment.dedup_snapshot._RUNS_PER_ROW": (1, 3),
    "participants.segment.dedup_snapshot.DELETED_PER_APPLY": (1, 3),
    "participants.segment.trimming.OUTCOMES_PER_APPLY": (1, 3),
    "participants.segment.retention.SHARES_OF_OPEN_LEDGERS": (1, 3),
    "participants.segment.intents.INTENTS_PER_APPLY": (1, 3),
    "participants.txn.materializer.OPS_PER_APPLY": (1, 3),
    "participants.txn.materializer.OPS_PER_READ": (1, 5),
    "participants.txn.materializer.TOGETHER_BYTES": (1, 30),
    "participants.txn.shared_materializing.OPS_PER_SEGMENT": (1, 3),
    "participants.txn.shared_materializing.IDS_APART": (1, 2),
    "participants.txn.shared_materializing.REQUESTS_PER_ROUND": (1, 3),
    "participants.txn.shared_reads.TRANSACTIONS_PER_READ": (1, 2),
    "participants.txn.header_mirror.KEPT_DECISIONS": (1, 20),
    "participants.txn.header_mirror.LISTENERS_AT_ONCE": (1, 3),
    # brokers
    "participants.broker.broker._PAGE": (1, 3),
    "participants.broker.broker._OPEN_AT_ONCE": (1, 2),
    "participants.broker.placement._MOVES_AT_ONCE": (1,),
    "participants.broker.placement._MOVES_OF_A_DRAIN": (1, 2),
    "participants.topic.deletion._OPS_PER_READ": (1, 5),
    "participants.topic.forgetting.FORGET_AFTER_MS": (1, 3_000),
    "participants.topic.forgetting.LOOK_EVERY_MS": (1, 2_000),
    "participants.topic.messages.BROWSE_BYTES": (1, 500),
    "participants.topic.messages.BROWSE_MS": (0, 20),
    "participants.api.routes.ANSWER_BYTES": (1, 500),
    "participants.api.frames_response.CHUNK_BYTES": (100, 1_000),
    "participants.api.frames_response.SMALL_BYTES": (1, 500),
    "participants.api.horizon_routes.SCAN_BYTES": (1, 500),
    # subscriptions
    "participants.subscription.dispatch.READ_BYTES": (1, 500),
    "participants.subscription.dispatch.LOOK_BYTES": (1, 500),
    "participants.subscription.dead_letters.TOGETHER": (1, 2),
    "participants.txn.own_transactions.IDS_AT_ONCE": (1,),
    "participants.subscription.delivery_counts.ENTRIES_AHEAD": (1, 3),
    "participants.subscription.keyed_deliveries.LOOK_AHEAD": (1, 3, 20),
    "participants.subscription.deliveries.MAX_LATER": (1, 5),
    "participants.subscription.deliveries.DUE_AT_ONCE": (1, 3),
    "participants.subscription.segment_subscription.RECORDS_PER_APPLY": (1, 3),
    "participants.subscription.segment_subscription.RECORDS_PER_READ": (1, 5),
    "participants.topic.subscription.RECEIVE_BYTES": (1, 500),
    "participants.subscription.cursor_store.RECORDS_PER_APPLY": (1, 3),
    "participants.subscription.cursor.RANGES_PER_BUCKET": (2, 8),
    "participants.subscription.deletion.RECORDS_PER_APPLY": (1, 3),
    "participants.subscription.deletion.RECORDS_PER_READ": (1, 5),
    "participants.subscription.message_counts.PAGE_BYTES": (1, 500),
    "participants.subscription.message_counts.MAX_CHECKPOINTS": (2, 8),
    # coordinators and their store
    "coordinator.timeout_sweep.SLICE": (1, 5),
    "coordinator.timeout_sweep.TOGETHER": (1, 3),
    "coordinator.gc_sweep.SLICE": (1, 5),
    "coordinator.gc_sweep.TOGETHER": (1, 3),
    "coordinator.key_sweep.INTERVAL_MS": (500,),
    "coordinator.key_sweep.SLICE": (1, 5),
    "coordinator.key_sweep.TOGETHER": (1, 3),
    "coordinator.presumed.REMEMBERED": (0, 1),
    "coordinator.presumed.REMEMBERED_KEYS": (0, 1),
    "coordinator.presumed.KEY_BYTES": (1, 300),
    "coordinator.ages.PAGE": (1, 5),
    "coordinator.survey.PAGE": (1, 5),
    "metastore.api._KEYS_PER_PART": (1, 3),
    "metastore.txn.entries.ENTRIES_PER_READ": (1, 3),
    "metastore.txn.entries.PREFIXES_PER_TURN": (1, 3),
    "participants.segment.reconciling.HEADERS_PER_READ": (1, 3),
    "participants.broker.broker._TENDED_PER_TURN": (1, 3),
    "participants.broker.placement._PLACED_PER_TURN": (1, 3),
    "metastore.txn.listing._OPERATIONS_PER_JUMP": (1, 3),
    "metastore.watches.MAX_QUEUED_BYTES": (20_000,),
    # the client
    "metatxn.http.MAX_ON_THEIR_WAY": (2, 5),
    "metatxn.consumer.MAX_MESSAGES": (1, 10),
    "metatxn.consumer.PREFETCH_MESSAGES": (1, 5),
    "metatxn.consumer.MAX_IDS": (1, 3),
    "metatxn.outgoing.STICKY_MESSAGES": (1, 3),
    "metatxn.together.LEAST_PORTION": (1, 2),
    "metatxn.delivery.MAX_AHEAD": (1, 2),
    "metatxn.delivery.MAX_IN_FLIGHT": (1, 2),
    "metatxn.reader.FULL_PAGE_BYTES": (1,),
    "metatxn.publishing.GATHERING_MS": (20, 300),
    "metatxn.publishing.MAX_GROUP_ENTRIES": (2, 3),
    "metatxn.publishing.MAX_GROUP_BYTES": (300,),
    "metatxn.publishing.MAX_ENTRY_BYTES": (100,),
}
"""By name."""
AS_THEY_ARE: Mapping[str, Sequence[str]] = {
    "a promise of the contract": (
        "metatxn.wire.coordinator: MAX_BATCH_ITEMS MAX_KEY_LENGTH MAX_WRITERS MAX_TIMEOUT_MS MAX_NUMBER",
        "coordinator.paging: MAX_LIMIT",
        "coordinator.transaction_keys: FENCED_SESSIONS_KEPT",
        "coordinator.transactions: MAX_WRITERS_BYTES",
        "metastore.api: MAX_BATCH_BYTES",
        "metatxn.service.limits: MAX_BODY_BYTES",
        "metatxn.service.server: MAX_HEAD_BYTES",
        "metatxn.service.audit: MAX_TEXT",
        "metatxn.service.security.authentication: MAX_TOKEN_LENGTH",
        "metatxn.wire.batches: MAX_DEPTH",
        "metatxn.wire.broker: MAX_ANNOUNCED_SEGMENTS MAX_ANNOUNCED_TRANSACTIONS",
        "metatxn.wire.entry_groups: MAX_ENTRIES",
        "metatxn.wire.names: MAX_COLUMN_LIST MAX_PAGE_TOKEN",
        "metatxn.wire.broker: MAX_ENTRY_MESSAGES MAX_SEGMENTS MAX_NAME MAX_REVISION MAX_DELAY_MS MAX_HOLD_MS",
        "metatxn.wire.broker: MAX_REDELIVERY_MS MAX_SESSION_TIMEOUT_MS MAX_TIME_MS",
        "participants.api.subscription_requests: MAX_WITHDRAWN",
        "participants.common.traffic: MAX_TOPICS",
        "participants.common.horizon_lags: MAX_SEGMENT_SERIES",
        "participants.topic.subscription_metrics: MAX_SUBSCRIPTIONS",
        "participants.api.queries: MAX_WAIT_MS MAX_READ_BYTES MAX_ENTRIES_BACK",
        "participants.api.append_routes: MAX_NUMBER",
        "participants.messages.read_holds: MAX_HOLDS",
        "participants.messages.schemas: MAX_SCHEMA_BYTES",
        "participants.segment.dedup: REMEMBERED_SEQUENCES REMEMBERED_IN_ALL",
        "participants.subscription.deliveries: MAX_OUTSTANDING",
        "participants.subscription.delivery_counts: MAX_RANGES",
        "participants.topic.cut: MAX_CUT_RANGES",
    ),
    "a size of the format, or an estimate of one": (
        "coordinator.capacity: ROOM_OF_KEY_BYTES ROOM_BYTES",
        "metastore.incarnation: IDS_PER_MS",
        "metastore.txn.records.transactions: SHORT_HEADER_BYTES",
        "metastore.watches: EVENT_BYTES",
        "participants.ledger.directories: _NAME_BYTES",
        "participants.ledger.form: FORM_HEAD_BYTES",
        "participants.segment.compacting: _KEY_BYTES",
        "metatxn.wire.frames: MAX_FRAME_BYTES MAX_HEADER_BYTES MAX_NAME_BYTES MIN_FRAME_BYTES _TXN_BYTES",
        "metatxn.wire.frames: MAX_PAYLOAD_BYTES",
        "metatxn.wire.record_batches: MAX_RECORDS_BYTES MAX_HEADERS MAX_JSON_BYTES",
        "metatxn.wire.arrow_sizes: MAX_TABLE_BYTES ROW_BYTES _PREFIX_BYTES",
        "metatxn.outgoing: RECORD_BYTES",
        "metatxn.wire.pulsar_entries: MAX_UNPACKED_BYTES",
        "participants.ledger.objects: _INDEX_HEAD_BYTES HEADER_BYTES",
        "participants.ledger.recovery: GROUP_BYTES REWRITE_BYTES _CHUNK_BYTES",
        "participants.ledger.seal_mark: _HEAD_BYTES",
        "participants.segment.dedup_snapshot: _RUN_BYTES",
    ),
    "a default or an option, drawn where it is given": (
        "metatxn.delivery: MAX_PENDING_BYTES",
        "metatxn.wire.policies: MAX_UNACKED_PER_CONSUMER",
        "metatxn.outgoing: BATCH_MESSAGES",
        "metatxn.together: PORTION_MESSAGES",
        "metatxn.producer: BATCH_BYTES MAX_SEQUENCE",
        "participants.api.frames_response: ANSWER_BYTES",
        "participants.topic.reading: BROWSE_BYTES",
        "participants.ledger.chain: READ_BYTES",
        "participants.ledger.object_ledger: PUTS_AT_ONCE",
        "participants.ledger.open_files: KEPT_FILES",
        "participants.segment.rolling: DEFAULT_MAX_LEDGER_BYTES",
    ),
    "not met by what clients do there": (
        "coordinator.batches: TOGETHER LANES_AT_ONCE",
        "coordinator.gc_sweep: _MOST_RIVALS",
        "coordinator.hanging: MAX_AGE_MS MAX_EXAMINED MAX_TOUCHED MAX_TOUCHED_OF_ALL",
        "coordinator.newest: _IDS_AT_ONCE",
        "coordinator.listings: PAGE_BYTES _SMALLEST_SLICE ROWS_PER_PAGE",
        "coordinator.store_checks: STEP_BYTES",
        "coordinator.stored_records: PAGE_BYTES",
        "coordinator.ages: MAX_COUNTED",
        "coordinator.survey: MAX_LABELLED_KEYS",
        "metastore.watches: MAX_LOGGED_BYTES",
        "metatxn.frames: PAGE_BYTES",
        "participants.messages.projection: LEAST_BYTES MOST_BYTES",
        "metatxn.connection: MAX_OPEN",
        "metatxn.http: MAX_REDIRECTS",
        "metatxn.reader: PAGE_MESSAGES",
        "metatxn.service.audit_pages: PAGE_BYTES",
        "metatxn.service.quotas.quotas: MAX_PRINCIPALS MAX_TOLD",
        "participants.common.transaction_work: MAX_REMEMBERED",
        "participants.messages.schema_versions: MAX_FORMER_CHARACTERS MAX_FORMER_VERSIONS",
        "metatxn.redrive: TOGETHER",
        "metatxn.table_writer: MAX_ROWS_BYTES DEFAULT_ENTRY_BYTES SMALL_BATCH_BYTES SMALL_COLUMN_BYTES",
        "metatxn.table_writer: MAX_ENTRY_BATCHES",
        "participants.messages.topics: KEYS_PER_READ TOPICS_PER_READ",
        "metatxn.tables: PARALLEL_READS",
        "metatxn.transport.connection: _ONE_BUFFER_BYTES",
        "metatxn.transport.reading: _LONGEST_AHEAD_BYTES _RECEIVED_AT_ONCE_BYTES",
        "participants.api.large_answers: IN_MEMORY_BYTES CHUNK_BYTES",
        "participants.segment.rewriting: COPIED_BYTES_PER_S",
        "participants.topic.move_counts: MOST_KEPT MOST_KEPT_RANGES",
        "participants.topic.compaction: _SCANS_AT_ONCE REMEMBERED_KEYS",
        "participants.ledger.bucket: _LIST_CHUNK",
        "participants.ledger.disk: WRITE_BYTES",
        "participants.backup.taking: _READS",
    ),
}
"""What looks like a bound and is not drawn, by the reason why: of each module its constants."""
LEDGER_BYTES = (300, 2_000, 20_000)
"""Of a full ledger; an option of the broker, not a constant."""


RECONCILE_INTERVAL_MS = (1_000, 2_500)
"""Between two passes of the upkeep; an option of the broker, too. Longer ones would only make seeds longer."""


def drawn(seed: object) -> dict[str, int]:
    """The bounds of this seed that are not as in production. Each has a generator of its own: one more moves none."""
    found = {}
    for name, small in SMALL.items():
        random = Random(f"{seed}/bound {name}")
        if random.random() < 0.5:
            found[name] = random.choice(small)
    return found


def ledger_bytes(seed: object, usual: int) -> int:
    random = Random(f"{seed}/bound of ledgers")
    return random.choice((usual, *LEDGER_BYTES))


def reconcile_interval_ms(seed: object, usual: int) -> int:
    random = Random(f"{seed}/bound of passes")
    return random.choice((usual, usual, *RECONCILE_INTERVAL_MS))


def entry_bounds(seed: object) -> dict[str, Any]:
    """Of an entry that a producer of the client makes: options, too."""
    random = Random(f"{seed}/bound of entries")
    return {"max_entry_messages": random.choice((1, 2, 1_000)), "max_entry_bytes": random.choice((1, 200, 1 << 20))}


@contextmanager
def applied(bounds: Mapping[str, int]) -> Iterator[None]:
    with ExitStack() as stack:
        for name, bound in bounds.items():
            place, attribute = place_of(name)
            stack.enter_context(mock.patch.object(place, attribute, bound))
        yield


def place_of(name: str) -> tuple[Any, str]:
    """The module or class of a bound, and what it is called there."""
    path, _, attribute = name.rpartition(".")
    return pkgutil.resolve_name(path), attribute

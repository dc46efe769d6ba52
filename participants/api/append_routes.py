"""The endpoints that append entries to segments, one entry or several of one transaction, and that announce some."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import AfterValidator

from metastore.errors import MetastoreError
from metastore.versions import Feature
from metatxn.service.gate import BODY
from metatxn.service.http import Caller, PathText, TxnIdPath, problem_for, problems
from metatxn.service.security.principal import Principal
from metatxn.wire import errors
from metatxn.wire.batches import unpack_batch
from metatxn.wire.broker import (
    ARROW_MEDIA_TYPE,
    BATCH_MEDIA_TYPE,
    BYTES_MEDIA_TYPE,
    MAX_NAME,
    MESSAGES_MEDIA_TYPE,
    AnnounceAnswer,
    AnnounceRequest,
    AppendedPart,
    Message,
    PublishAnswer,
)
from metatxn.wire.coordinator import CommitRequest, TransactionHeader
from metatxn.wire.entry_groups import MEDIA_TYPE, EntryHead, PublishGroupAnswer, unpack_entries
from metatxn.wire.frames import NO_SEQUENCE, Behind, Entry, PayloadKind
from metatxn.wire.ids import TxnId
from metatxn.wire.names import topic_of_segment
from metatxn.wire.problems import Problem
from metatxn.wire.text import no_control_characters
from participants.api.queries import TxnIdQuery
from participants.api.rights import check_transaction, on_segment
from participants.broker.broker import Broker
from participants.messages.batches import for_kafka
from participants.messages.payloads import as_batch, entry_for_all_releases, hashes_of
from participants.segment.dedup import AppendedBefore
from participants.segment.segment import Segment
from participants.topic.fitting import inspect

_ENTRY_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            BYTES_MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}, "example": "any bytes"},
            ARROW_MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}, "example": "an Arrow IPC stream"},
            MESSAGES_MEDIA_TYPE: {
                "schema": {"type": "array", "items": {"type": "object"}},
                "example": [{"key": "7", "value": {"id": 7}}],
            },
            BATCH_MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}, "example": "a batch of messages"},
        },
    }
}
_GROUP_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}, "example": "a head in JSON, and payloads"}
        },
    }
}
MAX_NUMBER = 2**53 - 1
NameQuery = Annotated[str | None, Query(min_length=1, max_length=MAX_NAME), AfterValidator(no_control_characters)]
SequenceQuery = Annotated[int | None, Query(ge=0, le=MAX_NUMBER)]
EpochQuery = Annotated[int | None, Query(ge=1, le=MAX_NUMBER)]
PreviousQuery = Annotated[int | None, Query(ge=NO_SEQUENCE, le=MAX_NUMBER)]


def add_append_routes(api: APIRouter, broker: Broker) -> None:
    _append_route(api, broker)
    _append_group_route(api, broker)
    _announce_route(api, broker)


def _append_route(api: APIRouter, broker: Broker) -> None:
    @api.post(
        "/v1/segments/{segment}/entries",
        tags=["segments"],
        response_model_exclude_none=True,
        responses=problems(307, 404, 409, 413, 422, 503, 504, 507),
        openapi_extra=_ENTRY_BODY,
        dependencies=[on_segment("produce")],
    )
    async def append_entry(
        segment: PathText,
        request: Request,
        caller: Caller,
        txn_id: TxnIdQuery = None,
        writer: NameQuery = None,
        producer: NameQuery = None,
        sequence: SequenceQuery = None,
        previous_sequence: PreviousQuery = None,
        inherited_sequence: PreviousQuery = None,
        producer_epoch: EpochQuery = None,
        before_commit: bool = False,
        count: Annotated[int | None, Query(ge=1, le=2**32 - 1, description="1 when not given")] = None,
    ) -> PublishAnswer:
        """Append one entry. The body is its payload; `count` is the number of messages or rows in it.

        With `sequence` a retry is recognized, so the entry is appended exactly once: sequences belong to a `writer`
        (and its transaction), or outside a transaction to a `producer`.

        With `previous_sequence` it is appended only after that one, so that a program that numbers its messages itself
        may send them again in other entries.

        The exclusive producer of the topic names its `producer_epoch`.

        With `before_commit` the caller vouches that nobody had committed or prepared the transaction when it sent this
        entry, because only the caller does so. Then the metadata store is not asked whether the transaction is open.
        """
        if txn_id is None:
            producer, writer = producer or writer, None
        if sequence is not None and txn_id is None and producer is None:
            raise errors.InvalidArgument("sequence: needs a `producer` or `writer`", field="sequence")
        behind = _behind(previous_sequence, inherited_sequence)
        if behind is not None and (txn_id is not None or sequence is None or sequence <= behind.own):
            raise errors.InvalidArgument(
                "previous_sequence: needs a `sequence` above it, and no transaction", field="previous_sequence"
            )
        if before_commit and txn_id is None:
            raise errors.InvalidArgument("before_commit: needs a `txn_id`", field="before_commit")
        await check_transaction(broker, txn_id, caller)
        payload: bytes = request.scope[BODY]
        draft = Entry(
            payload, PayloadKind.BYTES, 1, txn_id, writer, producer, sequence, behind, producer_epoch, before_commit
        )
        return await _append(broker, segment, request.headers.get("content-type"), draft, count)


def _append_group_route(api: APIRouter, broker: Broker) -> None:
    @api.post(
        "/v1/txns/{txn_id}/entries",
        tags=["segments"],
        response_model_exclude_none=True,
        responses=problems(404, 413, 422, 503, 504),
        openapi_extra=_GROUP_BODY,
    )
    async def append_entries(txn_id: TxnIdPath, request: Request, caller: Caller) -> PublishGroupAnswer:
        """Append entries to several segments of this broker, inside one transaction.

        Each entry is treated as in a request of its own: it needs the right `produce` on its topic, it is appended or
        refused whatever becomes of the others, and its outcome is what that request would be answered. There are no
        redirects: an entry for a segment of another broker has the outcome NOT_OWNER.

        With a `commit` in the head the transaction is committed once all entries are durable, as by a request to a
        coordinator that follows them. If one of them is refused, no commit is tried, and the answer has none.

        The body is a head in JSON, preceded by its length, and followed by the payloads of all entries
        (docs/contract.md has an example).
        """
        group = unpack_entries(request.scope[BODY])
        await check_transaction(broker, txn_id, caller)
        outcomes = await asyncio.gather(
            *(_outcome(broker, request, caller, txn_id, head, payload) for head, payload in group.entries)
        )
        answer = PublishGroupAnswer(outcomes=outcomes)
        if group.commit is not None and all(isinstance(outcome, PublishAnswer) for outcome in outcomes):
            answer.commit = await _committed(broker, request, caller, txn_id, group.commit)
        return answer


def _announce_route(api: APIRouter, broker: Broker) -> None:
    @api.post(
        "/v1/intents",
        tags=["segments"],
        response_model_exclude_none=True,
        responses=problems(404, 422, 503, 504),
    )
    async def announce_writes(body: AnnounceRequest, caller: Caller) -> AnnounceAnswer:
        """Announce writes of transactions ahead, so that the first entry of each needs one read of the metadata store
        instead of one write.

        For each transaction and segment the broker stores the intent that the first entry without a `writer` would have
        to store. What it cannot store now, it leaves out: segments of other brokers, decided transactions, and
        everything while the metadata store is unavailable. Each first entry makes up for that.
        """
        txn_ids = list(dict.fromkeys(body.txn_ids))
        if not caller.superuser:
            for segment in body.segments:
                caller.require("produce", topic_of_segment(segment))
            for txn_id in txn_ids:
                await check_transaction(broker, txn_id, caller)
        stored = await asyncio.gather(*(_announced(broker, txn_ids, each) for each in dict.fromkeys(body.segments)))
        return AnnounceAnswer(stored=sum(stored))


async def _announced(broker: Broker, txn_ids: Sequence[TxnId], segment_id: str) -> int:
    """The number of intents that were stored on one segment."""
    segment = broker.serving(segment_id)
    if segment is None or not segment.admits:
        return 0
    return await segment.publisher.intents.announce_ahead(txn_ids)


async def _outcome(
    broker: Broker, request: Request, caller: Principal, txn_id: TxnId, head: EntryHead, payload: bytes
) -> PublishAnswer | Problem:
    before_commit = bool(head.before_commit)
    draft = Entry(
        payload, PayloadKind.BYTES, 1, txn_id, head.writer, head.producer, head.sequence, before_commit=before_commit
    )
    try:
        if not caller.superuser:
            caller.require("produce", topic_of_segment(head.segment))
        return await _append(broker, head.segment, head.media_type, draft, head.count)
    except (errors.MetatxnError, MetastoreError) as error:
        return problem_for(request, error)


async def _committed(
    broker: Broker, request: Request, caller: Principal, txn_id: TxnId, wanted: CommitRequest
) -> TransactionHeader | Problem | None:
    """What the commit is answered, or None if this broker commits nothing. Every entry of the transaction is durable
    (DESIGN §5.1)."""
    if broker.committer is None:
        return None
    try:
        return await broker.committer.commit(txn_id, wanted.writers, caller=caller)
    except (errors.MetatxnError, MetastoreError) as error:
        return problem_for(request, error)


async def _append(
    broker: Broker, segment: str, content_type: str | None, draft: Entry, count: int | None
) -> PublishAnswer:
    """Append what `draft` says, except that its type and `count` tell what is in it. Raises the errors of `inspect` and
    `Publisher.publish`."""
    target = await _appendable(broker, segment)
    payload = bytes(draft.payload)
    found = await inspect(broker, target, content_type, payload, draft.txn_id)
    if found.count is not None and count not in (None, found.count):
        raise errors.InvalidArgument(f"count: {count}, but the body holds {found.count}", field="count")
    rows = found.count if found.count is not None else count or 1
    entry = sent = replace(draft, kind=found.kind, count=rows)
    if found.messages is not None and target.record.next_offset is not None:
        entry = replace(sent, payload=as_batch(found.messages, broker.clock()), kind=PayloadKind.KAFKA)
    elif sent.kind is PayloadKind.BATCH and target.record.next_offset is not None:
        entry = replace(sent, payload=for_kafka(payload, broker.clock()), kind=PayloadKind.KAFKA)
    elif sent.kind is PayloadKind.BATCH and not broker.version.allows(Feature.BATCHES):
        entry = entry_for_all_releases(sent)
    hashes = partial(_hashes, target, sent, found.messages)
    try:
        position, duplicate = await target.publish(entry, hashes, misfit=found.misfit)
    except AppendedBefore as before:
        if not before.complete:
            raise
        parts = [AppendedPart(**part.wire()) for part in before.parts]
        return PublishAnswer(position=parts[0].position, duplicate=True, appended=parts)
    return PublishAnswer(position=str(position), duplicate=duplicate)


def _behind(own: int | None, inherited: int | None) -> Behind | None:
    if own is None and inherited is None:
        return None
    return Behind(NO_SEQUENCE if own is None else own, NO_SEQUENCE if inherited is None else inherited)


async def _appendable(broker: Broker, segment_id: str) -> Segment:
    """The segment. A removed one is like any other sealed one: the messages go to its children."""
    try:
        return await broker.segment(segment_id)
    except errors.NotFound:
        removed = await broker.removed(segment_id)
        if removed is None:
            raise
        raise removed.sealed() from None


def _hashes(segment: Segment, sent: Entry, messages: list[Message] | None) -> frozenset[int] | None:
    """The hashes of the keys of an entry that may be a retry. None if they are unknown, or if they did not determine
    the segment."""
    if sent.kind is PayloadKind.BATCH:
        keys: Sequence[str | None] = unpack_batch(sent.payload, sent.count).keys
    elif messages is not None:
        keys = [message.key for message in messages]
    else:
        return None
    low, high = segment.record.range
    found = frozenset(hashes_of(keys, sent.producer, sent.sequence))
    return found if all(low <= hashed <= high for hashed in found) else None

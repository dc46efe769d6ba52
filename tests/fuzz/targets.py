"""The table of decoders: `TARGETS[name].check(data)` fails on anything but a good value or the decoder's own error."""

from __future__ import annotations

import base64
import json
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa
from crc32c import crc32c
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coordinator.paging import make_token, position_of
from metastore import keys
from metastore.backends.zookeeper_log import Change, decode, encode
from metastore.txn import paths
from metastore.txn.records import operations, processes, segments, subscriptions, topics, transactions
from metastore.txn.records.json_record import JsonRecord
from metastore.txn.states import TxnState
from metatxn.service.security.authentication import Authenticator
from metatxn.service.security.signed_tokens import SignedTokens
from metatxn.service.security.tokens import create_token, find_token, parse_tokens
from metatxn.transport.api import Answer
from metatxn.transport.reading import AnswerReader
from metatxn.wire import errors, frames
from metatxn.wire.batches import pack_batch, packed_message, unpack_batch
from metatxn.wire.entry_groups import pack_entries, unpack_entries
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from metatxn.wire.names import BrowseToken, MessageId, ReadPlace, page_token, parse_page_token
from metatxn.wire.pages import PageHead, PagePart, decode_page, encode_head
from metatxn.wire.position import Position
from metatxn.wire.pulsar_entries import decode_pulsar, pulsar_bodies
from metatxn.wire.record_batches import CODECS, bodies_of, finished_batch
from metatxn.wire.record_batches import HEADER as HEADER_OF_BATCH
from metatxn_gateways.listener import MalformedRequest
from metatxn_gateways.pulsar.codes import PulsarError
from metatxn_gateways.pulsar.commands import TYPES, command, read_command
from metatxn_gateways.pulsar.entries import ChecksumMismatch, metadata_of
from metatxn_gateways.pulsar.schemas import shown_schema, wanted_version
from metatxn_gateways.pulsar.topic_schemas import kept_schema, version_bytes
from participants.ledger import storage_id
from participants.ledger.objects import HEADER_BYTES, ObjectHeader, ObjectIndex, ObjectKind
from participants.ledger.storage import LedgerCorrupt, StorageRefused
from participants.messages.batches import check_batch
from participants.messages.payloads import decode_messages, encode_messages, inspect_arrow
from participants.subscription.places import Place
from tests.fuzz import kafka

T = TypeVar("T")
TXN = TxnId(3, 77)
SEGMENT = "segment://public/default/orders/0-7fff-0"


@dataclass(frozen=True, slots=True)
class Target:
    """`good` is input that is accepted, to begin with."""

    check: Callable[[bytes], None]
    good: Sequence[bytes]


def read_back(
    decode: Callable[[bytes], Any],
    encode: Callable[[Any], bytes],
    refusals: type[Exception] | tuple[type[Exception], ...],
    data: bytes,
) -> None:
    """What is accepted is read from what it is written as, too."""
    try:
        value = decode(data)
    except refusals:
        return
    assert decode(encode(value)) == value, (data, value)


def answered(refusal: ErrorCode, ask: Callable[..., T], *arguments: Any) -> T | errors.MetatxnError:
    """The answer, or the refusal, which must be that one."""
    try:
        return ask(*arguments)
    except errors.MetatxnError as refused:
        if refused.code is not refusal:
            raise
        return refused


def text_target(parse: Callable[[str], Any], write: Callable[[Any], str], *good: str) -> Target:
    """A decoder of text, which raises `ValueError`. What is no UTF-8 is as text that arrives as one in a URL."""
    check = partial(
        read_back, lambda data: parse(data.decode(errors="replace")), lambda value: write(value).encode(), ValueError
    )
    return Target(check, [text.encode() for text in good])


def record_target(decode: Callable[[bytes], Any], *good: JsonRecord) -> Target:
    check = partial(read_back, decode, lambda record: record.encode(), ValueError)
    return Target(check, [record.encode() for record in good])


# -- frames and objects: bytes of a disk ------------------------------------------------------------------------


def check_frame(data: bytes) -> None:
    """As it is, and as the body of a frame whose length and CRC fit, as only a writer gone wrong would make it."""
    body = data[frames.MIN_FRAME_BYTES - 39 :]
    sealed = len(body).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little") + body
    for raw in (data, sealed):
        try:
            frame, end = frames.decode_frame(raw)
        except frames.FrameError:
            continue
        assert frames.encode_frame(frame) == raw[:end], raw  # there is one encoding


def check_object(data: bytes) -> None:
    body = data[12:HEADER_BYTES]
    for raw in (data, data[:8] + zlib.crc32(body).to_bytes(4, "little") + body):
        try:
            header = ObjectHeader.decode(raw, "an object")
        except LedgerCorrupt:
            continue
        assert header.encode() == raw[:HEADER_BYTES], raw


def check_index(data: bytes) -> None:
    body = data[12:]
    for raw in (data, data[:8] + zlib.crc32(body).to_bytes(4, "little") + body):
        index = ObjectIndex.decode(raw)
        if index is not None:
            assert index.entries >= 0 and index.encode() == raw, raw


def good_frames() -> list[bytes]:
    plain = frames.Frame(b"payload", frames.PayloadKind.BYTES, 1, position=Position(1, 2), publish_ms=1000)
    full = frames.Frame(
        b"[]",
        frames.PayloadKind.MESSAGES,
        2,
        TXN,
        "writer",
        "producer",
        9,
        position=Position(1, 3),
        publish_ms=1000,
        durable=3,
    )
    return [
        frames.encode_frame(plain),
        frames.encode_frame(full),
        frames.encode_frame(plain) + frames.encode_frame(full),
    ]


# -- keys: what operators and other versions may have put there -----------------------------------------------------


def check_key(data: bytes) -> None:
    """Any text is a part of a key, and comes back from it; parts never overlap others."""
    text = data.decode(errors="replace")
    part = keys.escape(text)
    assert keys.unescape(part) == text and "/" not in part and part not in ("", ".", "..")
    parts = text.split(" ")
    assert keys.split(keys.join(*parts)) == parts
    owner, _, key = text.partition(" ")
    assert paths.parse_transaction_key(paths.transaction_key(owner or None, key)) == (owner or None, key)
    op = paths.ack_op(TXN, text, text, 1, 2)
    assert paths.participant_of_op(op) == (text, text, paths.ack_ops_of_subscription(TXN, text, text))
    assert op.startswith(paths.ops_of_transaction(TXN))


def check_log_entry(data: bytes) -> None:
    try:
        events = decode(data, 1)
    except ValueError:
        return
    records_of = [(event.key, event.record) for event in events]
    changes = [Change(key, record and record.value, record is not None and record.first) for key, record in records_of]
    assert encode(changes) == data


def check_foreign_key(data: bytes) -> None:
    """Keys that nobody here has made."""
    text = data.decode(errors="replace")
    try:
        split = keys.split(text)
    except ValueError:
        return
    assert keys.split(keys.join(*split)) == split


# -- tokens: what anybody may send ----------------------------------------------------------------------------------


@cache
def authenticator() -> Authenticator:
    directory = Path(tempfile.mkdtemp(prefix="metatxn-fuzz-"))
    key = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (directory / "key.pem").write_bytes(key)
    (directory / "tokens.toml").write_text(create_token("somebody")[1])
    return Authenticator(directory / "tokens.toml", SignedTokens(directory / "key.pem"))


def check_authorization(data: bytes) -> None:
    """Nobody gets in, and the answer says nothing of the token."""
    for value in (data, b"Bearer " + data):
        answer = answered(ErrorCode.UNAUTHENTICATED, authenticator().principal, [(b"authorization", value)])
        assert isinstance(answer, errors.MetatxnError), f"{value!r} is {answer}"
        assert len(data) < 8 or data.decode("latin-1") not in str(answer)


def check_token_file(data: bytes) -> None:
    try:
        table = parse_tokens(data)
    except ValueError:
        return
    assert find_token(table, "mtx_0000000000000000_0") is None


# -- what is inside an entry, and where a list goes on --------------------------------------------------------------


def check_messages(data: bytes) -> None:
    messages = answered(ErrorCode.INVALID_ARGUMENT, decode_messages, data)
    if not isinstance(messages, errors.MetatxnError):
        assert decode_messages(encode_messages(messages)) == messages


def check_page(data: bytes) -> None:
    try:
        head, entries = decode_page(data)
    except ValueError:
        return
    assert sum(part.bytes for part in head.parts) >= sum(frames.MIN_FRAME_BYTES for _ in entries)


def good_page() -> bytes:
    some = good_frames()[-1]
    return encode_head(PageHead(parts=[PagePart(segment="s", bytes=len(some), skip=1)], next="x", more=True)) + some


def check_batch_of_messages(data: bytes) -> None:
    """As it is, and with a header that fits. What counts as this many messages is read as that many."""
    body = data[HEADER_OF_BATCH.size :]
    for raw in (data, finished_batch(body, len(data) % 5 + 1, -1, -1)):
        count = answered(ErrorCode.INVALID_ARGUMENT, check_batch, raw)
        if not isinstance(count, errors.MetatxnError):
            assert {len(column) for column in unpack_batch(raw, count)} == {count}


def check_entry_group(data: bytes) -> None:
    try:
        entries = unpack_entries(data).entries
    except errors.InvalidArgument:
        return
    assert sum(head.size for head, _ in entries) == sum(len(payload) for _, payload in entries)
    assert data.endswith(b"".join(payload for _, payload in entries))


def entry_group() -> bytes:
    entry = frames.Entry(b"abc", frames.PayloadKind.BYTES, 1, None, "w", "p", 7)
    return pack_entries([(SEGMENT, entry), (SEGMENT, frames.Entry(b"", frames.PayloadKind.BATCH, 2, sequence=8))])


def check_records(data: bytes) -> None:
    """As it is, and with each codec. Whatever is in it, it has as many messages as its entry counts."""
    batches = [data]
    if len(data) >= HEADER_OF_BATCH.size:
        head, body = HEADER_OF_BATCH.unpack_from(data), data[HEADER_OF_BATCH.size :]
        batches += [HEADER_OF_BATCH.pack(*head[:5], codec, *head[6:]) + body for codec in CODECS]
    for raw in batches:
        assert len(bodies_of(raw, 2)) == 2


def compressed_records() -> Iterator[bytes]:
    """A batch of two, in each codec."""
    batch = pack_batch([packed_message({"n": [1.5, None]}, "k", {"p": "x"}), packed_message(b"x" * 40, None, None)])[0]
    head, body = HEADER_OF_BATCH.unpack_from(batch), batch[HEADER_OF_BATCH.size :]
    names: dict[int, Literal["gzip", "lz4", "zstd"]] = {1: "gzip", 3: "lz4", 4: "zstd"}
    yield batch
    yield HEADER_OF_BATCH.pack(*head[:5], 2, *head[6:]) + bytes(pa.Codec("snappy").compress(body, asbytes=True))
    for codec, name in names.items():
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, name) as stream:
            stream.write(body)
        yield HEADER_OF_BATCH.pack(*head[:5], codec, *head[6:]) + sink.getvalue().to_pybytes()


def check_arrow(data: bytes) -> None:
    """A size in it may be any number, so it may also be too large."""
    with suppress(errors.InvalidArgument, errors.PayloadTooLarge):
        assert inspect_arrow(data).rows >= 0


def arrow_stream() -> bytes:
    """With offsets, nulls, nesting, a dictionary, runs and sizes of what is compressed, all of which may lie."""
    runs: Any = pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), pa.array(["x", "y"]))
    encoded = {"d": pa.array(["x", "y"]).dictionary_encode(), "r": runs}
    table = pa.table({"s": ["x", None], "l": [[1], [2, 3]], **encoded})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def check_coordinator_page(data: bytes) -> None:
    position = answered(ErrorCode.INVALID_ARGUMENT, position_of, "all", data.decode(errors="replace"))
    if position and not isinstance(position, errors.MetatxnError):
        assert position_of("all", make_token("all", position)) == position


def check_storage_id(data: bytes) -> None:
    try:
        found = storage_id.parse("storage.json", data)
    except StorageRefused:
        return
    assert len(found) == 32


def in_base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


_NESTED = [b"[" * 3_000, b'{"a":' * 3_000, b"a = " + b"[" * 3_000]
_HUGE = b"9" * 5_000
"""More digits than Python turns into a number."""
HOSTILE: Sequence[bytes] = [
    *_NESTED,
    *map(in_base64, _NESTED),
    *(
        _HUGE,
        b"1:" + _HUGE,
        b"1:1:" + _HUGE,
        b"a = " + _HUGE,
        b'[{"value":' + _HUGE + b"}]",
        b'{"epoch":' + _HUGE + b"}",
    ),
    *(b'[{"value":"\\ud800"}]', b'[{"value":NaN}]', b'[{"value":1e400}]', b"\xed\xa0\x80"),
    *map(in_base64, [b'["\\ud800","1:2",3]', b'["a","1:2",1e400]', b'["a","1:2",' + _HUGE + b"]"]),
]
"""What changing good input in a few places does not reach."""

PLACES = BrowseToken({SEGMENT: (Position(1, 2), 0)}, 7)
HEADER = transactions.Header(state=TxnState.OPEN, timeout_ms=1, created_ms=2, owner="o", key="k", epoch=3, version=4)
LEDGER = segments.LedgerRecord(id=1, storage="s", entries=4)
SEGMENT_RECORD = segments.SegmentRecord(topic="t", range=(0, 0xFFFF), storage="s", ledgers=(LEDGER,))
WRITE = operations.WriteOp(segment=SEGMENT, after="1:-1", count=1, writer="w", sequence=3)
ACK = operations.AckOp(segment=SEGMENT, subscription="s", incarnation=1, position="1:2", batch_index=0, batch_size=2)
SUBSCRIPTION = subscriptions.SubscriptionRecord(
    incarnation=2,
    type="shared",
    initial="latest",
    created_ms=1,
    starts={SEGMENT: "1:2:0"},
    acked={SEGMENT: (("1:3:0", "1:4:0"),)},
)
LOG_ENTRY = encode([Change("/a", b"1", first=True), Change("/b", None), Change("/c", b"")])
TOPIC = topics.TopicRecord(name="t", segments=(SEGMENT,), next_segment=1, created_ms=2)
ROW = segments.DedupRow(producer="p", runs=((1, 2, 1, 3, 4, ((0, 0xFFFF),)),))


def answer_in(data: bytes, at_once: int) -> Answer | str:
    """The first answer of a connection that ends behind `data`, so much of which is received at once."""
    reader = AnswerReader()
    while data and not reader.complete:
        room = reader.room
        count = min(at_once, len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        try:
            reader.received(count)
        except ValueError:
            return "no HTTP"
    if not reader.complete:
        reader.connection_ended()
    return Answer("", "", reader.status, reader.headers, reader.body) if reader.complete else "not whole"


def check_answer(data: bytes) -> None:
    """How an answer is cut on its way makes no difference."""
    assert answer_in(data, 1) == answer_in(data, 7) == answer_in(data, len(data) or 1)


HTTP_ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nX-A: b\r\n\r\ntwelve bytes",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n4;x=y\r\nlast\r\n0\r\nX-After: c\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno",
    b"HTTP/1.0 200 OK\r\nX-A: b\r\nX-A: c\r\n\r\nuntil the end",
    b"HTTP/1.1 204 No Content\r\n\r\n",
]


def check_entry(data: bytes) -> None:
    """As it is, and behind a good head."""
    for entry in (data, bytes(6) + len(data).to_bytes(4) + data, bytes(6) + METADATA + data):
        with suppress(ValueError):
            assert all(isinstance(each.body(), dict) for each in decode_pulsar(entry))
        assert len(pulsar_bodies(entry, 3)) == 3


def check_command(data: bytes) -> None:
    for frame in (data, len(data).to_bytes(4) + data):
        with suppress(MalformedRequest):
            name, _, entry = read_command(memoryview(frame))
            assert name in TYPES and len(entry) < len(frame)
    with suppress(MalformedRequest, ChecksumMismatch):
        assert metadata_of(memoryview(b"\x0e\x01" + crc32c(data).to_bytes(4) + data)).num_messages_in_batch > 0


def check_schema(data: bytes) -> None:
    """As a command, and as the schema in one. What is kept is what came, and is given back so."""
    size = bytes([len(data) & 0x7F | 0x80, len(data) >> 7 & 0x7F | 0x80, len(data) >> 14 & 0x7F])
    inside = TYPES["get_or_create_schema"]
    nested = bytes([inside << 3 & 0x7F | 2 | 0x80, inside >> 4]) + _varint(len(data) + 4) + b"\x1a" + size + data
    for body in (data, bytes([0x08, inside]) + nested):
        with suppress(MalformedRequest, PulsarError):
            name, content, _ = read_command(memoryview(len(body).to_bytes(4) + body))
            if name == "get_schema":
                version = wanted_version(content)
                assert version is None or version_bytes(version) == content.schema_version
            elif name in ("get_or_create_schema", "producer"):
                assert_given_back(content.schema)


def assert_given_back(schema: Any) -> None:
    kept = kept_schema(schema, 1)
    if kept is not None:
        found = topics.PulsarSchemaRecord.decode(kept.encode())
        assert found == kept and found.is_same(kept)
        shown = read_command(memoryview(command("get_schema_response", request_id=1, schema=shown_schema(found))))[
            1
        ].schema
        assert (shown.type, shown.schema_data, shown.name) == (schema.type, schema.schema_data, schema.name)
        assert {each.key: each.value for each in shown.properties} == {
            each.key: each.value for each in schema.properties
        }


def _varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14])


METADATA = bytes([0, 0, 0, 10, 0x0A, 0, 0x10, 0, 0x18, 0, 0x58, 3, 0x40, 0])
"""Of a batch of three messages, that is not compressed."""
IN_BATCH = bytes([0, 0, 0, 8, 0x12, 2, 0x6B, 0x6B, 0x18, 1, 0x48, 0]) + b"v"

PULSAR_SCHEMA = {"name": "n", "schema_data": b"{}", "type": 2, "properties": [{"key": "k", "value": "v"}]}

TARGETS: Mapping[str, Target] = {
    "Produce of Kafka's clients": Target(kafka.check_produce, kafka.good_produce()),
    "Fetch of Kafka's clients": Target(kafka.check_fetch, kafka.good_fetch()),
    "calls of Kafka's clients": Target(kafka.check_call, kafka.good_calls()),
    "groups of entries": Target(check_entry_group, [entry_group()]),
    "batches of Kafka's clients": Target(kafka.check_sent_batch, [kafka.BATCH]),
    "entries of Pulsar's clients": Target(check_entry, [bytes(6) + METADATA + IN_BATCH * 3, IN_BATCH * 3]),
    "commands of Pulsar's clients": Target(
        check_command,
        [
            command("producer", topic=SEGMENT, producer_id=1, request_id=2) + b"x",
            command("send", producer_id=1, sequence_id=3),
            METADATA,
        ],
    ),
    "schemas of Pulsar's clients": Target(
        check_schema,
        [
            command("get_or_create_schema", topic=SEGMENT, request_id=1, schema=PULSAR_SCHEMA)[4:],
            command("producer", topic=SEGMENT, producer_id=1, request_id=2, schema=PULSAR_SCHEMA)[4:],
            command("get_schema", topic=SEGMENT, request_id=3, schema_version=bytes(8))[4:],
            b"\x0a\x01n\x1a\x02{}\x20\x02\x2a\x06\x0a\x01k\x12\x01v",
        ],
    ),
    "answers over HTTP": Target(check_answer, HTTP_ANSWERS),
    "frames": Target(check_frame, good_frames()),
    "object headers": Target(check_object, [ObjectHeader(kind, bytes(16), 1, 1).encode() for kind in ObjectKind]),
    "object indexes": Target(check_index, [ObjectIndex().encode()]),
    "storage ids": Target(check_storage_id, [storage_id.describe_new()]),
    "headers": record_target(
        transactions.Header.decode,
        HEADER,
        HEADER.model_copy(update={"state": TxnState.COMMITTED, "finalized_ms": 3, "writers": ("w",)}),
    ),
    "operations": record_target(operations.decode_op, WRITE, ACK),
    "remembered writers": record_target(
        transactions.RememberedWriters.decode, transactions.RememberedWriters(writers=("a",))
    ),
    "transaction keys": record_target(
        transactions.TransactionKey.decode, transactions.TransactionKey(epoch=1, updated_ms=2)
    ),
    "outcomes": record_target(operations.Outcome.decode, operations.Outcome(highest="1:2", counted_writers=("w",))),
    "segments": record_target(segments.SegmentRecord.decode, SEGMENT_RECORD),
    "owners": record_target(segments.OwnerRecord.decode, segments.OwnerRecord(broker="b", url="u", generation=1)),
    "leases": record_target(transactions.Lease.decode, transactions.Lease(deadline_ms=1)),
    "prepared records": record_target(
        transactions.Prepared.decode, transactions.Prepared(prepared_ms=1, deadline_ms=2)
    ),
    "horizons": record_target(transactions.GcHorizon.decode, transactions.GcHorizon(revision=1)),
    "subscriptions": record_target(subscriptions.SubscriptionRecord.decode, SUBSCRIPTION),
    "mark-deletes": record_target(subscriptions.MarkDelete.decode, subscriptions.MarkDelete(before="1:2:0")),
    "acked ranges": record_target(
        subscriptions.AckedBucket.decode, subscriptions.AckedBucket(ranges=(("1:2:0", "1:3:0"),))
    ),
    "delivery counts": record_target(
        subscriptions.DeliveryCountsRecord.decode,
        subscriptions.DeliveryCountsRecord(through="1:9:0", counts=(("1:2:0", "1:3:0", 4),)),
    ),
    "topics": record_target(topics.TopicRecord.decode, TOPIC),
    "brokers": record_target(processes.BrokerRecord.decode, processes.BrokerRecord(url="u", storage="s")),
    "coordinators": record_target(processes.CoordinatorRecord.decode, processes.CoordinatorRecord(url="u")),
    "dedup chunks": record_target(segments.DedupChunk.decode, segments.DedupChunk(rows=(ROW,))),
    "key parts": Target(check_key, [b"orders", b"a/b c", b"% . ..", SEGMENT.encode()]),
    "foreign keys": Target(check_foreign_key, [b"/txn-op/%/a%2Fb"]),
    "ZooKeeper's log": Target(check_log_entry, [LOG_ENTRY]),
    "transaction ids": text_target(TxnId.parse, str, str(TXN)),
    "positions": text_target(Position.parse, str, "3:17", "3:-1"),
    "message ids": text_target(MessageId.parse, str, str(MessageId(SEGMENT, Position(1, 2), 3))),
    "places to read on": text_target(ReadPlace.parse, str, "1:2", "1:2@7"),
    "places of messages": text_target(Place.parse, str, "1:2:3"),
    "browse tokens": text_target(BrowseToken.parse, str, str(PLACES)),
    "page tokens": text_target(parse_page_token, page_token, page_token("orders")),
    "pages of the coordinator": Target(check_coordinator_page, [make_token("all", str(TXN)).encode()]),
    "messages": Target(check_messages, [json.dumps([{"key": "k", "value": {"n": [1.5, None]}}]).encode()]),
    "pages of topics": Target(check_page, [good_page()]),
    "batches": Target(check_batch_of_messages, [pack_batch([packed_message({"n": [1.5, None]}, "k", {"p": "x"})])[0]]),
    "compressed batches": Target(check_records, list(compressed_records())),
    "Arrow streams": Target(check_arrow, [arrow_stream()]),
    "authorization": Target(check_authorization, [b"mtx_0000000000000000_0", b"Bearer a.b.c", b"e30.e30.e30"]),
    "token files": Target(check_token_file, [create_token("somebody", topics={"a/*": "consume"})[1].encode()]),
}

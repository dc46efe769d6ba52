"""The commands of Pulsar's binary protocol that are used here, and the metadata of a message, as protobuf classes.

The description below names what this gateway reads or writes; protobuf skips every other field. The number of a
command's field in `Command` is also its type. A command whose texts are not text is malformed. A message with such
texts is not: nobody reads them here.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from metatxn.wire.frames import MAX_PAYLOAD_BYTES
from metatxn_gateways.listener import MalformedRequest

_DESCRIPTION = """
KeyValue: key 1 string, value 2 string
Schema: name 1 string, schema_data 3 bytes, type 4 int32, properties 5 KeyValue*
MessageId: ledger_id 1 uint64, entry_id 2 uint64, partition 3 int32 -1, batch_index 4 int32 -1, ack_set 5 int64*,
    batch_size 6 int32
FeatureFlags: supports_auth_refresh 1 bool, supports_scalable_topics 8 bool, supports_tc_metadata_discovery 9 bool
AuthData: auth_method_name 1 string, auth_data 2 bytes

Connect: client_version 1 string, auth_data 3 bytes, protocol_version 4 int32, auth_method_name 5 string,
    proxy_to_broker_url 6 string, feature_flags 10 FeatureFlags
Connected: server_version 1 string, protocol_version 2 int32, max_message_size 3 int32, feature_flags 4 FeatureFlags
AuthChallenge: server_version 1 string, challenge 2 AuthData, protocol_version 3 int32
AuthResponse: client_version 1 string, response 2 AuthData, protocol_version 3 int32
Ping:
Pong:
Success: request_id 1 uint64
Error: request_id 1 uint64, error 2 int32, message 3 string

PartitionMetadata: topic 1 string, request_id 2 uint64
PartitionMetadataResponse: partitions 1 uint32, request_id 2 uint64, response 3 int32, error 4 int32, message 5 string
Lookup: topic 1 string, request_id 2 uint64
LookupResponse: broker_url 1 string, broker_url_tls 2 string, response 3 int32, request_id 4 uint64,
    authoritative 5 bool, error 6 int32, message 7 string

SegmentInfo: segment_id 1 uint64, hash_start 2 uint32, hash_end 3 uint32, state 4 int32, parent_ids 5 uint64*,
    child_ids 6 uint64*, created_at_epoch 7 uint64, created_at_ms 9 uint64
SegmentBroker: segment_id 1 uint64, broker_url 2 string, broker_url_tls 3 string
Layout: epoch 1 uint64, segments 2 SegmentInfo*, brokers 3 SegmentBroker*, controller_url 4 string,
    controller_url_tls 5 string
ScalableTopicLookup: session_id 1 uint64, topic 2 string
ScalableTopicUpdate: session_id 1 uint64, layout 2 Layout, error 3 int32, message 4 string, resolved_topic_name 5 string
ScalableTopicClose: session_id 1 uint64
AssignedSegment: segment_id 1 uint64, hash_start 2 uint32, hash_end 3 uint32, segment_topic 4 string
Assignment: layout_epoch 1 uint64, segments 2 AssignedSegment*
ScalableTopicSubscribe: request_id 1 uint64, topic 2 string, subscription 3 string, consumer_name 4 string,
    consumer_id 5 uint64, consumer_type 6 int32
ScalableTopicSubscribeResponse: request_id 1 uint64, error 2 int32, message 3 string, assignment 4 Assignment
ScalableTopicAssignmentUpdate: consumer_id 1 uint64, assignment 2 Assignment

Producer: topic 1 string, producer_id 2 uint64, request_id 3 uint64, producer_name 4 string, encrypted 5 bool,
    schema 7 Schema, producer_access_mode 10 int32
ProducerSuccess: request_id 1 uint64, producer_name 2 string, last_sequence_id 3 int64, schema_version 4 bytes,
    producer_ready 6 bool
CloseProducer: producer_id 1 uint64, request_id 2 uint64
Send: producer_id 1 uint64, sequence_id 2 uint64, num_messages 3 int32 1, txnid_least_bits 4 uint64,
    txnid_most_bits 5 uint64, highest_sequence_id 6 uint64
SendReceipt: producer_id 1 uint64, sequence_id 2 uint64, message_id 3 MessageId, highest_sequence_id 4 uint64
SendError: producer_id 1 uint64, sequence_id 2 uint64, error 3 int32, message 4 string

Subscribe: topic 1 string, subscription 2 string, sub_type 3 int32, consumer_id 4 uint64, request_id 5 uint64,
    consumer_name 6 string, durable 8 bool true, start_message_id 9 MessageId, read_compacted 11 bool,
    schema 12 Schema, initial_position 13 int32, consumer_epoch 19 uint64
CloseConsumer: consumer_id 1 uint64, request_id 2 uint64
Flow: consumer_id 1 uint64, message_permits 2 uint32
Message: consumer_id 1 uint64, message_id 2 MessageId, redelivery_count 3 uint32, ack_set 4 int64*,
    consumer_epoch 5 uint64
Ack: consumer_id 1 uint64, ack_type 2 int32, message_ids 3 MessageId*, txnid_least_bits 6 uint64,
    txnid_most_bits 7 uint64, request_id 8 uint64
AckResponse: consumer_id 1 uint64, txnid_least_bits 2 uint64, txnid_most_bits 3 uint64, error 4 int32,
    message 5 string, request_id 6 uint64
Redeliver: consumer_id 1 uint64, message_ids 2 MessageId*, consumer_epoch 3 uint64
Seek: consumer_id 1 uint64, request_id 2 uint64, message_id 3 MessageId, message_publish_time 4 uint64
ReachedEndOfTopic: consumer_id 1 uint64
GetLastMessageId: consumer_id 1 uint64, request_id 2 uint64
GetLastMessageIdResponse: last_message_id 1 MessageId, request_id 2 uint64

GetSchema: request_id 1 uint64, topic 2 string, schema_version 3 bytes
GetSchemaResponse: request_id 1 uint64, error 2 int32, message 3 string, schema 4 Schema, schema_version 5 bytes
GetOrCreateSchema: request_id 1 uint64, topic 2 string, schema 3 Schema, producer_name 4 string
GetOrCreateSchemaResponse: request_id 1 uint64, error 2 int32, message 3 string, schema_version 4 bytes

TcAssignment: tc_id 1 uint64, broker_url 2 string, broker_url_tls 3 string
TcAssignments: parallelism 1 uint32, assignments 2 TcAssignment*
WatchTcAssignments: watch_id 1 uint64
WatchTcAssignmentsUpdate: watch_id 1 uint64, snapshot 2 TcAssignments
WatchTcAssignmentsClose: watch_id 1 uint64
TcClientConnect: request_id 1 uint64, tc_id 2 uint64
TcClientConnectResponse: request_id 1 uint64, error 2 int32, message 3 string
NewTxn: request_id 1 uint64, txn_ttl_millis 2 uint64, tc_id 3 uint64
TxnRequest: request_id 1 uint64, txnid_least_bits 2 uint64, txnid_most_bits 3 uint64
EndTxn: request_id 1 uint64, txnid_least_bits 2 uint64, txnid_most_bits 3 uint64, txn_action 4 int32
TxnResponse: request_id 1 uint64, txnid_least_bits 2 uint64, txnid_most_bits 3 uint64, error 4 int32, message 5 string

Command: type 1 int32, connect 2 Connect, connected 3 Connected, subscribe 4 Subscribe, producer 5 Producer,
    send 6 Send, send_receipt 7 SendReceipt, send_error 8 SendError, message 9 Message, ack 10 Ack, flow 11 Flow,
    success 13 Success, error 14 Error, close_producer 15 CloseProducer, close_consumer 16 CloseConsumer,
    producer_success 17 ProducerSuccess, ping 18 Ping, pong 19 Pong, redeliver 20 Redeliver,
    partition_metadata 21 PartitionMetadata,
    partition_metadata_response 22 PartitionMetadataResponse, lookup 23 Lookup, lookup_response 24 LookupResponse,
    reached_end_of_topic 27 ReachedEndOfTopic, seek 28 Seek,
    get_last_message_id 29 GetLastMessageId,
    get_last_message_id_response 30 GetLastMessageIdResponse, get_schema 34 GetSchema,
    get_schema_response 35 GetSchemaResponse, auth_challenge 36 AuthChallenge, auth_response 37 AuthResponse,
    ack_response 38 AckResponse, get_or_create_schema 39 GetOrCreateSchema,
    get_or_create_schema_response 40 GetOrCreateSchemaResponse, new_txn 50 NewTxn,
    new_txn_response 51 TxnResponse, add_partition_to_txn 52 TxnRequest, add_partition_to_txn_response 53 TxnResponse,
    add_subscription_to_txn 54 TxnRequest, add_subscription_to_txn_response 55 TxnResponse, end_txn 56 EndTxn,
    end_txn_response 57 TxnResponse, tc_client_connect 62 TcClientConnect,
    tc_client_connect_response 63 TcClientConnectResponse, scalable_topic_lookup 70 ScalableTopicLookup,
    scalable_topic_update 71 ScalableTopicUpdate, scalable_topic_close 72 ScalableTopicClose,
    scalable_topic_subscribe 73 ScalableTopicSubscribe,
    scalable_topic_subscribe_response 74 ScalableTopicSubscribeResponse,
    scalable_topic_assignment_update 75 ScalableTopicAssignmentUpdate,
    watch_tc_assignments 79 WatchTcAssignments, watch_tc_assignments_update 80 WatchTcAssignmentsUpdate,
    watch_tc_assignments_close 81 WatchTcAssignmentsClose

Property: key 1 string, value 2 string
MessageMetadata: producer_name 1 string, sequence_id 2 uint64, publish_time 3 uint64, properties 4 Property*,
    partition_key 6 string, compression 8 int32, uncompressed_size 9 uint32, num_messages_in_batch 11 int32 1,
    event_time 12 uint64, encryption_algo 14 string, deliver_at_time 19 int64, marker_type 20 int32,
    txnid_least_bits 22 uint64, txnid_most_bits 23 uint64, null_value 25 bool, num_chunks_from_msg 27 int32
SingleMessageMetadata: properties 1 Property*, partition_key 2 string, payload_size 3 int32, null_value 9 bool
"""

MAX_COMMAND_BYTES = 5 << 20
"""The most bytes of a command, without its entry: as many as Pulsar's brokers take, unless they are told otherwise."""
MAX_FRAME_BYTES = MAX_PAYLOAD_BYTES + MAX_COMMAND_BYTES
"""The most bytes of a command with its entry."""
_SIZE_BYTES = 4
_PACKAGE = "metatxn.pulsar"
_OF_MESSAGES = ("Property", "MessageMetadata", "SingleMessageMetadata")
_SCALARS = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint32": descriptor_pb2.FieldDescriptorProto.TYPE_UINT32,
    "uint64": descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
}


def _described() -> descriptor_pb2.FileDescriptorProto:
    """As Pulsar's own description, except that protobuf checks the texts of commands."""
    file = descriptor_pb2.FileDescriptorProto(name="metatxn/pulsar.proto", package=_PACKAGE, syntax="editions")
    file.edition = descriptor_pb2.EDITION_2023
    file.options.features.repeated_field_encoding = descriptor_pb2.FeatureSet.EXPANDED
    for name, fields in re.findall(r"^(\w+):((?:[^\n]|\n +)*)", _DESCRIPTION, re.MULTILINE):
        message = file.message_type.add(name=name)
        for field in filter(None, re.split(r",\s*", fields.strip())):
            _add_field(message, *field.split())
    return file


def _add_field(
    message: descriptor_pb2.DescriptorProto, name: str, number: str, kind: str, default: str | None = None
) -> None:
    field = message.field.add(name=name, number=int(number))
    field.label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
    if (scalar := _SCALARS.get(kind.rstrip("*"))) is not None:
        field.type = scalar
    else:
        field.type, field.type_name = field.TYPE_MESSAGE, f".{_PACKAGE}.{kind.rstrip('*')}"
    if kind == "string" and message.name in _OF_MESSAGES:
        field.options.features.utf8_validation = descriptor_pb2.FeatureSet.NONE
    if default is not None:
        field.default_value = default


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_described())


def _class_of(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


Command: Any = _class_of("Command")
MessageMetadata: Any = _class_of("MessageMetadata")
SingleMessageMetadata: Any = _class_of("SingleMessageMetadata")
TYPES: dict[str, int] = {
    field.name: field.number for field in Command.DESCRIPTOR.fields if field.message_type is not None
}
"""The types of the commands, by the names of their fields."""
NAMES = {number: name for name, number in TYPES.items()}


def read_command(frame: memoryview) -> tuple[str, Any, memoryview]:
    """The name of a command, its fields, and the entry after it. Raises `MalformedRequest`, and nothing else."""
    size = int.from_bytes(frame[:_SIZE_BYTES])
    end = _SIZE_BYTES + size
    if end > len(frame):
        raise MalformedRequest(f"a command of {size} bytes in a frame of {len(frame)}")
    if size > MAX_COMMAND_BYTES:
        raise MalformedRequest(f"a command of {size} bytes, above the limit of {MAX_COMMAND_BYTES}")
    try:
        found = Command.FromString(frame[_SIZE_BYTES:end])
    except DecodeError:
        raise MalformedRequest("a command that cannot be read") from None
    name = NAMES.get(found.type)
    if name is None or not found.HasField(name):
        raise MalformedRequest(f"the command {found.type} is not supported")
    return name, getattr(found, name), frame[end:]


def command(name: str, **fields: Any) -> bytes:
    """A command with these fields, preceded by its size."""
    encoded: bytes = Command(type=TYPES[name], **{name: fields}).SerializeToString()
    return len(encoded).to_bytes(_SIZE_BYTES) + encoded

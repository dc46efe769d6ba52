"""A program of confluent-kafka, and a journal of all that it is told: values, offsets, positions and errors.

Against Apache Kafka and against us the journals are equal. Offsets in topics with transactions are told as numbers of
records, because Kafka spends an offset on the end of each transaction (docs/kafka.md).

Run as a program, it writes the journal: `python -m tests.gateways.differential.confluent HOST:PORT`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.gateways.differential.program import PATIENCE_S, KafkaProgram


class Program(KafkaProgram):
    @property
    def parts(self) -> Sequence[Callable[[], None]]:
        return (
            self._topics,
            self._records,
            self._times,
            self._compacted,
            self._transactions,
            self._fencing,
            self._groups,
            self._administration,
        )

    @contextmanager
    def _member(self, group: str, *topics: str, **options: Any) -> Iterator[Consumer]:
        consumer = self.consumer(group, **options)
        consumer.subscribe(list(topics))
        try:
            yield consumer
        finally:
            consumer.close()

    # -- parts -------------------------------------------------------------------------------------------------

    def _topics(self) -> None:
        def create(name: str, partitions: int, replicas: int = 1) -> Callable[[], Any]:
            new = NewTopic(name, partitions, replicas)
            return lambda: self.admin.create_topics([new])[name].result(PATIENCE_S)

        self.attempt("create", create("one", 2))
        self.attempt("create again", create("one", 2))
        self.attempt("create without partitions", create("none", 0))
        self.attempt("create with three replicas", create("three", 1, 3))
        self.attempt("create with a wrong name", create("a/b", 1))
        topics = self.admin.list_topics(timeout=PATIENCE_S).topics
        self.tell("listed", [(name, len(topics[name].partitions)) for name in sorted(topics) if name[0] != "_"])
        self.attempt("delete", lambda: self.admin.delete_topics(["one"])["one"].result(PATIENCE_S))
        self.attempt("delete what is not there", lambda: self.admin.delete_topics(["no"])["no"].result(PATIENCE_S))
        soon = {"topic.metadata.propagation.max.ms": 100}
        error = self.admin.list_topics("no", PATIENCE_S).topics["no"].error
        self.tell("look at what is not there", error.name() if error is not None else None)
        self.tell("send to what is not there", self.send(self.producer(**soon), "no", "a"))

    def _records(self) -> None:
        self.create("plain", partitions=2)
        for compression in ("none", "gzip", "snappy", "lz4", "zstd"):
            producer = self.producer(**{"compression.type": compression, "enable.idempotence": True})
            options = {"key": compression, "headers": [("h", b"\0x"), ("h", b"")], "timestamp": 1_700_000_000_000}
            self.tell(compression, [self.send(producer, "plain", value, **options) for value in ("a" * 100, "", None)])
        self.tell("the other partition", self.send(self.producer(), "plain", "b", partition=1))
        self.attempt("no such partition", lambda: self.send(self.producer(), "plain", "b", partition=7))
        found, end = self.read("plain", "read_committed")
        for each in found:
            value = None if each.value() is None else each.value().decode()
            headers = [(name, text.decode()) for name, text in each.headers()]
            self.tell("read", each.offset(), each.key().decode(), value, headers, each.timestamp())
        self.tell("the end", end)
        self.tell("from the middle", [each.offset() for each in self.read("plain", "read_committed", 7)[0]])
        consumer = self.consumer("none")
        self.tell("watermarks", consumer.get_watermark_offsets(TopicPartition("plain", 0), PATIENCE_S))
        consumer.close()
        strict = {"auto.offset.reset": "error"}
        for offset in (99,):
            consumer = self.consumer("none", **strict)
            consumer.assign([TopicPartition("plain", 0, offset)])
            message = consumer.poll(PATIENCE_S)
            self.tell("out of range", message.error().name() if message is not None else None)
            consumer.close()

    def _times(self) -> None:
        self.create("times")
        producer = self.producer(**{"linger.ms": 500})
        for time_ms in (1_000, 3_000, 2_000, 3_000):  # one batch
            producer.produce("times", "a", partition=0, timestamp=time_ms)
        assert producer.flush(PATIENCE_S) == 0
        for time_ms in (1_500, 2_500):
            self.send(producer, "times", "b", timestamp=time_ms)
        place = TopicPartition("times", 0)

        def found(spec: OffsetSpec) -> list[int]:
            answer = self.admin.list_offsets({place: spec})[place].result(PATIENCE_S)
            return [answer.offset, answer.timestamp]

        for asked in (0, 1_000, 1_001, 2_500, 3_000, 3_001):
            self.tell(f"at {asked}", found(OffsetSpec.for_timestamp(asked)))
        self.tell("the latest", found(OffsetSpec.max_timestamp()))

    def _compacted(self) -> None:
        new = NewTopic("compacted", 1, 1, config={"cleanup.policy": "compact", "delete.retention.ms": "5000"})
        self.admin.create_topics([new])["compacted"].result(PATIENCE_S)
        producer = self.producer()
        self.tell("without a key", self.send(producer, "compacted", "a"))
        self.tell("with a key", [self.send(producer, "compacted", value, key="k") for value in ("a", "", None)])
        for name, value in (
            ("cleanup.policy", "compact,delete"),
            ("cleanup.policy", "never"),
            ("message.timestamp.type", "CreateTime"),
            ("message.timestamp.type", "never"),
            ("segment.bytes", "104857600"),
            ("delete.retention.ms", "-1"),
        ):
            self.attempt(f"{name}={value}", partial(self._alter, "compacted", name, value))
            self.tell("cleanup.policy", self._settings_of("compacted")["cleanup.policy"].value)
        self.tell("delete.retention.ms", self._settings_of("compacted")["delete.retention.ms"].value)

    def _alter(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    def _settings_of(self, topic: str) -> Any:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return self.admin.describe_configs([resource])[resource].result(PATIENCE_S)

    def _transactions(self) -> None:
        self.create("decided")
        producer = self.producer(**{"transactional.id": "x"})
        producer.init_transactions(PATIENCE_S)
        for value, commit in (("a", True), ("b", False), ("c", True), ("d", False)):
            producer.begin_transaction()
            for half in (1, 2):
                self.send(producer, "decided", f"{value}{half}")
            (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_S)
        producer.begin_transaction()
        self.send(producer, "decided", "open")
        for isolation in ("read_committed", "read_uncommitted"):
            self.tell(isolation, [each.value().decode() for each in self.read("decided", isolation)[0]])
        places = {TopicPartition("decided", 0): OffsetSpec.latest()}
        offsets = [
            self.admin.list_offsets(places, isolation_level=level)[TopicPartition("decided", 0)].result(PATIENCE_S)
            for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        ]
        self.tell("records that are not stable", offsets[1].offset - offsets[0].offset)
        producer.commit_transaction(PATIENCE_S)
        self.tell("at last", [each.value().decode() for each in self.read("decided", "read_committed")[0]])
        producer.begin_transaction()
        self.attempt("nothing in it", lambda: producer.commit_transaction(PATIENCE_S))
        self.attempt("outside", lambda: self._send_outside(producer))

    def _send_outside(self, producer: Producer) -> None:
        producer.produce("decided", "outside", partition=0)

    def _fencing(self) -> None:
        self.create("fenced")
        first, second = (self.producer(**{"transactional.id": "y"}) for _ in range(2))
        first.init_transactions(PATIENCE_S)
        first.begin_transaction()
        self.send(first, "fenced", "lost")
        second.init_transactions(PATIENCE_S)
        self.attempt("commit of the fenced one", lambda: first.commit_transaction(PATIENCE_S))
        self.attempt("abort of the fenced one", lambda: first.abort_transaction(PATIENCE_S))
        second.begin_transaction()
        self.send(second, "fenced", "kept")
        second.commit_transaction(PATIENCE_S)
        self.tell("committed", [each.value().decode() for each in self.read("fenced", "read_committed")[0]])

    def _committed(self, group: str, topic: str) -> list[Any]:
        """By partition. Kafka answers an EndTxn before its offsets are there."""
        places = [TopicPartition(topic, partition) for partition in range(2)]
        while True:
            wanted = ConsumerGroupTopicPartitions(group, places)
            found = self.admin.list_consumer_group_offsets([wanted], require_stable=True)[group].result(PATIENCE_S)
            if not any(each.error for each in found.topic_partitions):
                return sorted((each.partition, each.offset) for each in found.topic_partitions)

    def _groups(self) -> None:
        self.create("shared", partitions=2)
        producer = self.producer()
        for number in range(6):
            self.send(producer, "shared", str(number), partition=number % 2)
        with self._member("g", "shared") as member:
            seen: list[str] = []
            while len(seen) < 6:
                seen += [
                    each.value().decode() for each in member.consume(6 - len(seen), PATIENCE_S) if not each.error()
                ]
            self.tell("consumed", sorted(seen))
            member.commit(asynchronous=False)
            self.tell("committed", self._committed("g", "shared"))
            described = self.admin.describe_consumer_groups(["g"])["g"].result(PATIENCE_S)
            assigned = described.members[0].assignment.topic_partitions
            self.tell("described", described.state.name, sorted((each.topic, each.partition) for each in assigned))
            deleting = self.admin.delete_consumer_groups(["g"])["g"]
            self.attempt("delete with members", lambda: deleting.result(PATIENCE_S))
            member.commit(offsets=[TopicPartition("shared", 0, 1, metadata="back")], asynchronous=False)
        self.tell("committed again", self._committed("g", "shared"))
        transactional = self.producer(**{"transactional.id": "z"})
        transactional.init_transactions(PATIENCE_S)
        with self._member("g", "shared") as member:
            (message,) = _consumed(member, 1)
            self.tell("goes on at", message.partition(), message.offset())
            for commit in (False, True):
                transactional.begin_transaction()
                offsets = [TopicPartition("shared", 0, 3)]
                transactional.send_offsets_to_transaction(offsets, member.consumer_group_metadata(), PATIENCE_S)
                (transactional.commit_transaction if commit else transactional.abort_transaction)(PATIENCE_S)
                self.tell("after a commit" if commit else "after an abort", self._committed("g", "shared"))

    def _administration(self) -> None:
        self.create("kept")
        producer = self.producer()
        for value in ("a", "b", "c"):
            self.send(producer, "kept", value)
        place = TopicPartition("kept", 0, 2)
        deleted = self.admin.delete_records([place])[place].result(PATIENCE_S)
        self.tell("begins at", deleted.low_watermark)
        self.tell(
            "left", [(each.offset(), each.value().decode()) for each in self.read("kept", "read_committed", 2)[0]]
        )
        beyond = TopicPartition("kept", 0, 9)
        self.attempt("beyond the end", lambda: self.admin.delete_records([beyond])[beyond].result(PATIENCE_S))
        for name, value in (("retention.ms", "70000"), ("retention.ms", "soon"), ("no.such.setting", "1")):
            self.attempt(f"{name}={value}", partial(self._alter, "kept", name, value))
        found = self._settings_of("kept")
        for name in ("retention.ms", "cleanup.policy", "min.insync.replicas", "message.timestamp.type"):
            self.tell(name, found[name].value)
        self.tell(
            "groups", sorted(each.group_id for each in self.admin.list_consumer_groups().result(PATIENCE_S).valid)
        )
        for name in ("g", "nobody"):
            deleting = self.admin.delete_consumer_groups([name])[name]
            self.attempt(f"delete group {name}", partial(deleting.result, PATIENCE_S))
        for topic, count in (("kept", 3), ("kept", 3), ("kept", 2), ("never", 3)):
            adding = self.admin.create_partitions([NewPartitions(topic, count)])[topic]
            self.attempt(f"{topic} with {count} partitions", partial(adding.result, PATIENCE_S))
        self.tell("added", self.send(self.producer(), "kept", "d", partition=2))
        self.tell("nodes", len(self.admin.describe_cluster().result(PATIENCE_S).nodes))


def _consumed(member: Consumer, number: int) -> Sequence[Any]:
    found: list[Any] = []
    while len(found) < number:
        found += [each for each in member.consume(number - len(found), PATIENCE_S) if not each.error()]
    return found


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in Program(sys.argv[1]).run()))

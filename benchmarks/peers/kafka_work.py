"""The jobs by confluent-kafka, with what it does when nothing is set, but for patience and fewer words."""

from __future__ import annotations

import itertools
import socket
import struct
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.peers import work
from benchmarks.peers.servers import JARS
from benchmarks.peers.work import PATIENCE_S, WARM_UP, Found, Job, Meter, Times, Watched, numbered

FETCH = 10_000
"""Messages that a reader takes at once."""
JAVA_PROGRAM = Path(__file__).parent / "Large.java"
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""A whole request of ApiVersions: its size, its key, its version, a number for the answer, and no name of a client."""


def settings(address: str) -> dict[str, str | int]:
    return {"bootstrap.servers": address, "log_level": 2}


def producer_of(job: Job) -> Producer:
    return Producer(settings(job.address))


def transactional_producer_of(job: Job) -> Producer:
    producer = Producer(
        {
            **settings(job.address),
            "transactional.id": uuid.uuid4().hex,
            "transaction.timeout.ms": PATIENCE_S * 1000,
            **({"batch.size": job.batch_bytes} if job.batch_bytes else {}),
        }
    )
    producer.init_transactions(PATIENCE_S)
    return producer


def consumer_of(address: str) -> Consumer:
    return Consumer({**settings(address), "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"})


def partitions(consumer: Consumer, topics: list[str]) -> list[TopicPartition]:
    known = consumer.list_topics(timeout=PATIENCE_S).topics
    return [TopicPartition(topic, number, 0) for topic in topics for number in known[topic].partitions]


def prepare(job: Job) -> Found:
    """Topics of this many partitions each."""
    admin = AdminClient(settings(job.address))
    made = admin.create_topics([NewTopic(topic, job.segments, 1) for topic in job.topics])
    for future in made.values():
        future.result(PATIENCE_S)
    consumer = consumer_of(job.address)
    while len(places := partitions(consumer, job.topics)) < job.segments * len(job.topics):
        time.sleep(0.1)
    for place in places:
        end_of(consumer, place)
    consumer.close()
    return {}


def end_of(consumer: Consumer, place: TopicPartition) -> int:
    """Once the partition is served, which a new one is after a while."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            _, end = consumer.get_watermark_offsets(place, PATIENCE_S)
            return int(end)
        except KafkaException:  # such a failure does not count as retriable
            if time.monotonic() > until:
                raise
        time.sleep(0.1)


def transact(producer: Producer, topics: list[str], value: str) -> None:
    producer.begin_transaction()
    for topic in topics:
        producer.produce(topic, value)
    producer.commit_transaction(PATIENCE_S)


def small(job: Job) -> Found:
    producer, times, meter = transactional_producer_of(job), Times(), Meter(job.pids)

    def run(first: int, count: int, pause_s: float) -> None:
        begun = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, begun + number * pause_s - time.monotonic()))
            times.begun.append(time.monotonic())
            producer.begin_transaction()
            for topic in job.topics * job.messages:
                producer.produce(topic, numbered(first + number, job.size))
            times.ready.append(time.monotonic())
            producer.commit_transaction(PATIENCE_S)
            times.committed.append(time.monotonic())

    with Watched(job, WARM_UP + 2 * job.count, len(job.topics) * job.messages) as watched:
        run(0, WARM_UP, 0)
        with meter.running():
            run(WARM_UP, job.count, 0)
        run(WARM_UP + job.count, job.count, work.PACE_S)
        return meter.each(job.count) | times.found(watched.seen(), WARM_UP + job.count)


def concurrent(job: Job) -> Found:
    """A thread for each producer."""
    with ThreadPoolExecutor(job.count) as threads:
        producers = list(threads.map(lambda _: transactional_producer_of(job), range(job.count)))
        over = threading.Event()
        ended: list[tuple[float, float]] = []

        def produce(producer: Producer) -> None:
            while not over.is_set():
                begun = time.monotonic()
                transact(producer, job.topics, numbered(0, job.size))
                ended.append((time.monotonic(), time.monotonic() - begun))

        running = [threads.submit(produce, producer) for producer in producers]
        meter = Meter(job.pids)
        time.sleep(work.RAMP_S)
        with meter.running():
            time.sleep(job.seconds)
        over.set()
        for future in running:
            future.result()
    return work.counted(meter, ended)


def wide(job: Job) -> Found:
    producer, times, meter = transactional_producer_of(job), Times(), Meter(job.pids)
    places = [(topic, number) for topic in job.topics for number in range(job.segments)]
    with Watched(job, job.count + 1, len(places)) as watched:
        for number in range(job.count + 1):
            if number == 1:
                meter.begin()
            time.sleep(work.REST_S)
            times.begun.append(time.monotonic())
            producer.begin_transaction()
            for topic, partition in places:
                producer.produce(topic, numbered(number, job.size), partition=partition)
            producer.flush(PATIENCE_S)
            times.ready.append(time.monotonic())
            producer.commit_transaction(PATIENCE_S)
            times.committed.append(time.monotonic())
        seen = watched.seen()
        meter.end()
    return meter.each(job.count) | times.found(seen, 1)


def write(job: Job) -> Found:
    """For this many seconds, in transactions of `MESSAGES_PER_TRANSACTION` or in none."""
    (topic,), value = job.topics, b"x" * job.size
    producer = transactional_producer_of(job) if job.transactional else producer_of(job)
    count, meter = 0, Meter(job.pids)
    with meter.running():
        until = time.monotonic() + job.seconds
        while time.monotonic() < until:
            with _transaction(producer, job.transactional):
                for _ in range(work.MESSAGES_PER_TRANSACTION):
                    _produce(producer, topic, value)
                producer.poll(0)
            count += work.MESSAGES_PER_TRANSACTION
        producer.flush(PATIENCE_S)
    return meter.each(count, 1e6) | {"count": count}


def large(job: Job) -> Found:
    """One transaction for this many seconds."""
    (topic,), value = job.topics, b"x" * job.size
    producer = transactional_producer_of(job)
    count, meter = 0, Meter(job.pids)
    with meter.running():
        until = time.monotonic() + job.seconds
        with _transaction(producer, transactional=True):
            while time.monotonic() < until:
                _produce(producer, topic, value)
                count += 1
    return meter.each(count, 1e6)


def large_java(job: Job) -> Found:
    """The same by Kafka's Java client."""
    arguments = (job.address, *job.topics, str(job.seconds), str(job.size), str(job.batch_bytes))
    command = ("java", "-cp", f"{JARS}/*", str(JAVA_PROGRAM), *arguments)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        meter = Meter(job.pids, client=program.pid)
        assert program.stdout is not None and program.stdin is not None
        assert program.stdout.readline() == "ready\n", "the program of the Java client has failed"
        with meter.running():
            program.stdin.write("\n")
            program.stdin.flush()
            count = int(program.stdout.readline())
    return meter.each(count, 1e6)


def idle(job: Job) -> Found:
    """This many connections, each of which has asked one thing, are open until they are told to close."""
    host, _, port = job.address.partition(":")
    with ExitStack() as connections:
        for _ in range(job.count):
            connection = connections.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
            connection.sendall(API_VERSIONS)
            assert connection.recv(4), "the connection was closed"
        work.say("open")
        work.hear()
    return {}


@contextmanager
def _transaction(producer: Producer, transactional: bool) -> Iterator[None]:
    if transactional:
        producer.begin_transaction()
    yield
    if transactional:
        producer.commit_transaction(PATIENCE_S)


def _produce(producer: Producer, topic: str, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value)
            return
        except BufferError:
            producer.poll(0.01)


def read(job: Job) -> Found:
    meter = Meter(job.pids)
    with meter.running():
        _read(job.address, job.topics, job.count)
    return meter.each(job.count, 1e6)


def _read(address: str, topics: list[str], count: int) -> None:
    consumer, left = consumer_of(address), count
    consumer.assign(partitions(consumer, topics))
    while left:
        for message in consumer.consume(min(left, FETCH), 1.0):
            if message.error() is None:
                assert message.value()
                left -= 1
    consumer.close()


def watch(address: str, topics: list[str], ready: Callable[[], None], take: Callable[[str], bool]) -> None:
    consumer = consumer_of(address)
    ends = partitions(consumer, topics)
    for place in ends:
        place.offset = end_of(consumer, place)
    consumer.assign(ends)
    consumer.poll(0)
    ready()
    for _ in itertools.count():
        message = consumer.poll(1.0)
        if message is not None and message.error() is None and take(message.value().decode()):
            return


def first(job: Job) -> Found:
    """When the first transaction of a new system was committed, as soon as that accepts connections."""
    host, _, port = job.address.partition(":")
    with socket.socket() as probe:
        while probe.connect_ex((host, int(port))):
            time.sleep(0.02)
    prepare(job)
    transact(transactional_producer_of(job), job.topics, numbered(0, job.size))
    return {"at": time.monotonic()}


def held(job: Job) -> Found:
    """This many transactions are open while the system is killed."""
    with ThreadPoolExecutor(job.count) as threads:

        def hold(_: int) -> Producer:
            producer = transactional_producer_of(job)
            producer.begin_transaction()
            producer.produce(job.topics[0], numbered(0, job.size))
            producer.flush(PATIENCE_S)
            return producer

        producers = list(threads.map(hold, range(job.count)))
        work.say("held")
        work.hear()
        killed = time.monotonic()
        committed = list(threads.map(_committed, producers))
        all_committed = time.monotonic()
        _read(job.address, job.topics, sum(committed))
    return {
        "committed": all_committed - killed,
        "read": time.monotonic() - killed,
        "lost": job.count - sum(committed),
    }


def _committed(producer: Producer) -> bool:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            producer.commit_transaction(PATIENCE_S)
            return True
        except KafkaException as failure:
            if not failure.args[0].retriable() or time.monotonic() > until:
                return False

"""The thread behind the blocking client: who may wait for it, what interrupts it, and how it ends."""

from __future__ import annotations

import gc
import logging
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future

import httpx
import pytest

import metatxn
from metatxn.sync import background
from metatxn.wire.errors import ErrorCode
from tests.metatxn.dev_server import DevServer
from tests.metatxn.fake_cluster import FakeCluster, Outcome, answering
from tests.metatxn.test_batching import ENTRIES, Gate
from tests.metatxn.waiting import eventually

HOUR_MS = 3_600_000
SECRET = "a-token-that-nobody-may-see"


def closing(client: metatxn.Client, told: Future[BaseException | None]) -> None:
    try:
        client.close()
    except metatxn.InvalidArgument as error:
        told.set_result(error)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "metatxn"]


def test_a_result_that_comes_between_two_looks_is_returned() -> None:
    class Late(Future[int]):
        def result(self, timeout: float | None = None) -> int:
            if not self.done():
                self.set_result(7)
                raise TimeoutError
            return super().result(timeout)

    assert background._awaited(Late()) == 7


def test_the_loop_is_that_of_uvloop_where_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert background._loop_factory() is not None
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert background._loop_factory() is None


def test_a_producer_tells_its_topic_and_its_name(cluster: FakeCluster) -> None:
    with cluster.client() as client, client.producer("t", name="p") as producer:
        assert (producer.topic, producer.name) == ("t", "p")


def test_nothing_runs_before_it_is_needed_or_after_it_was_closed(cluster: FakeCluster) -> None:
    before = len(threads())
    with cluster.client() as client:
        producer = client.producer("t")
        assert len(threads()) == before
        producer.send("x")
        assert len(threads()) == before + 1
    assert len(threads()) == before
    client.close()
    with pytest.raises(metatxn.InvalidArgument, match="closed"):
        producer.send("y")
    with cluster.client() as unused:
        pass
    with pytest.raises(metatxn.InvalidArgument, match="closed"):
        unused.begin()


def test_forgotten_client_leaves_no_thread(cluster: FakeCluster) -> None:
    before = threads()
    cluster.client().begin()
    gc.collect()
    eventually(threads, before, timeout_s=60)


def test_callback_that_waits_is_refused_and_not_stuck(cluster: FakeCluster) -> None:
    """It would wait for the very thread that it is called in."""
    told: Future[BaseException | None] = Future()

    def look(_: Future[str]) -> None:
        try:
            client.begin()
        except metatxn.InvalidArgument as error:
            told.set_result(error)

    gate = Gate()
    cluster.before = [(ENTRIES, gate)]
    with cluster.client() as client:
        producer = client.producer("t")
        sent = producer.send("x")
        sent.add_done_callback(look)
        sent.add_done_callback(lambda _: producer.send("from a callback") and None)
        gate.open()
        assert "callback" in str(told.result(60))
    assert cluster.visible() == ["x", "from a callback"]


def test_callback_that_closes_is_refused(cluster: FakeCluster) -> None:
    told: Future[BaseException | None] = Future()
    gate = Gate()
    cluster.before = [(ENTRIES, gate)]
    with cluster.client() as client:
        client.producer("t").send("x").add_done_callback(lambda _: closing(client, told))
        gate.open()
        assert "callback" in str(told.result(60))
        assert client.begin().state == "OPEN"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where the tests were started in the background and ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("noticed", ["at once", "by looking again"])
def test_interrupt_of_a_commit_aborts(cluster: FakeCluster, noticed: str) -> None:
    """Ctrl-C while what was sent is still on its way: the transaction has ended when the exception arrives.

    A signal that another thread takes does not wake the main thread, nor one that comes just before it sleeps.
    """
    taker = threading.main_thread().ident if noticed == "at once" else None
    gate = Gate()

    async def interrupt_and_hold(request: httpx.Request) -> Outcome:
        signal.pthread_kill(taker or threading.get_ident(), signal.SIGINT)
        return await gate(request)

    cluster.before = [(ENTRIES, interrupt_and_hold)]
    with cluster.client(request_timeout_s=60) as client:
        with pytest.raises(KeyboardInterrupt), client.transaction() as txn:
            client.producer("t", linger_ms=HOUR_MS).send("never", txn=txn)
        (header,) = cluster.transactions.values()
        assert header["state"] == "ABORTED"
        gate.open()


def test_call_that_waits_while_another_thread_closes(cluster: FakeCluster) -> None:
    """It ends, and says that nobody knows what became of it."""
    gate = Gate()
    cluster.before = [("/commit", gate)]
    client = cluster.client()
    txn, told = client.begin(), Future[BaseException]()

    def commit() -> None:
        try:
            txn.commit()
        except metatxn.MetatxnError as error:
            told.set_result(error)

    thread = threading.Thread(target=commit)
    thread.start()
    gate.reached.result(60)
    client.close()
    error = told.result(60)
    thread.join()
    assert isinstance(error, metatxn.MetatxnError) and not error.definite


def test_forked_child_is_told(dev: DevServer) -> None:
    """The thread stays with the parent, so the child would wait forever; as it would for a lock that another thread of
    the parent has. A program of its own: a process of tests has threads and libraries that are not made for a fork."""
    program = f"""
        import os, signal, threading, metatxn
        client = metatxn.connect("{dev.coordinator_url}")
        client.begin().abort()
        lock, locked, forked = client._background._lock, threading.Event(), threading.Event()

        def hold():
            with lock:
                locked.set()
                forked.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        locked.wait()
        child = os.fork()
        if not child:
            signal.alarm(60)
            try:
                client.begin()
            except metatxn.InvalidArgument as error:
                os._exit(0 if "fork" in str(error) else 1)
            finally:
                os._exit(2)
        forked.set()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), client.begin().state)
    """
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (done.stdout, done.stderr) == ("0 OPEN\n", "")


def test_program_that_ends_without_closing_has_sent_everything(dev: DevServer) -> None:
    topic = f"t-{uuid.uuid4().hex[:12]}"
    program = f"""
        import metatxn
        client = metatxn.connect("{dev.coordinator_url}")
        client.create_topic("{topic}")
        client.producer("{topic}", linger_ms={HOUR_MS}).send("the last words")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    with metatxn.connect(dev.coordinator_url) as client:
        assert [message.value for message in client.reader(topic)] == ["the last words"]


def test_program_whose_service_is_gone_ends() -> None:
    """Without waiting for it, and without a word but its own."""
    program = """
        import metatxn
        client = metatxn.connect("http://127.0.0.1:9", request_timeout_s=0.1)
        try:
            client.producer("t").send("x")
        except metatxn.ServiceUnreachable as error:
            print(error.action)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    assert "port" in done.stdout


def test_token_is_nowhere_to_be_seen(dev: DevServer, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in a log of anything, at any level, nor in an error, nor in what a debugger prints first."""
    caplog.set_level(logging.DEBUG)
    with metatxn.connect(dev.coordinator_url, token=SECRET) as client:
        txn = client.begin()
        producer = client.producer("nowhere")
        with pytest.raises(metatxn.NotFound) as caught:
            producer.send("x", txn=txn)
        txn.abort()
        core = client._core
        shown = [repr(each) for each in (client, core, vars(core), vars(core._connection), vars(core._connection.http))]
        shown += [repr(txn), repr(producer), str(caught.value), repr(vars(caught.value)), caplog.text]
    assert not [text for text in shown if SECRET in text]


def test_password_in_a_url_is_refused_without_showing_it() -> None:
    with pytest.raises(metatxn.InvalidArgument) as caught:
        metatxn.connect(f"http://user:{SECRET}@host")
    assert "token" in caught.value.action
    assert SECRET not in repr(vars(caught.value))


def test_many_threads_wait_for_space(cluster: FakeCluster) -> None:
    """Each is let in when there is some, and every message arrives once, each thread's in its order."""
    with cluster.client() as client:
        producer = client.producer("t", max_entry_messages=3, max_pending_bytes=200)

        def send(number: int) -> None:
            for index in range(50):
                producer.send([number, index], key=str(number))

        senders = [threading.Thread(target=send, args=(number,)) for number in range(6)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    for number in range(6):
        assert [index for sender, index in cluster.visible() if sender == number] == list(range(50))


def test_call_while_another_thread_starts_the_loop_is_not_refused(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    with cluster.client() as client:

        def start_late(thread: threading.Thread) -> None:
            if thread.name == "metatxn":
                client._background._check_loop()
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_late)
        assert client.begin().state == "OPEN"


def test_failure_is_raised_by_the_next_send_inside(cluster: FakeCluster) -> None:
    cluster.before = [(ENTRIES, answering(ErrorCode.PAYLOAD_TOO_LARGE))]
    with cluster.client() as client:
        producer, txn = client.producer("t"), client.begin()
        with pytest.raises(metatxn.PayloadTooLarge):
            producer.send("x", txn=txn).result(60)
        with pytest.raises(metatxn.PayloadTooLarge):
            producer.send("y", txn=txn)
        with pytest.raises(metatxn.PayloadTooLarge):
            txn.commit()

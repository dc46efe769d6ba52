"""Goal: what is stored in a segment is shown with what readers see of it, and nothing that was published harms a page.

Method: segments with entries of transactions in every state, read from the pages without a browser, and a browser where
a payload might do harm.
"""

from __future__ import annotations

import html
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from playwright.sync_api import expect

import metatxn
from metatxn.console.entries import seen_entries
from metatxn.console.pages import messages as module
from metatxn.wire.frames import Frame, PayloadKind
from metatxn.wire.position import Position
from tests.console.browser import Visitor, is_too_wide, violations
from tests.console.cluster import ConsoleCluster
from tests.console.conftest import Secured
from tests.console.forms import Sender
from tests.console.life import HOSTILE, RIGHT_TO_LEFT

_ROW = re.compile(r'<tr>\s*<td class="mono">(\d+:\d+).*?</tr>', re.DOTALL)
_STATE = re.compile(r'class="state \w+">(\w+)<')
_NEXT = re.compile(r'href="/console([^"]+)">Next page')


@pytest.fixture
def client(cluster: ConsoleCluster) -> Iterator[metatxn.Client]:
    with cluster.client() as client:
        yield client


@pytest.fixture
def sender(cluster: ConsoleCluster) -> Iterator[Sender]:
    with Sender(cluster.url) as sender:
        yield sender


def states(text: str) -> list[str]:
    """What readers see of each row."""
    found = [_STATE.search(row[0]) for row in _ROW.finditer(text)]
    return [each[1] for each in found if each is not None]


def test_everything_is_shown_with_what_readers_see_of_it(sender: Sender, client: metatxn.Client) -> None:
    client.create_topic("seen")
    with client.producer("seen") as producer:
        producer.send("outside").result()
        aborted = client.begin()
        producer.send("of an aborted one", txn=aborted).result()
        aborted.abort()
        committed = client.begin()
        producer.send("of a committed one", txn=committed).result()
        committed.commit()
        open_ = client.begin(timeout_ms=600_000)
        producer.send("of an open one", txn=open_).result()
        later = client.begin()
        producer.send("of one behind it", txn=later).result()
        later.commit()
        producer.send("outside, behind it").result()
    everything = ["readable", "aborted", "readable", "undecided", "waits", "waits"]
    text = sender.get("/topics/seen/messages?show=all").text
    assert states(text) == everything
    assert f"/console/transactions/{open_.id}" in text and f"/console/transactions/{aborted.id}" in text
    assert states(sender.get("/topics/seen/messages").text) == ["readable"] * 2
    open_.commit()
    list(client.reader("seen"))
    assert states(sender.get("/topics/seen/messages?show=all").text) == ["readable", "aborted", *["readable"] * 4]


def test_what_a_writer_wrote_that_does_not_count_is_void(sender: Sender, client: metatxn.Client) -> None:
    client.create_topic("written-twice")
    txn = client.begin()
    for writer in ("first", "second"):
        with client.table_writer("written-twice", txn=txn, writer=writer) as table:
            table.write(pa.table({"by": [writer]}))
    txn.commit(writers=["second"])
    list(client.reader("written-twice"))
    text = sender.get("/topics/written-twice/messages?show=all").text
    assert states(text) == ["void", "readable"] and "second" in text


@pytest.mark.parametrize("seed", range(20))
def test_an_entry_is_never_called_skipped_before_it_is(seed: int) -> None:
    """The horizon may move between the reads, and what was undecided may become readable."""
    chance = random.Random(seed)
    durable = [Frame(b"", PayloadKind.BYTES, 1, position=Position(1, n), publish_ms=0) for n in range(10)]
    hidden = {frame.position for frame in durable if chance.random() < 0.3}
    horizon, later = sorted(chance.sample([frame.position for frame in durable], 2))
    readable = [frame.position for frame in durable if frame.position <= later and frame.position not in hidden]
    for entry in seen_entries(durable, readable, horizon):
        position = entry.frame.position
        assert (entry.sight == "readable") == (position in readable)
        assert (entry.sight == "skipped") == (position <= horizon and position in hidden)


@pytest.mark.parametrize("show", ["readable", "all"])
def test_pages_have_every_message_once(
    sender: Sender, client: metatxn.Client, monkeypatch: pytest.MonkeyPatch, show: str
) -> None:
    monkeypatch.setattr(module, "MOST_ENTRIES", 7)
    monkeypatch.setattr(module, "MOST_MESSAGES", 10)
    topic = f"paged-{show}"
    client.create_topic(topic)
    with client.producer(topic) as producer:
        for number in range(23):
            producer.send(f"<{number}>".encode()).result()
    first = sender.get(f"/topics/{topic}/messages").text
    assert len(states(first)) == 7 and b"<22>".hex(" ") in first, "the latest ones come first"
    path, seen = f"/topics/{topic}/messages?show={show}&after=0:-1", []
    while path:
        text = sender.get(path).text
        seen += re.findall(r"<code>([0-9a-f ]+)</code>", text)
        following = _NEXT.search(text)
        path = html.unescape(following[1]) if following else ""
    assert [bytes.fromhex(each).decode() for each in seen] == [f"<{number}>" for number in range(23)]


def test_messages_are_found_by_their_time(sender: Sender, client: metatxn.Client) -> None:
    client.create_topic("timed")
    with client.producer("timed") as producer:
        producer.send("sent").result()
    long_ago, some_day = "2020-01-01T00:00:00%2B00:00", "2100-01-01T00:00:00Z"
    assert states(sender.get(f"/topics/timed/messages?at={long_ago}").text) == ["readable"]
    assert "There is no message here." in sender.get(f"/topics/timed/messages?at={some_day}").text


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("segment=segment://public/default/orders/0000-7fff-0", 422, "segment"),
        ("show=secrets", 422, "show"),
        ("after=here", 422, "after"),
        ("after=999:0", 422, "after"),
        ("at=yesterday", 422, "at: "),
        ("at=2026-01-01", 422, "time zone"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_in_words(
    sender: Sender, client: metatxn.Client, query: str, status: int, words: str
) -> None:
    client.create_topic("asked", exist_ok=True)
    answer = sender.get(f"/topics/asked/messages?{query}")
    assert (answer.status_code, words in answer.text) == (status, True), answer.text


def test_payloads_that_are_meant_to_do_harm_are_only_payloads(visitor: Visitor, client: metatxn.Client) -> None:
    client.create_topic("harm")
    with client.producer("harm") as producer:
        for value in (HOSTILE, {HOSTILE: [HOSTILE]}, RIGHT_TO_LEFT, b"\x00\x1b[31m\xff", ["x" * 1_000] * 1_000, None):
            producer.send(value, key=HOSTILE, properties={HOSTILE: HOSTILE}).result()
        producer.send(b"\xff" * 100_000).result()
    page = visitor.open("/topics/harm/messages?show=all")
    expect(page.get_by_text(HOSTILE).first).to_be_visible()
    for number in (4, 1, 2):  # a page ends before an entry that would make it large
        expect(page.get_by_role("row")).to_have_count(1 + number)
        assert page.locator("main img, main script").count() == 0
        assert len(page.content()) < 200_000
        assert violations(page) == [] and not is_too_wide(page)
        page.locator("summary").first.click()
        expect(page.locator("details pre").first).to_be_visible()
        if number != 2:
            page.get_by_role("link", name="Next page").click()
    expect(page.get_by_role("link", name="Next page")).to_have_count(0)


def test_whoever_may_not_consume_sees_none(secured: Secured) -> None:
    with secured.cluster.client(secured.tokens["root"]) as root:
        root.create_topic("hidden-from-ada", exist_ok=True)
        root.create_topic("orders-for-ada", exist_ok=True)
        with root.producer("orders-for-ada") as producer:
            producer.send(str(datetime.now(UTC))).result()
    with Sender(secured.cluster.url, secured.tokens["ada"]) as ada:
        assert ada.get("/topics/hidden-from-ada/messages").status_code == 403
        assert states(ada.get("/topics/orders-for-ada/messages?show=all").text) == ["readable"]

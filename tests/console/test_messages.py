"""Goal: what is stored in a segment is shown with what readers see of it, and nothing that was published harms a page.

Method: segments with entries of transactions in every state, read from the pages without a browser, and a browser where
a payload might do harm.
"""

from __future__ import annotations

import base64
import html
import json
import random
import re
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from playwright.sync_api import expect

import metatxn
from metatxn.stored import looking
from metatxn.stored.entries import seen_entries
from metatxn.wire.broker import hash_of_key
from metatxn.wire.frames import Frame, PayloadKind
from metatxn.wire.position import Position
from metatxn.words import short_id
from tests.console.browser import Visitor, is_too_wide, violations
from tests.console.cluster import ConsoleCluster
from tests.console.conftest import Secured
from tests.console.forms import Sender
from tests.console.life import HOSTILE, RIGHT_TO_LEFT, SCRIPT
from tests.metatxn.waiting import eventually

_ROW = re.compile(r'<tr[^>]*>\s*<td class="mono">(\d+:\d+).*?</tr>', re.DOTALL)
_STATE = re.compile(r'class="state \w+">(\w+)<')
_OLDER = re.compile(r'href="/console([^"]+)">(?:Older page|Look further back)')
_NEXT = re.compile(r'href="/console([^"]+)">(?:Next page|Look on)')
_DOWNLOAD = re.compile(r'href="/console([^"]+as=(\w+))" download')


def states(text: str) -> list[str]:
    """What readers see of each row."""
    found = [_STATE.search(row[0]) for row in _ROW.finditer(text)]
    return [each[1] for each in found if each is not None]


def numbers(text: str) -> list[int]:
    """The values `{"n": …}` of a page."""
    return [int(each) for each in re.findall(r"\bn: (\d+)", text)]


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
    """Also those of an entry that is larger than a page, and their downloads have the same."""
    monkeypatch.setattr(looking, "MOST_ENTRIES", 7)
    monkeypatch.setattr(looking, "MOST_MESSAGES", 10)
    topic = f"paged-{show}"
    client.create_topic(topic)
    with client.producer(topic, linger_ms=3_600_000) as producer:
        for number in range(24):
            producer.send(f"<{number}>".encode())
    with client.producer(topic) as producer:
        for number in range(24, 36):
            producer.send(f"<{number}>".encode()).result()
    first = sender.get(f"/topics/{topic}/messages").text
    assert len(states(first)) == 7 and b"<35>".hex(" ") in first, "the latest ones come first"
    path, seen, downloaded, pages = f"/topics/{topic}/messages?show={show}&after=0:-1", [], [], 0
    while path:
        text = sender.get(path).text
        seen += re.findall(r'<code class="bytes">([0-9a-f ]+)</code>', text)
        downloaded += [json.loads(line)["value_base64"] for line in download(sender, text, "jsonl").splitlines()]
        following = _NEXT.search(text)
        path = html.unescape(following[1]) if following else ""
        pages += 1
    everything = [f"<{number}>" for number in range(36)]
    assert [bytes.fromhex(each).decode() for each in seen] == everything and pages >= 4
    assert [base64.b64decode(each).decode() for each in downloaded] == everything


@pytest.mark.parametrize("where", ["", "&where=n+>=+0"])
def test_older_pages_lead_back_to_the_first_message(
    sender: Sender, client: metatxn.Client, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Also over entries that readers never see; each is followed by the one from which it was reached."""
    monkeypatch.setattr(looking, "MOST_ENTRIES", 5)
    monkeypatch.setattr(looking, "MOST_ENTRIES_LOOKED_AT", 5)
    topic = f"older-{bool(where)}"
    client.create_topic(topic)
    with client.producer(topic) as producer:
        for number in range(23):
            txn = client.begin() if 6 <= number < 14 else None
            producer.send({"n": number}, txn=txn).result()
            if txn is not None:
                txn.abort()
    (segment,) = [each.segment for each in client.topic(topic).segments]
    eventually(lambda: client.segment(segment).open_count, 0)
    path, pages = f"/topics/{topic}/messages?{where}", list[list[int]]()
    while path:
        text = sender.get(path).text
        pages.append(numbers(text))
        if len(pages) > 1:
            following = _NEXT.search(text)
            assert following is not None
            assert numbers(sender.get(html.unescape(following[1])).text)[: len(pages[-2])] == pages[-2]
        older = _OLDER.search(text)
        path = html.unescape(older[1]) if older else ""
    assert pages == [[18, 19, 20, 21, 22], [14, 15, 16, 17], [], [3, 4, 5], [0, 1, 2]]


def test_those_that_match_are_found_by_bounded_work(
    sender: Sender, client: metatxn.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page says how much it looked through, and goes on from there."""
    monkeypatch.setattr(looking, "MOST_LOOKED_AT", 40)
    client.create_topic("filtered")
    with client.producer("filtered", linger_ms=3_600_000) as producer:
        for number in range(100):
            producer.send({"number": number, "who": {"name": "Ada"}}, key=str(number % 3))
    path, seen, said = '/topics/filtered/messages?key=1&where=number+>=+70+and+who.name+~+"AD"&after=0:-1', [], []
    while path:
        text = sender.get(path).text
        seen += re.findall(r"number: (\d+)", text)
        said += re.findall(r"Looked through (\d+) messages of 1 entry; (\d+) match", text)
        following = _NEXT.search(text)
        path = html.unescape(following[1]) if following else ""
    assert [*dict.fromkeys(seen)] == [str(number) for number in range(70, 100) if number % 3 == 1]
    assert said == [("40", "0"), ("40", "4"), ("20", "6")]


def test_a_key_is_looked_for_in_the_segments_that_have_it(visitor: Visitor, client: metatxn.Client) -> None:
    """Also those before a split."""
    client.create_topic("keyed", segments=2)
    with client.producer("keyed") as producer:
        for number in range(20):
            producer.send({"number": number}, key=str(number)).result()
    second = max(each.segment for each in client.topic("keyed").segments)
    key = next(str(number) for number in range(20) if hash_of_key(str(number)) > 0x7FFF)
    client.split_segment(second)
    page = visitor.open("/topics/keyed/messages")
    page.get_by_label("Key").first.fill(key)
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("This segment has no messages with this key.")).to_be_visible()
    page.get_by_role("link", name=second.rpartition("/")[2]).click()
    expect(page.get_by_role("cell", name=key, exact=True)).to_be_visible()
    expect(page.get_by_text("Messages with this key are also in")).to_be_visible()
    page = visitor.open(f"/topics/keyed/messages?key={key}")
    expect(page.locator("select[name=segment] option:checked")).to_have_text(re.compile("-[2-9]$"))


def download(sender: Sender, text: str, form: str) -> str:
    """What the page offers to download."""
    (url,) = [html.unescape(found[1]) for found in _DOWNLOAD.finditer(text) if found[2] == form] or [""]
    return sender.get(url).raise_for_status().text if url else ""


def test_messages_are_found_by_their_time(sender: Sender, client: metatxn.Client) -> None:
    client.create_topic("timed")
    with client.producer("timed") as producer:
        producer.send("sent").result()
    long_ago, some_day = "2020-01-01T00:00:00%2B00:00", "2100-01-01T00:00:00Z"
    assert states(sender.get(f"/topics/timed/messages?at={long_ago}").text) == ["readable"]
    assert "There are no messages here." in sender.get(f"/topics/timed/messages?at={some_day}").text


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("segment=segment://public/default/orders/0000-7fff-0", 422, "segment"),
        ("show=secrets", 422, "show"),
        ("after=here", 422, "after"),
        ("after=999:0", 422, "after"),
        ("at=yesterday", 422, "Time: &#39;yesterday&#39; is not a time"),
        ("at=2026-01-01", 422, "time zone"),
        ("after=1:0&skip=-1", 422, "skip"),
        ("before=yesterday", 422, "before: &#39;yesterday&#39; is not a position"),
        ("where=amount", 422, "where: it ends where"),
        ("where=amount+%3D+<script>", 422, "is not a value"),
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
        page.locator(".node summary").first.click()
        expect(page.locator(".node[open] > :is(ul, pre)").first).to_be_visible()
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
        assert ada.get("/topics/hidden-from-ada/messages/download?as=csv").status_code == 403
        assert ada.post("/topics/hidden-from-ada/messages", value="1").status_code == 403
        assert states(ada.get("/topics/orders-for-ada/messages?show=all").text) == ["readable"]


def test_whoever_may_not_produce_is_not_offered_it(secured: Secured) -> None:
    with secured.cluster.client(secured.tokens["root"]) as root:
        root.create_topic("orders-of-eve", exist_ok=True)
        strange = root.begin()
        path = "/topics/orders-of-eve/messages"
        with Sender(secured.cluster.url, secured.tokens["eve"]) as eve:
            assert "Produce" not in eve.get(path).text
            assert eve.post(path, value="1").status_code == 403
        with Sender(secured.cluster.url, secured.tokens["ada"]) as ada:
            assert "Produce" in ada.get(path).text
            refused = ada.post(path, value="1", txn=strange.id)
            assert refused.status_code == 403, "she does not own the transaction"
        strange.abort()
        assert list(root.reader("orders-of-eve", isolation="read_uncommitted")) == []


# -- in a browser --------------------------------------------------------------------------------------------------


def test_columns_are_a_table_that_is_filtered_followed_and_taken_home(visitor: Visitor, client: metatxn.Client) -> None:
    fields: list[pa.Field[Any]] = [
        *(pa.field("id", pa.int64()), pa.field(HOSTILE, pa.string()), pa.field("at", pa.timestamp("us"))),
    ]
    client.create_topic("table", schema=pa.schema(fields))
    at = datetime(2026, 3, 2, 9, 4)  # noqa: DTZ001
    with client.table_writer("table") as table:
        table.write(pa.table({"id": [1, 2], HOSTILE: ["=1+1", "two"], "at": [at, None]}))
    page = visitor.open("/topics/table/messages")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    assert page.locator("thead th").nth(5).inner_text().startswith(HOSTILE[:50])
    expect(rows.first).to_contain_text("2026-03-02 09:04:00")
    rows.first.locator("summary").first.click()
    with client.producer("table") as producer:
        producer.send({"id": 3, HOSTILE: SCRIPT}).result()
    expect(rows).to_have_count(3)
    expect(rows.first.locator("ul")).to_be_visible()  # what is opened stays open while the page follows
    assert violations(page) == [] and page.locator("main img, main script").count() == 0
    page.get_by_label("Where").fill("id < 3 and at = null")
    page.get_by_role("button", name="Show").click()
    expect(rows).to_have_count(1)
    expect(page.get_by_text("Looked through 3 messages of 2 entries; 1 matches.")).to_be_visible()
    page.get_by_label("Where").fill("")
    page.get_by_label("Where").press("Enter")
    expect(rows).to_have_count(3)  # the page before had the same links
    with page.expect_download() as started:
        page.get_by_role("link", name="Arrow").click()
    assert started.value.suggested_filename == "table-0000-ffff-0.arrow"
    read = pa.ipc.open_file(str(started.value.path())).read_all()
    assert read["id"].to_pylist() == [1, 2, 3] and read["at"].to_pylist() == [at, None, None]
    with page.expect_download() as started:
        page.get_by_role("link", name="CSV").click()
    assert "'=1+1" in started.value.path().read_text()


def test_messages_are_produced_also_inside_a_transaction(
    visitor: Visitor, cluster: ConsoleCluster, client: metatxn.Client
) -> None:
    client.create_topic("produced")
    txn = client.begin(timeout_ms=600_000, properties={"job": "by hand"})
    txn.leave_open()
    page = visitor.open("/topics/produced/messages?show=all")
    page.get_by_text("Produce a message").click()
    form = page.locator(".produce")
    form.get_by_label("Key").fill("7")
    form.get_by_label("Value", exact=True).fill('{"by": "hand"}')
    form.get_by_label("Properties").fill("a=1\n\nb = x=y")
    form.get_by_role("button", name="Produce").click()
    expect(page.get_by_text("The message is stored at 1:0.")).to_be_visible()
    assert cluster.recorded[-1] == ("console.message.produce", {"topic": "public/default/produced"}, 200)
    page.get_by_text("Produce a message").click()
    assert short_id(txn.id) in [each.get_attribute("value") for each in page.locator("#own option").all()]
    form.get_by_label("Value is").select_option("hex")
    form.get_by_label("Value", exact=True).fill("00 ff")
    form.get_by_label("Transaction").fill(short_id(txn.id))
    form.get_by_role("button", name="Produce").click()
    expect(page.get_by_text("readers get it once transaction")).to_be_visible()
    expect(page.locator("tbody tr").last).to_contain_text("undecided")
    assert cluster.recorded[-1][1]["txn_id"] == txn.id
    txn.commit()
    expect(page.locator("tbody tr").last).to_contain_text("readable")
    (first, second) = client.reader("produced")
    assert (first.key, first.value, first.properties) == ("7", {"by": "hand"}, {"a": "1", "b": "x=y"})
    assert (second.key, second.value) == (None, b"\x00\xff")


def test_what_was_typed_stays_when_it_is_refused(visitor: Visitor, client: metatxn.Client) -> None:
    """The reason is in the form, in the words of the page, and a time is one in the zone of the reader."""
    visitor.expected = "status of 4(09|22)"
    client.create_topic("typed", schema=pa.schema([pa.field("id", pa.int64())]))
    page = visitor.open("/topics/typed/messages?show=all")
    page.get_by_text("Produce a message").click()
    form = page.locator(".produce form")
    form.get_by_label("Key").fill("7")
    form.get_by_label("Value", exact=True).fill('{"id": "seven"}')
    form.get_by_role("button", name="Produce").click()
    expect(form.get_by_role("alert")).to_contain_text("seven")
    expect(form.get_by_label("Value", exact=True)).to_have_value('{"id": "seven"}')
    form.get_by_label("Value", exact=True).fill('{"id": 7}')
    form.get_by_role("button", name="Produce").click()
    expect(page.get_by_text("The message is stored at 1:0.")).to_be_visible()
    assert [each.key for each in client.reader("typed")] == ["7"]
    filters = page.locator("form.filters")
    for label, wrong, words in (
        ("Where", "id >", "where: it ends where"),
        ("After position", "here", "After position: "),
        ("From time", "yesterday", "Time: 'yesterday' is not a time. Write it as 2026-03-02 09:04, in your own zone"),
    ):
        filters.get_by_label(label).fill(wrong)
        filters.get_by_role("button", name="Show").click()
        expect(filters.get_by_role("alert")).to_contain_text(words)
        expect(filters.get_by_label(label)).to_have_value(wrong)
        expect(filters.get_by_label(label)).to_be_focused()
        assert "Correct the named field" not in filters.inner_text() and "datetime" not in filters.inner_text()
        filters.get_by_label(label).fill("")
    filters.get_by_label("From time").fill("2100-01-01 00:00")
    filters.get_by_role("button", name="Show").click()
    expect(page).to_have_url(re.compile("at=2099-12-31T15%3A00%3A00"))
    expect(page.get_by_text("There are no messages here.")).to_be_visible()
    expect(filters.get_by_label("From time")).to_have_value("2100-01-01 00:00")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"value": "{"}, "it is not JSON"),
        ({"value": "NaN"}, "NaN is not JSON"),
        ({"value": '"\\ud800"'}, "value: "),
        ({"value": "[" * 300 + "]" * 300}, "value: "),
        ({"value": "0", "kind": "hex"}, "pairs"),
        ({"value": "0", "kind": "xml"}, "kind"),
        ({"value": "0", "properties": "a"}, "name=value"),
        ({"value": "0", "txn": "zz"}, "txn_id"),
        ({"value": "0", "txn": "f" * 32}, "f" * 32),
    ],
)
def test_what_cannot_be_produced_is_said(
    sender: Sender, client: metatxn.Client, fields: dict[str, str], words: str
) -> None:
    client.create_topic("not-produced", exist_ok=True)
    answer = sender.post("/topics/not-produced/messages", **fields)
    assert 400 <= answer.status_code < 500 and words in html.unescape(answer.text), answer.text
    assert list(client.reader("not-produced")) == []

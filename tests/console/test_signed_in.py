"""Goal: anyone who has signed in makes every change of the console in a browser, and the audit log has its name; pages
follow while a job runs; and the keyboard is enough for all of it.

Method: a browser that is signed in at the cluster with tokens. The tests of each page look closer, without tokens.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

import metatxn
from metatxn.words import short_id
from tests.console.browser import Visitor
from tests.console.cluster import SCHEMA, ConsoleCluster
from tests.console.conftest import Secured
from tests.console.life import Life
from tests.console.test_frame import sign_in
from tests.services_thread import Loop

TOPIC = "shop"
STOPS_AT_MOST = 150
SEEN = """() => {
  const found = document.activeElement, style = getComputedStyle(found), box = found.getBoundingClientRect();
  const marked = (style.outlineStyle !== "none" && style.outlineWidth !== "0px") || style.boxShadow !== "none";
  const there = box.width > 0 && box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
  return [found === document.body, marked && there, found.outerHTML.slice(0, 150)];
}"""
"""Whether the keyboard has left the page, and whether one sees where it is."""


@pytest.fixture
def root(secured: Secured) -> Iterator[metatxn.Client]:
    with secured.cluster.client(secured.tokens["root"]) as client:
        client.create_topic(TOPIC, segments=2, exist_ok=True)
        yield client


class Hands:
    """What somebody does who has signed in."""

    def __init__(self, visitor: Visitor, page: Page) -> None:
        self.visitor = visitor
        self.page = page

    def on(self, path: str) -> Hands:
        self.visitor.open(path)
        return self

    def press(self, summary: str, button: str, said: str, *boxes: str, within: str = "main", **fields: str) -> None:
        """Open what has this summary, if any, fill in fields by their labels, tick boxes, and press the button."""
        part = self.page.locator(within).first
        if summary:
            part.get_by_text(summary, exact=True).first.click()
        form = part.locator("details[open] form").first if summary else part
        for label, value in fields.items():
            form.get_by_label(label.replace("_", " "), exact=True).fill(value)
        for box in boxes:
            form.get_by_label(re.compile(box)).check()
        form.get_by_role("button", name=button, exact=True).click()
        expect(self.page.locator(".said")).to_contain_text(said)


def test_every_change_is_made_by_whoever_has_signed_in(
    stranger: Visitor, secured: Secured, root: metatxn.Client
) -> None:
    before = len(secured.cluster.recorded)
    hands = Hands(stranger, sign_in(stranger, secured.tokens["root"]))
    _of_transactions(hands, secured, root)
    _of_subscriptions(hands, root)
    _of_topics(hands)
    (broker,) = root.cluster().brokers
    row = f"[id='service-{broker.id}']"
    hands.on("/cluster").press("Drain it", "Drain", "is drain", "go to other brokers|take its segments", within=row)
    hands.press("", "Undrain", "is serving", within=row)
    made = {verb for verb, _, status in secured.cluster.recorded[before:] if status == 200}
    verbs = json.loads(SCHEMA.read_text())["properties"]["verb"]["enum"]
    assert made == {verb for verb in verbs if verb.startswith("console.")}


def _of_transactions(hands: Hands, secured: Secured, root: metatxn.Client) -> None:
    hands.on("/transactions").press("Begin a transaction by hand", "Begin", "has begun", Is_aborted_after="1h")
    begun = hands.page.url.rpartition("/")[2]
    messages = hands.on(f"/topics/{TOPIC}/messages?show=all")
    messages.press("Produce a message", "Produce", "is stored at", Value="1", Transaction=short_id(begun))
    ended = hands.on(f"/transactions/{begun}")
    ended.press("Commit it instead", "Commit", "is committed", "Everything that belongs to it")
    left, hanging = root.begin(timeout_ms=80_000_000), root.begin(timeout_ms=80_000_000)
    with root.producer(TOPIC) as producer:
        producer.send(1, txn=hanging).result()
    hands.on(f"/transactions/{left.id}").press("", "Abort", "is aborted", Reason="by hand")
    secured.cluster.ahead_ms += 600_000
    secured.cluster.count_open()
    try:
        page = hands.on("/hanging").page
        page.get_by_label(f"Choose {short_id(hanging.id)}", exact=True).check()
        hands.press("", "Abort the chosen ones", "1 transaction is aborted.", Reason="by hand")
    finally:
        secured.cluster.ahead_ms -= 600_000
    root.connect_key("by-hand")
    hands.on("/keys/by-hand?owner=root").press("", "Fence", "is fenced", "The process that is connected")


def _of_subscriptions(hands: Hands, root: metatxn.Client) -> None:
    root.create_topic(f"{TOPIC}-dead", exist_ok=True)
    root.create_subscription(TOPIC, "mail", "shared", "earliest", f"{TOPIC}-dead", 0)
    with root.producer(TOPIC) as producer, root.consumer(TOPIC, "mail") as consumer:
        producer.send("unwanted").result()
        consumer.negative_acknowledge(consumer.receive_many(10, timeout_s=30))
    path = f"/topics/{TOPIC}/subscriptions/mail"
    hands.on(path).press("Publish its dead letters again", "Publish again", "published again", "All subscriptions")
    hands.on(f"{path}/seek?to=latest").press("", "Move", "mail is moved")


def _of_topics(hands: Hands) -> None:
    hands.on("/topics").press("", "Create", "is created", within="section.ending", Name="made-by-hand")
    for summary, button, said, boxes, fields in (
        ("Change its policy", "Set", "retention_ms is 604800000", (), {"Value": "7d"}),
        ("Split a segment", "Split", "0000-7fff-1 and 8000-ffff-2 took over", (), {}),
        ("Merge two neighbours", "Merge", "0000-ffff-3 took over", (), {}),
        ("Drop old entries of a segment", "Drop", "begins at", (), {"Before_position": "1:0"}),
        ("Seal a segment", "Seal", "Nothing follows it", ("Nothing will follow it",), {}),
    ):
        hands.press(summary, button, said, *boxes, **fields)
    topic = "public/default/made-by-hand"
    hands.page.get_by_text("Delete this topic").click()
    hands.page.get_by_label("Type its name").fill(topic)
    hands.page.get_by_role("button", name="Delete").click()
    expect(hands.page.locator(".said")).to_contain_text(f"The topic {topic} is deleted.")


# -- by keyboard ---------------------------------------------------------------------------------------------------


def tab_to(page: Page, wanted: Locator) -> None:
    """Press Tab until it has the focus."""
    for _ in range(STOPS_AT_MOST):
        page.keyboard.press("Tab")
        if wanted.evaluate("found => found === document.activeElement"):
            return
    raise AssertionError(f"the keyboard does not get to {wanted}")


@pytest.mark.parametrize(
    "path", ["/", "/transactions", "/topics/orders", "/topics/orders/messages?show=all", "/cluster"]
)
def test_each_stop_of_the_keyboard_can_be_seen(visitor: Visitor, life: Life, path: str) -> None:
    """The first one leads to the content, and after the last one it leaves the page."""
    page = visitor.open(path)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    for _ in range(STOPS_AT_MOST):
        left, seen, what = page.evaluate(SEEN)
        assert seen or left, what
        if left:
            return
        page.keyboard.press("Tab")


def test_changes_are_made_with_the_keyboard_alone(visitor: Visitor, client: metatxn.Client) -> None:
    client.create_topic("keyed-in")
    client.create_subscription("keyed-in", "mover", initial="latest")
    txn = client.begin(timeout_ms=600_000)
    txn.leave_open()
    page = visitor.open(f"/transactions/{txn.id}")
    tab_to(page, page.get_by_label("Reason"))
    page.keyboard.type("by keyboard")
    page.keyboard.press("Enter")
    expect(page.get_by_text(f"Transaction {short_id(txn.id)} is aborted.")).to_be_visible()
    assert txn.refresh().reason == "by keyboard"
    page = visitor.open("/topics/keyed-in/subscriptions/mover")
    tab_to(page, page.locator("summary").filter(has_text="Move it to another place"))
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("button", name="Show what would happen"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Move it to the earliest message?")
    expect(page.get_by_role("button", name="Move")).to_be_visible()
    tab_to(page, page.get_by_role("button", name="Move"))
    page.keyboard.press("Enter")
    expect(page.get_by_text("mover is moved: 0 messages are to be delivered.")).to_be_visible()
    page = visitor.open("/topics/keyed-in")
    tab_to(page, page.locator("summary").filter(has_text="Delete this topic"))
    page.keyboard.press("Space")
    tab_to(page, page.get_by_label("Type its name"))
    page.keyboard.type("keyed-in")
    page.keyboard.press("Enter")
    expect(page.get_by_text("The topic public/default/keyed-in is deleted.")).to_be_visible()


# -- times, and what happens meanwhile -----------------------------------------------------------------------------


def test_times_are_in_the_zone_of_whoever_looks(visitor: Visitor, client: metatxn.Client, life: Life) -> None:
    """And the exact value is there for anyone who points at one."""
    header = client.attach(life.committed).refresh()
    at = datetime.fromtimestamp((header.created_ms or 0) / 1000, ZoneInfo("Asia/Tokyo"))
    begun = visitor.open(f"/transactions/{life.committed}").locator(".facts time").first
    expect(begun).to_have_text(re.compile(at.strftime(r"%-I:%M:%S\s%p")))
    assert re.fullmatch(
        rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{3}}Z · {header.created_ms}", begun.get_attribute("title") or ""
    )


@contextmanager
def a_job(cluster: ConsoleCluster, topic: str) -> Iterator[list[str]]:
    """A program that commits one transaction after another with a message in each; the list grows by their ids."""
    committed: list[str] = []
    stopping = threading.Event()

    def work() -> None:
        with cluster.client() as client, client.producer(topic) as producer:
            while not stopping.is_set():
                with client.transaction(properties={"job": topic}) as txn:
                    producer.send({"number": len(committed)}, key="k", txn=txn)
                committed.append(txn.id)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield committed
    finally:
        stopping.set()
        thread.join()


@pytest.fixture
def busy(loop: Loop, tmp_path: Path) -> Iterator[ConsoleCluster]:
    """A cluster of its own: other tests would have to page through what the job has done."""
    with ConsoleCluster(loop, tmp_path) as cluster:
        with cluster.client() as client:
            client.create_topic("busy")
        yield cluster


def test_pages_follow_while_a_job_runs(browser: Browser, busy: ConsoleCluster) -> None:
    """Several of them at once, again and again; what has the focus keeps it, and in the end they show the last one."""
    visitor = Visitor(browser, busy.url)
    pages = {
        path: visitor.new_page() for path in ("/", "/transactions?text=busy", "/topics/busy", "/topics/busy/messages")
    }
    with a_job(busy, "busy") as committed:
        for path, page in pages.items():
            page.goto(f"{visitor.url}/console{path}")
        listed, topic, messages = list(pages.values())[1:]
        listed.get_by_label("Text").focus()
        for _ in range(3):
            shown = {path: page.locator("main").inner_text() for path, page in pages.items()}
            for path, page in pages.items():
                expect(page.locator("main")).not_to_have_text(shown[path], use_inner_text=True)
        expect(listed.get_by_label("Text")).to_be_focused()
    expect(listed.locator(f"#txn-{committed[-1]}").get_by_text("committed")).to_be_visible()
    expect(messages.locator("tbody tr").last).to_contain_text(f"number: {len(committed) - 1}")
    expect(topic.locator("[id='segment-0000-ffff-0'] td.n").first).to_have_text(f"{len(committed):,}")
    for page in pages.values():
        expect(page.get_by_text("The coordinator does not answer")).to_be_hidden()
    visitor.context.close()
    assert visitor.troubles == []

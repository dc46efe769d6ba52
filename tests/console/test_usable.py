"""Goal: the pages are for everybody also in the states in which there is much to see: somebody else's transactions,
fenced and prepared ones, consumers that hold messages, dead letters, topics that were split.

Method: axe in a real browser, in both themes and on a phone, as an administrator and as a user. Without tokens and in
plainer states `test_frame.py` does the same for every page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Page, expect

import metatxn
from tests.console.browser import DESKTOP, PHONE, Visitor, dark_violations, is_too_wide, violations
from tests.console.conftest import Secured
from tests.console.test_frame import sign_in

TOPIC = "orders-of-many"
OF_ALL = (
    *("/", f"/topics/{TOPIC}", f"/topics/{TOPIC}/messages?show=all", f"/topics/{TOPIC}/subscriptions/billing"),
    "/transactions/{keyed}",
)
OF_ADMINISTRATORS = (
    *("/transactions/{fenced}", "/transactions/{prepared}", "/hanging", "/keys/nightly?owner=ada"),
    *(f"/topics/{TOPIC}/subscriptions", "/access/tokens"),
)
OF_USERS = ("/transactions", "/cluster", "/access")


@dataclass(frozen=True, slots=True)
class Much:
    """The ids of transactions by their state."""

    keyed: str
    fenced: str
    prepared: str


@pytest.fixture(scope="module")
def much(secured: Secured) -> Iterator[Much]:
    """Much has happened in the cluster with tokens, and is ten minutes old."""
    with (
        secured.cluster.client(secured.tokens["root"]) as root,
        secured.cluster.client(secured.tokens["ada"]) as ada,
    ):
        root.create_topic(TOPIC, segments=2)
        root.create_topic("dead-of-many")
        first = min(each.segment for each in root.topic(TOPIC).segments)
        root.split_segment(first)
        root.create_subscription(TOPIC, "billing", "shared", "earliest", "dead-of-many", 0)
        with root.consumer(TOPIC, "billing", name="alpha") as alpha, ada.consumer(TOPIC, "billing", name="beta"):
            much = _happened(root, ada, alpha, secured)
            yield much
            secured.cluster.ahead_ms -= 600_000
            for txn_id in (much.keyed, much.prepared):
                ada.attach(txn_id).abort()


def _happened(root: metatxn.Client, ada: metatxn.Client, alpha: metatxn.Consumer, secured: Secured) -> Much:
    with root.producer(TOPIC) as producer:
        for number in range(20):
            producer.send({"number": number}, key=str(number)).result()
    fenced = ada.begin(timeout_ms=80_000_000, key="nightly", epoch=ada.connect_key("nightly").epoch)
    keyed = ada.begin(timeout_ms=80_000_000, key="nightly", epoch=ada.connect_key("nightly").epoch)
    prepared = ada.begin(timeout_ms=80_000_000)
    with ada.producer(TOPIC) as producer:
        for txn in (keyed, prepared):
            producer.send("inside", key="1", txn=txn).result()
    prepared.prepare(86_400_000)
    held = alpha.receive_many(10, timeout_s=30)
    alpha.acknowledge(held[:1], keyed)
    alpha.negative_acknowledge(held[1:2])
    for txn in (fenced, keyed, prepared):
        txn.leave_open()
    secured.cluster.ahead_ms += 600_000
    secured.cluster.count_open()
    return Much(keyed.id, fenced.id, prepared.id)


def of_page(page: Page) -> list[str]:
    """What keeps people from using a page."""
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    found = violations(page) + dark_violations(page)
    page.set_viewport_size(PHONE)
    found += ["it has to be scrolled sideways"] if is_too_wide(page) else []
    page.set_viewport_size(DESKTOP)
    return found


@pytest.mark.parametrize(("name", "paths"), [("root", OF_ALL + OF_ADMINISTRATORS), ("ada", OF_ALL + OF_USERS)])
def test_pages_with_much_on_them_can_be_used_by_everybody(
    stranger: Visitor, secured: Secured, much: Much, name: str, paths: tuple[str, ...]
) -> None:
    sign_in(stranger, secured.tokens[name])
    for path in paths:
        page = stranger.open(path.format(keyed=much.keyed, fenced=much.fenced, prepared=much.prepared))
        expect(page.locator("[hx-get]")).to_have_count(0)
        assert of_page(page) == [], path

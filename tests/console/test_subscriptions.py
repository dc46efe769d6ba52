"""Goal: of a subscription it is shown how far it is behind, who has what, and what has gone to the dead letters.

Method: a browser for what a person sees and does, and forms that are sent without one for what is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

import metatxn
from metatxn.words import short_id
from tests.console.browser import Visitor
from tests.console.cluster import ConsoleCluster
from tests.console.conftest import Secured
from tests.console.forms import Sender
from tests.console.life import HOSTILE, Life


@pytest.fixture
def client(cluster: ConsoleCluster) -> Iterator[metatxn.Client]:
    with cluster.client() as client:
        yield client


def published(client: metatxn.Client, topic: str, number: int) -> None:
    client.create_topic(topic, exist_ok=True)
    with client.producer(topic) as producer:
        for each in range(number):
            producer.send(each, key=str(each)).result()


def fact(page: Page, name: str) -> str:
    return page.locator(".facts > div").filter(has=page.get_by_text(name, exact=True)).locator("dd").inner_text()


def test_one_says_who_has_what_and_follows(visitor: Visitor, cluster: ConsoleCluster, client: metatxn.Client) -> None:
    published(client, "followed", 6)
    client.create_subscription("followed", "s", "shared", "earliest", "followed-dead", 1)
    with client.consumer("followed", "s", name="alpha") as consumer:
        page = visitor.open("/topics/followed/subscriptions")
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name="s", exact=True))
        expect(row).to_contain_text("6 messages")
        consumer.negative_acknowledge(consumer.receive_many(4))
        held = consumer.receive_many(4)
        txn = client.begin(timeout_ms=600_000)
        consumer.acknowledge(held[:1], txn)
        row.get_by_role("link", name="s", exact=True).click()
        expect(page.get_by_role("heading", name="s", level=1)).to_be_visible()
        pending = page.get_by_role("region", name="Pending acknowledgements")
        expect(pending.get_by_role("link", name=short_id(txn.id), exact=True)).to_be_visible()
        expect(page.get_by_role("region", name="Consumers").get_by_role("row").nth(1)).to_contain_text("alpha")
        assert fact(page, "Pending acknowledgements") == "1 message"
        assert fact(page, "Delivered more than once") != "0 messages"
        assert re.fullmatch(r"\d+ ms ago|.*s ago", fact(page, "The oldest of it"))
        txn.commit()
        expect(page.get_by_text("no open transaction has acknowledged")).to_be_visible()
        consumer.negative_acknowledge(held[1:])
        expect(page.get_by_role("region", name="Dead letters", exact=True)).to_contain_text(re.compile("[1-3] entr"))
    expect(page.get_by_text("No consumer is connected.")).to_be_visible()
    page.get_by_role("link", name="followed", exact=True).click()
    expect(page.get_by_role("link", name="Subscriptions")).to_be_visible()


def test_a_name_that_is_meant_to_do_harm_is_only_a_name(visitor: Visitor, life: Life) -> None:
    page = visitor.open(f"/topics/{quote(HOSTILE.replace('/', '_'), safe='')}/subscriptions")
    page.get_by_role("link", name=HOSTILE, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    assert page.locator("main img, main script").count() == 0


def test_a_topic_without_any_says_how_one_begins(visitor: Visitor, client: metatxn.Client) -> None:
    client.create_topic("unsubscribed")
    page = visitor.open("/topics/unsubscribed/subscriptions")
    expect(page.get_by_text("metatxn subscription create")).to_be_visible()


def test_they_are_shown_to_those_who_may_consume(secured: Secured) -> None:
    with secured.cluster.client(secured.tokens["root"]) as root:
        root.create_topic("secret", exist_ok=True)
        root.create_subscription("secret", "s")
        root.create_topic("orders-of-ada", exist_ok=True)
        root.create_topic("dead", exist_ok=True)
        root.create_subscription("orders-of-ada", "s", dead_letter_topic="dead")
    with Sender(secured.cluster.url, secured.tokens["ada"]) as ada:
        assert ada.get("/topics/secret/subscriptions").status_code == 403
        assert ada.get("/topics/secret/subscriptions/s").status_code == 403
        assert "/subscriptions/s" in ada.get("/topics/orders-of-ada/subscriptions").text
        assert "you have no right to read it" in ada.get("/topics/orders-of-ada/subscriptions/s").text

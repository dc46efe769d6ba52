"""Goal: of a subscription it is shown how far it is behind, who has what, and what has gone to the dead letters.

Method: a browser for what a person sees and does, and forms that are sent without one for what is refused.
"""

from __future__ import annotations

import re
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import Page, expect

import metatxn
from metatxn.console.pages import seeking, subscriptions
from metatxn.words import short_id
from tests.console.browser import Visitor
from tests.console.cluster import ConsoleCluster
from tests.console.conftest import Secured
from tests.console.forms import Sender
from tests.console.life import HOSTILE, Life


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
        expect(page.get_by_role("region", name="Connected consumers").get_by_role("row").nth(1)).to_contain_text(
            "alpha"
        )
        assert fact(page, "Pending acknowledgements") == "1 message"
        assert fact(page, "Delivered more than once") != "0 messages"
        assert re.fullmatch(r"\d+ ms ago|.*s ago", fact(page, "The oldest of these"))
        txn.commit()
        expect(page.get_by_text("No open transaction has acknowledged")).to_be_visible()
        consumer.negative_acknowledge(held[1:])
        expect(page.get_by_role("region", name="Dead letters", exact=True)).to_contain_text(re.compile("[1-3] entr"))
    expect(page.get_by_text("No consumer is connected.")).to_be_visible()
    page.get_by_role("link", name="followed", exact=True).click()
    expect(page.get_by_role("main").get_by_role("link", name="Subscriptions")).to_be_visible()


def test_those_of_all_topics_are_one_list_that_is_searched_and_follows(
    visitor: Visitor, client: metatxn.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("listed-a", "listed-b"):
        published(client, topic, 2)
        for name in ("one", "two"):
            client.create_subscription(topic, name, "shared", "earliest")
    page = visitor.open("/subscriptions?text=LISTED-")
    rows = page.get_by_role("region", name="Subscriptions").get_by_role("row")
    expect(rows).to_have_count(5)
    expect(rows.nth(4)).to_contain_text(re.compile(r"listed-b\s+two\s+shared\s+2 messages"))
    published(client, "listed-b", 3)
    expect(rows.nth(4)).to_contain_text("5 messages")
    client.drop_subscription("listed-a", "one")
    expect(rows).to_have_count(4)
    monkeypatch.setattr(subscriptions, "PER_PAGE", 2)
    page = visitor.open("/subscriptions?text=listed-")
    expect(rows).to_have_count(3)
    page.get_by_role("link", name="Next").click()
    expect(rows).to_have_count(2)
    rows.get_by_role("link", name="two").click()
    expect(page.get_by_role("heading", name="two", level=1)).to_be_visible()
    page.get_by_role("navigation", name="Pages", exact=True).get_by_role("link", name="Subscriptions").click()
    page.get_by_label("Text").fill("not listed")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("No subscription matches.")).to_be_visible()


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


# -- moving it, and its dead letters -------------------------------------------------------------------------------


def test_one_is_moved_behind_a_preview_and_its_dead_letters_are_published_again(
    visitor: Visitor, cluster: ConsoleCluster, client: metatxn.Client
) -> None:
    published(client, "moved", 5)
    with client.subscribe("moved", "s", "shared", "earliest", "moved-dead", 0) as consumer:
        held = [consumer.receive(10) for _ in range(5)]
        consumer.acknowledge([each for each in held[:3] if each is not None])
        consumer.negative_acknowledge([each for each in held[3:] if each is not None])
    path = "/topics/moved/subscriptions/s"
    page = visitor.open(path)
    expect(page.get_by_role("region", name="Dead letters", exact=True)).to_contain_text(re.compile("[12] entr"))
    page.get_by_text("Publish its dead letters again").click()
    page.get_by_label("All subscriptions of moved get them").check()
    page.get_by_role("button", name="Publish again").click()
    expect(page.get_by_text("2 messages were published again.")).to_be_visible()
    expect(page.get_by_role("region", name="Dead letters", exact=True)).to_contain_text("0 messages there were not")
    assert sum(each.backlog for each in client.subscription("moved", "s").segments) == 2
    page.get_by_text("Move it to another place").click()
    page.get_by_role("button", name="Show what would happen").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Move it to the earliest message?")
    assert [fact(page, each) for each in ("Would be delivered", "Again, of these")] == ["7 messages", "5 messages"]
    page.get_by_role("button", name="Move").click()
    expect(page.get_by_text("s is moved: 7 messages are to be delivered.")).to_be_visible()
    assert [verb for verb, about, status in cluster.recorded if about.get("subscription") == "s" and status == 200] == [
        "console.subscription.redrive",
        "console.subscription.seek",
    ]


def test_no_page_waits_for_what_has_to_be_counted(
    visitor: Visitor, sender: Sender, client: metatxn.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just started looks through what is kept of a topic. The page is there before, and follows."""
    monkeypatch.setattr(subscriptions, "COUNTED_WITHIN_S", 0)
    published(client, "being-counted", 2)
    client.create_subscription("being-counted", "s", initial="earliest")
    path = "/topics/being-counted/subscriptions"
    assert "Being counted" in sender.get(path).text
    expect(visitor.open(path).get_by_role("region", name="Subscriptions")).to_contain_text("2 messages")
    assert "is being counted" in sender.get(f"{path}/s").text
    page = visitor.open(f"{path}/s")
    expect(page.locator(".facts")).to_contain_text("2 messages")
    expect(page).to_have_url(re.compile(r"\?wait=yes$"))


def test_what_a_move_to_a_revision_would_do_is_counted_a_part_with_each_request(
    visitor: Visitor, sender: Sender, client: metatxn.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page goes on by itself, and offers the move at the end."""
    monkeypatch.setattr("participants.segment.reading.READ_BYTES", 1)
    monkeypatch.setattr(seeking, "COUNTED_FOR_S", 0)
    published(client, "counted", 5)
    client.create_subscription("counted", "s")
    revision = client.begin().commit().revision
    assert revision is not None
    assert not client.preview_seek("counted", "s", revision=revision, for_s=0).complete
    assert client.preview_seek("counted", "s", revision=revision).complete
    place = f"/topics/counted/subscriptions/s/seek/effect?to=revision&at={revision}"
    part = sender.get(place).text
    assert "at least 0 messages" in part and "hx-get" in part and "<form" not in part, "they may have passed"
    page = visitor.open(place.replace("/effect", ""))
    expect(page.get_by_role("button", name="Move")).to_be_visible()
    assert fact(page, "Would be delivered") == "5 messages"


def test_transactions_in_the_way_are_named_and_aborted_only_if_asked_for(
    cluster: ConsoleCluster, client: metatxn.Client
) -> None:
    published(client, "in-the-way", 2)
    with client.subscribe("in-the-way", "s", "shared", "earliest") as consumer, Sender(cluster.url) as sender:
        message = consumer.receive(10)
        assert message is not None
        txn = client.begin(timeout_ms=600_000)
        consumer.acknowledge(message, txn)
        path = "/topics/in-the-way/subscriptions/s/seek"
        revision = client.begin().commit().revision
        shown = sender.get(f"{path}?to=revision&at={revision}").text
        assert f"Move it to revision {revision}?" in shown and "Would be delivered" not in shown, "no page waits for it"
        assert "2 messages" in sender.get(f"{path}/effect?to=revision&at={revision}").text
        assert sender.get(f"{path}?to=nowhere").status_code == 422
        unknown = sender.get("/topics/in-the-way/subscriptions/nobody/seek/effect?to=earliest").text
        assert "nobody" in unknown.partition('role="alert"')[2]
        shown = sender.get(f"{path}/effect?to=time&at=2001-01-01T00:00:00Z").text
        assert txn.id in shown and 'name="force"' in shown
        assert sender.post(path, to="earliest").status_code == 409
        assert txn.refresh().state == "OPEN"
        assert sender.post(path, to="earliest", force="yes").status_code == 303
        assert txn.refresh().state == "ABORTED"


@pytest.mark.parametrize(
    ("path", "fields", "status", "words"),
    [
        ("seek", {}, 422, "is not earliest, latest, time or revision"),
        ("seek", {"to": "time", "at": "soon"}, 422, "is not a time"),
        ("seek", {"to": "time", "at": "2026-03-02T09:04:00"}, 422, "has no time zone"),
        ("seek", {"to": "revision", "at": "-1"}, 422, "is not a revision"),
        ("seek", {"to": "revision", "at": "9" * 15}, 422, "in the future"),
        ("redrive", {}, 422, "sure: confirm"),
        ("redrive", {"sure": "yes"}, 422, "has no dead-letter topic"),
    ],
)
def test_what_cannot_be_done_is_said(
    cluster: ConsoleCluster, life: Life, path: str, fields: dict[str, str], status: int, words: str
) -> None:
    with Sender(cluster.url) as sender:
        answer = sender.post(f"/topics/orders/subscriptions/billing/{path}", **fields)
        assert (answer.status_code, words in answer.text) == (status, True), answer.text
        if path == "seek":
            told = sender.get(f"/topics/orders/subscriptions/billing/seek/effect?{urlencode(fields)}")
            assert words in told.text.partition('role="alert"')[2], "in the place of what it would do"


def test_a_change_is_offered_to_those_who_may_make_it_and_refused_otherwise(secured: Secured) -> None:
    with secured.cluster.client(secured.tokens["root"]) as root:
        root.create_topic("orders-moved", exist_ok=True)
        root.create_topic("letters", exist_ok=True)
        root.create_subscription("orders-moved", "s", dead_letter_topic="letters")
        root.create_topic("secret", exist_ok=True)
        root.create_subscription("secret", "s")
    path = "/topics/orders-moved/subscriptions/s"
    with Sender(secured.cluster.url, secured.tokens["ada"]) as ada:
        shown = ada.get(path).text
        assert f"{path.replace('orders', 'public%2Fdefault%2Forders')}/seek" in shown and "/redrive" not in shown
        assert ada.post(f"{path}/redrive", sure="yes").status_code == 403
        assert ada.post(f"{path}/seek", to="earliest", force="yes").status_code == 403
        assert ada.post(f"{path}/seek", to="earliest").status_code == 303
        assert ada.post("/topics/secret/subscriptions/s/seek", to="earliest").status_code == 403
    secured.cluster.site.read_only = True
    try:
        with Sender(secured.cluster.url, secured.tokens["root"]) as sender:
            assert "Change it" not in sender.get(path).text
            assert "<button" not in sender.get(f"{path}/seek?to=latest").text.partition("<main")[2]
    finally:
        secured.cluster.site.read_only = False

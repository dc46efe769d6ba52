"""Goal: a topic is found, its segments are shown with who holds back their readers, and anyone who may changes
it.

Method: a browser for what a person sees and does, and forms that are sent without one for what is refused.
"""

from __future__ import annotations

import re
from urllib.parse import quote

import pyarrow as pa
import pytest
from playwright.sync_api import expect

import metatxn
from metatxn.console.pages import topics
from metatxn.words import short_id
from tests.console.browser import Visitor
from tests.console.cluster import ConsoleCluster
from tests.console.conftest import Secured
from tests.console.forms import Sender
from tests.console.life import HOSTILE, RIGHT_TO_LEFT, Life
from tests.console.test_frame import sign_in


def active(client: metatxn.Client, topic: str) -> list[str]:
    found = [each for each in client.topic(topic).segments if each.state == "active"]
    return [each.segment for each in sorted(found, key=lambda each: each.range)]


def test_topics_are_found_by_a_part_of_their_name(visitor: Visitor, life: Life) -> None:
    page = visitor.open("/topics")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="orders", exact=True))
    expect(row).to_contain_text("held back")
    expect(page.get_by_role("link", name=HOSTILE.replace("/", "_"), exact=True)).to_be_visible()
    page.get_by_role("searchbox", name="Name").fill("ORD")
    page.get_by_role("searchbox", name="Name").press("Enter")
    expect(page).to_have_url(re.compile("text=ORD"))
    assert page.locator("tbody a").all_inner_texts() == ["orders"]
    expect(page.get_by_text("1 topic matches.")).to_be_visible()
    visitor.open("/topics?text=nothing-has-this")
    expect(page.get_by_text("No topic matches.")).to_be_visible()


def test_topics_are_listed_with_what_goes_through_them_and_how_long_it_is_kept(
    sender: Sender, cluster: ConsoleCluster, client: metatxn.Client
) -> None:
    """The services look by themselves, too: a minute has two messages a second, whenever they do."""
    client.create_topic("flowing", segments=2)
    client.set_topic_policy("flowing", retention="hard", retention_ms=86_400_000)
    for _ in range(20):
        cluster.look()
    with client.producer("flowing") as producer:
        for number in range(120):
            producer.send(number, key=str(number))
    assert len(list(client.reader("flowing"))) == 120
    cluster.look()
    listed, shown = sender.get("/topics?text=flowing").text, sender.get("/topics/flowing").text
    assert re.findall(r'<td class="n">(\d+\.\d/s|\d+/s)', listed) == ["2/s", "2/s"]
    assert "hard" in listed and "1d" in listed and ">none</span>" in listed
    client.create_topic("flowing-too", schema=pa.schema([("id", pa.int64()), ("at", pa.int64())]))
    assert "<td>2 columns</td>" in sender.get("/topics?text=flowing-too").text
    assert "2/s, 2/s" in shown
    client.create_topic("just-made")
    assert re.findall(r'<td class="n">(–|[\d.]+/s)', sender.get("/topics?text=just-made").text) == ["–", "–"]


def test_a_list_of_many_segments_is_completed_and_says_what_is_not_known(
    visitor: Visitor, sender: Sender, client: metatxn.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page does not wait for all of them; what follows is bounded, too."""
    monkeypatch.setattr(topics, "MOST_LOOKED_AT", 3)
    for name in ("many-a", "many-b", "many-c"):
        client.create_topic(name, segments=2)
    with client.producer("many-c") as producer:
        for number in range(10):
            producer.send(number, key=str(number)).result()
    assert "the rest follows" in sender.get("/topics?text=many-").text
    page = visitor.open("/topics?text=many-")
    rows = page.get_by_role("region", name="Topics").locator("tbody tr")
    expect(rows.last).to_contain_text("up to date")
    expect(rows.last.locator("td").nth(2)).to_have_text("10")
    assert "not known" not in page.locator("main").inner_text()
    monkeypatch.setattr(topics, "MOST_FOLLOWING", 5)
    text = sender.get("/topic-sizes?text=many-").text
    assert "1 segment not known" in text and "at least" in text and "too many on this page" in text


def test_a_topic_says_who_holds_back_its_readers(visitor: Visitor, client: metatxn.Client) -> None:
    """Since when, and from which position on; and it follows what is decided."""
    client.create_topic("held-back")
    txn = client.begin(timeout_ms=600_000)
    with client.producer("held-back") as producer:
        producer.send("before").result()
        producer.send("inside", txn=txn).result()
        producer.send("behind").result()
    page = visitor.open("/topics/held-back")
    row = page.locator("[id='segment-0000-ffff-0']")
    expect(row.get_by_role("link", name=short_id(txn.id), exact=True)).to_be_visible()
    expect(row).to_contain_text(re.compile(r"after \d+:0"))
    expect(row).to_contain_text("2 entries")
    expect(page.get_by_role("img", name=re.compile("1 active, 0 sealed, 1 with readers"))).to_be_visible()
    txn.commit()
    expect(row).to_contain_text("nothing")
    expect(page.get_by_role("img", name=re.compile("0 with readers"))).to_be_visible()


def test_names_that_are_meant_to_do_harm_are_only_names(visitor: Visitor, life: Life) -> None:
    for name in (HOSTILE.replace("/", "_"), RIGHT_TO_LEFT):
        page = visitor.open(f"/topics/{quote(name, safe='')}")
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        assert page.locator("main img, main script").count() == 0


def test_a_topic_is_created_changed_and_deleted(
    visitor: Visitor, cluster: ConsoleCluster, client: metatxn.Client
) -> None:
    page = visitor.open("/topics")
    section = page.get_by_role("region", name="Create a topic")
    section.get_by_label("Name").fill("payments")
    section.get_by_label("Columns").fill("id")
    visitor.expected = "status of 422"
    section.get_by_role("button", name="Create").click()
    expect(section.get_by_role("alert")).to_contain_text("'id' is not a column")
    section.get_by_label("Columns").fill("id:int64, at:timestamp[us]")
    section.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="payments", level=1)).to_be_visible()
    expect(page.get_by_role("region", name="Columns")).to_contain_text("timestamp[us]")
    page.get_by_text("Split a segment").click()
    page.get_by_role("button", name="Split").click()
    expect(page.get_by_text("0000-ffff-0 is sealed. 0000-7fff-1 and 8000-ffff-2 took over.")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("2 active, 1 sealed"))).to_be_visible()
    page.get_by_text("Delete this topic").click()
    page.get_by_label("Type its name").fill("payment")
    visitor.expected = "status of 422"
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("alert")).to_contain_text("type the name of the topic")
    expect(page.get_by_label("Type its name")).to_have_value("payment")
    page.get_by_label("Type its name").fill("payments")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("The topic public/default/payments is deleted.")).to_be_visible()
    with pytest.raises(metatxn.NotFound):
        client.topic("payments")
    assert [verb for verb, _, status in cluster.recorded if status == 200][-3:] == [
        "console.topic.create",
        "console.segment.split",
        "console.topic.delete",
    ]


def test_whoever_has_signed_in_shapes_a_topic_by_hand(stranger: Visitor, secured: Secured) -> None:
    with secured.cluster.client(secured.tokens["root"]) as root:
        root.create_topic("by-hand", segments=2)
        with root.producer("by-hand") as producer:
            producer.send(1, key="1").result()
        page = sign_in(stranger, secured.tokens["root"], "/topics/by-hand")
        for summary, fill, button, said in (
            ("Change its policy", {"Value": "1h"}, "Set", "retention_ms is 3600000."),
            ("Merge two neighbours", {}, "Merge", "0000-7fff-0 is sealed. 0000-ffff-2 took over."),
            ("Drop old entries of a segment", {"Before position": "1:0"}, "Drop", "begins at"),
            ("Seal a segment", {}, "Seal", "0000-ffff-2 is sealed. Nothing follows it."),
        ):
            page.get_by_text(summary).click()
            form = page.locator("details[open] form")
            for label, value in fill.items():
                form.get_by_label(label).fill(value)
            if summary == "Change its policy":
                form.get_by_label("Setting").select_option("retention_ms")
            if summary == "Seal a segment":
                form.get_by_role("checkbox").check()
            form.get_by_role("button", name=button).click()
            expect(page.locator(".said")).to_contain_text(said)
        assert active(root, "by-hand") == []
        assert root.topic_policy("by-hand").policy.retention_ms == 3_600_000


def test_segments_and_policies_are_changed(sender: Sender, cluster: ConsoleCluster, client: metatxn.Client) -> None:
    client.create_topic("a/b/shaped", segments=2)
    path = "/topics/a%2Fb%2Fshaped"
    first, second = active(client, "a/b/shaped")
    assert sender.post(f"{path}/merge", segment=first, **{"with": second}).headers["location"] == f"/console{path}"
    (whole,) = active(client, "a/b/shaped")
    assert sender.post(f"{path}/split", segment=whole, at="100").status_code == 303
    assert [each.rpartition("/")[2][:9] for each in active(client, "a/b/shaped")] == ["0000-0063", "0064-ffff"]
    kept = active(client, "a/b/shaped")[0]
    with client.producer("a/b/shaped") as producer:
        for number in range(20):
            producer.send(number, key=str(number)).result()
    last = active(client, "a/b/shaped")[1]
    before = client.segment(last).last_position
    assert sender.post(f"{path}/trim", segment=last, before=before).status_code == 303
    assert client.segment(last).first_position == before
    assert sender.post(f"{path}/policy", setting="retention_ms", value="60000").status_code == 303
    assert sender.post(f"{path}/policy", setting="retention", value="hard").status_code == 303
    policy = client.topic_policy("a/b/shaped").policy
    assert (policy.retention_ms, policy.retention) == (60_000, "hard")
    assert sender.post(f"{path}/policy", setting="retention", value="").status_code == 303
    assert client.topic_policy("a/b/shaped").policy.retention is None
    assert sender.post(f"{path}/policy", setting="retention_ms", value="7d").status_code == 303
    assert client.topic_policy("a/b/shaped").policy.retention_ms == 604_800_000
    assert "write 7d, 12h" in sender.post(f"{path}/policy", setting="retention_ms", value="a week").text
    assert sender.post(f"{path}/seal", segment=kept, sure="yes").status_code == 303
    assert active(client, "a/b/shaped") == [last]
    assert "sealed" in sender.get(path).text


@pytest.mark.parametrize(
    ("path", "fields", "status", "words"),
    [
        ("/topics", {}, 422, "name: a value is missing"),
        ("/topics", {"name": "orders"}, 409, "orders exists"),
        ("/topics", {"name": "a/b"}, 422, "name"),
        ("/topics", {"name": "x", "segments": "many"}, 422, "segments: &#39;many&#39; is not a whole number"),
        ("/topics", {"name": "x", "segments": "-1"}, 422, "segments"),
        ("/topics/orders/delete", {"name": "order"}, 422, "type the name"),
        ("/topics/no-such/delete", {"name": "no-such"}, 404, "no-such"),
        ("/topics/orders/split", {}, 422, "segment: a value is missing"),
        ("/topics/orders/split", {"segment": "segment://x"}, 404, "segment"),
        ("/topics/orders/merge", {"segment": "segment://x"}, 422, "with: a value is missing"),
        ("/topics/orders/seal", {"segment": "segment://public/default/orders/0000-7fff-0"}, 422, "sure"),
        ("/topics/orders/trim", {"segment": "segment://public/default/orders/0000-7fff-0"}, 422, "before: a value is"),
        ("/topics/orders/policy", {"setting": "__class__", "value": "1"}, 422, "there is no setting"),
        ("/topics/orders/policy", {"setting": "retention_ms", "value": "long"}, 422, "is not a time"),
        ("/topics/orders/policy", {"setting": "retention", "value": "soft"}, 422, "retention"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(
    sender: Sender, client: metatxn.Client, life: Life, path: str, fields: dict[str, str], status: int, words: str
) -> None:
    before = client.topic("orders"), client.topic_policy("orders").policy
    answer = sender.post(path, **fields)
    assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert (client.topic("orders"), client.topic_policy("orders").policy) == before


def test_a_change_is_offered_to_those_who_may_make_it_and_refused_otherwise(secured: Secured) -> None:
    with secured.cluster.client(secured.tokens["root"]) as root:
        root.create_topic("orders-of-ada", exist_ok=True)
        root.create_topic("secret", exist_ok=True)
        (segment,) = active(root, "orders-of-ada")
        with Sender(secured.cluster.url, secured.tokens["ada"]) as ada:
            shown = ada.get("/topics").text
            assert "orders-of-ada" in shown and "secret" not in shown and "Create a topic" not in shown
            assert "Change it" not in ada.get("/topics/orders-of-ada").text
            assert ada.get("/topics/secret").status_code == 403
            for path, fields in (
                ("/topics", {"name": "orders-2"}),
                ("/topics/orders-of-ada/delete", {"name": "orders-of-ada"}),
                ("/topics/orders-of-ada/split", {"segment": segment}),
                ("/topics/orders-of-ada/policy", {"setting": "retention", "value": "hard"}),
                ("/topics/secret/delete", {"name": "secret"}),
            ):
                assert ada.post(path, **fields).status_code == 403, path
        assert active(root, "orders-of-ada") == [segment] and root.topic("secret").name == "public/default/secret"
        with Sender(secured.cluster.url, secured.tokens["root"]) as sender:
            assert "Change it" in sender.get("/topics/orders-of-ada").text

"""Goal: the services of a cluster are shown with what they do, a broker is drained by anyone who may, and the records
of the store are read by administrators alone, page by page.

Method: one visit in a browser to each page, and forms that are sent without one for what is refused.
"""

from __future__ import annotations

import html
import json
import re
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

import metatxn
from metastore.txn import paths
from metatxn.console import watched_checks
from metatxn.console.pages import store
from metatxn.console.pages.cluster import SEGMENTS_PER_PAGE
from tests.console.browser import Visitor
from tests.console.cluster import ConsoleCluster
from tests.console.conftest import Secured
from tests.console.forms import Sender
from tests.console.life import Life

_KEY = re.compile(r"<summary><code>([^<]+)</code>")
_NEXT = re.compile(r'href="/console([^"]+)">Next page')
_STREAM = re.compile('hx-sse:connect="([^"]+)"')
_COMPARED = re.compile(r"(\d+) records are compared")


def test_a_broker_is_shown_with_its_load_drained_and_undrained(
    visitor: Visitor, cluster: ConsoleCluster, client: metatxn.Client, life: Life
) -> None:
    (broker,) = client.cluster().brokers
    cluster.look()
    page = visitor.open("/cluster")
    row = page.get_by_role("region", name="Brokers").get_by_role("row").filter(has_text=broker.url)
    expect(row).to_contain_text("serving")
    expect(row).to_contain_text(re.compile(r"\d+ %of [\d.]+ [KMGT]iB"))
    row.get_by_role("link", name=str(client.broker(broker.id).segments), exact=True).click()
    expect(page.get_by_role("heading", name=f"Broker {broker.id}")).to_be_visible()
    shown = page.get_by_role("table").get_by_role("row")
    expect(shown).to_have_count(1 + min(SEGMENTS_PER_PAGE, client.broker(broker.id).segments))
    page.go_back()
    expect(page.get_by_role("region", name="Coordinators").get_by_text(cluster.url, exact=True)).to_be_visible()
    row.get_by_text("Drain it").click()
    row.get_by_role("checkbox").check()
    row.get_by_role("button", name="Drain").click()
    expect(page.get_by_text(re.compile(f"Broker {broker.id} is drain"))).to_be_visible()
    assert cluster.recorded[-1] == ("console.broker.drain", {"broker_id": broker.id}, 200)
    assert client.broker(broker.id).state != "serving"
    row.get_by_role("button", name="Undrain").click()
    expect(page.get_by_text(f"Broker {broker.id} is serving.")).to_be_visible()
    assert client.broker(broker.id).state == "serving"


def test_records_are_read_page_by_page(visitor: Visitor, cluster: ConsoleCluster, life: Life) -> None:
    page = visitor.open("/cluster/store?prefix=/txn/")
    page.locator("summary").first.click()
    expect(page.locator("pre").first).to_contain_text('"state"')
    with Sender(cluster.url) as sender, cluster.client() as client:
        path, seen = "/cluster/store", []
        while path:
            text = sender.get(path).text
            found = [html.unescape(each) for each in _KEY.findall(text)]
            assert len(found) <= store.PER_PAGE and len(text) < 200_000
            seen += found
            following = _NEXT.search(text)
            path = html.unescape(following[1]) if following else ""
        assert len(seen) > store.PER_PAGE and sorted(seen) == seen
        assert {*seen} >= {record.key for record in client.stored_records("/topic/")}
        assert "There are no records with such keys." in sender.get("/cluster/store?prefix=/nothing").text
        assert sender.get("/cluster/store?prefix=txn").status_code == 422


def test_a_long_record_is_shown_whole_and_its_key_decoded(sender: Sender, cluster: ConsoleCluster) -> None:
    key = f"/for-a-test/{quote('public/default/long', safe='')}"
    cluster.write({key: json.dumps({"text": "x" * 5_000, "end": "here"}).encode(), f"{key}er": b"{}"})
    try:
        shown = sender.get(f"/cluster/store?prefix={quote(key, safe='')}x").text
        assert "There are no records" in shown
        shown = sender.get("/cluster/store?prefix=/for-a-test/").text
        (url,) = re.findall(r'href="/console([^"]+)">Show all of it', shown)
        assert "here" not in shown.partition(html.escape(key))[2].partition("</details>")[0]
        whole = sender.get(html.unescape(url)).text
        assert "&#34;end&#34;: &#34;here&#34;" in whole and "/for-a-test/public/default/long<" in whole
        assert "Show all of it" not in whole and len(whole) < 200_000
    finally:
        cluster.write({key: None, f"{key}er": None})


def test_the_store_is_checked_while_somebody_looks(
    visitor: Visitor, cluster: ConsoleCluster, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page says how far it is, what it has found, and how much there is of what."""
    monkeypatch.setattr(watched_checks, "RECORDS_PER_STEP", 10)
    monkeypatch.setattr(store, "STEPS_PER_LOOK", 2)
    key = "/<b>odd</b>/1"
    cluster.write({key: b"1"})
    try:
        with cluster.client() as client:
            held = len([*client.stored_records("/topic/")])
        page = visitor.open("/cluster/store")
        page.get_by_role("link", name="Check all of them").click()
        expect(page.get_by_role("status")).to_contain_text("Begin with the first of the findings below.")
        finding = page.get_by_role("region", name="What is wrong").get_by_role("row").filter(has_text=key)
        expect(finding).to_contain_text("the key does not belong to any part of the layout")
        topics = page.get_by_role("row").filter(has=page.get_by_role("link", name="/topic/", exact=True))
        expect(topics.get_by_role("cell").nth(2)).to_have_text(str(held))
        monkeypatch.setattr(store, "STEPS_PER_LOOK", 0)  # it stays where it is
        page.get_by_role("link", name="Check again").click()
        expect(page.get_by_role("status")).to_contain_text("are compared with each other so far")
    finally:
        cluster.write({key: None})
        monkeypatch.setattr(store, "STEPS_PER_LOOK", 2)
    with Sender(cluster.url) as sender:
        text = sender.get("/cluster/store/check").text
        assert "10 records are compared with each other so far" in text, "a page does bounded work"


def test_a_check_goes_on_where_it_was_when_its_page_is_seen_again(
    cluster: ConsoleCluster, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The browser closes the stream of a page in the background. What has ended stays as it was."""
    monkeypatch.setattr(watched_checks, "RECORDS_PER_STEP", 10)
    monkeypatch.setattr(store, "STEPS_PER_LOOK", 1)
    with Sender(cluster.url) as sender:
        stream = _STREAM.search(sender.get("/cluster/store/check").text)
        assert stream is not None
        seen = [int(_COMPARED.findall(sender.first_event(stream[1]))[0]) for _ in range(3)]
        assert seen[0] == 20 and seen == sorted({*seen}), "10 more each time, after those of the page"
        monkeypatch.setattr(store, "STEPS_PER_LOOK", 1_000)
        ended = sender.first_event(stream[1])
        assert "It ended at" in ended and sender.first_event(stream[1]) == ended
        other = f"/console/cluster/store/check?check={'0' * 32}"
        monkeypatch.setattr(store, "STEPS_PER_LOOK", 1)
        assert _COMPARED.findall(sender.first_event(other)) == ["10"], "of another coordinator, or long ago"


def test_every_prefix_of_the_store_is_named() -> None:
    keys = [value for name, value in vars(paths).items() if name.isupper() and isinstance(value, str)]
    below = tuple(prefix for prefix, _ in store.PREFIXES)
    assert [key for key in keys if key.startswith("/") and not key.startswith(below)] == []
    assert [prefix for prefix in below if not any(key.startswith(prefix) for key in keys)] in ([], ["/batch/"])


def test_whoever_is_no_administrator_drains_nothing_and_reads_no_record(secured: Secured) -> None:
    (broker,) = secured.cluster.client(secured.tokens["root"]).cluster().brokers
    with Sender(secured.cluster.url, secured.tokens["ada"]) as ada:
        shown = ada.get("/cluster")
        assert shown.status_code == 200 and broker.url in shown.text
        assert "Drain it" not in shown.text and "/cluster/store" not in shown.text
        assert ada.get("/cluster/store").status_code == ada.get("/cluster/store/check").status_code == 403
        assert ada.get(f"/cluster/brokers/{broker.id}").status_code == 403
        for verb in ("drain", "undrain"):
            assert ada.post(f"/cluster/brokers/{broker.id}/{verb}", sure="yes").status_code == 403
    with Sender(secured.cluster.url, secured.tokens["root"]) as root:
        assert "Drain it" in root.get("/cluster").text and root.get("/cluster/store").status_code == 200
        assert root.post(f"/cluster/brokers/{broker.id}/drain").status_code == 422
        assert root.post("/cluster/brokers/nobody/drain", sure="yes").status_code == 404

"""Goal: every transaction is found, and one of them is told as a story: what it did where, when, and how it ended.

Method: a browser, and transactions in every state.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

import metatxn
from metatxn.console import services
from metatxn.console.pages import hanging, overview
from metatxn.health import HealthProblem
from metatxn.words import short_id
from tests.console.browser import Visitor
from tests.console.cluster import AwayStore, ConsoleCluster
from tests.console.conftest import Secured
from tests.console.forms import Sender
from tests.console.life import HOSTILE, RIGHT_TO_LEFT, Life


@pytest.fixture
def later(cluster: ConsoleCluster, life: Life) -> Iterator[None]:
    """What is open has been for ten minutes."""
    cluster.ahead_ms += 600_000
    yield
    cluster.ahead_ms -= 600_000


def rows(page: Page) -> list[str]:
    return page.locator("tbody tr td:first-child a").all_inner_texts()


def test_transactions_are_listed_with_what_became_of_them(visitor: Visitor, life: Life) -> None:
    """Each is asked for: other tests have filled the first page."""
    for txn_id, states in (
        (life.open, ["open"]),
        (life.prepared, ["prepared"]),
        (life.committed, ["committed"]),
        (life.aborted, ["aborted", "the card was refused"]),
        (life.fenced, ["fenced"]),
    ):
        row = visitor.open(f"/transactions?text={txn_id}").locator(f"#txn-{txn_id}")
        for state in states:
            expect(row.get_by_text(state, exact=len(state) < 12)).to_be_visible()
    expect(visitor.open(f"/transactions?text={life.hostile}").locator(f"#txn-{life.hostile}")).to_contain_text(
        HOSTILE[:40]
    )


def test_a_list_shows_what_was_asked_for(visitor: Visitor, life: Life) -> None:
    page = visitor.open("/transactions")
    page.get_by_label("State").select_option("aborted")
    page.get_by_role("button", name="Show").click()
    expect(page).to_have_url(re.compile("state=ABORTED"))
    assert {short_id(each) for each in (life.aborted, life.fenced, life.hostile)} <= set(rows(page))
    assert short_id(life.open) not in rows(page)
    page.get_by_label("Text").fill("THE CARD")
    page.get_by_label("Text").press("Enter")
    expect(page).to_have_url(re.compile("text=THE"))
    assert rows(page) == [short_id(life.aborted)]
    page.get_by_role("link", name="Clear").click()
    expect(page).to_have_url(re.compile("/transactions$"))
    for query, expected in (("key=loader", [life.fenced]), ("text=nothing+has+this", [])):
        assert rows(visitor.open(f"/transactions?{query}")) == [short_id(each) for each in expected]
    expect(page.get_by_text("No transaction matches.")).to_be_visible()
    segment = "segment%3A%2F%2Fpublic%2Fdefault%2Forders%2F0000-7fff-0"
    assert {short_id(life.open), short_id(life.prepared)} <= set(rows(visitor.open(f"/transactions?segment={segment}")))


def test_administrators_list_those_of_one_owner(secured: Secured) -> None:
    with (
        secured.cluster.client(secured.tokens["ada"]) as ada,
        secured.cluster.client(secured.tokens["root"]) as root,
        Sender(secured.cluster.url, secured.tokens["root"]) as sender,
        Sender(secured.cluster.url, secured.tokens["eve"]) as eve,
        ada.begin() as of_ada,
        root.begin() as of_root,
    ):
        shown = sender.get("/transactions?owner=ada").text
        assert f"txn-{of_ada.id}" in shown and f"txn-{of_root.id}" not in shown
        assert eve.get("/transactions?owner=ada").status_code == 403
        assert 'name="owner"' not in eve.get("/transactions").text


def test_what_cannot_be_asked_for_is_refused_in_words(sender: Sender) -> None:
    for query in ("state=lost", "older=ever", "page=nonsense", "text=" + "x" * 300):
        answer = sender.get(f"/transactions?{query}")
        assert answer.status_code == 422, query
        assert query.partition("=")[0] in answer.text.partition('role="alert"')[2], query


def test_the_list_follows_what_begins(visitor: Visitor, cluster: ConsoleCluster) -> None:
    page = visitor.open("/transactions?text=a-new-one")
    expect(page.get_by_text("No transaction matches.")).to_be_visible()
    with cluster.client() as client:
        txn = client.begin(properties={"name": "a-new-one"})
        expect(page.locator(f"#txn-{txn.id}").get_by_text("open", exact=True)).to_be_visible()
        txn.commit()
        expect(page.locator(f"#txn-{txn.id}").get_by_text("committed")).to_be_visible()


def test_one_is_begun_by_hand_for_messages_of_ones_own(
    visitor: Visitor, cluster: ConsoleCluster, client: metatxn.Client
) -> None:
    client.create_topic("by-hand", exist_ok=True)
    visitor.expected = "status of 422"
    page = visitor.open("/transactions")
    page.get_by_text("Begin a transaction by hand").click()
    page.get_by_label("Is aborted after").fill("soon")
    page.get_by_label("Properties").fill("job=correction")
    page.get_by_role("button", name="Begin").click()
    expect(page.get_by_role("alert")).to_contain_text("Is aborted after: 'soon' is not a duration")
    page.route("**/console/transactions", lambda route: route.abort() if route.request.method == "POST" else None)
    visitor.expected = "status of 422|net::ERR_"
    page.get_by_role("button", name="Begin").click()
    expect(page.get_by_role("alert")).to_contain_text("Whether it has done this is not known")
    page.unroute("**/console/transactions")
    page.get_by_label("Is aborted after").fill("1h")
    page.get_by_role("button", name="Begin").click()
    expect(page.get_by_text("Messages can be produced inside it")).to_be_visible()
    expect(page.locator(".facts")).to_contain_text("correction")
    txn_id = page.url.rpartition("/")[2]
    header = client.attach(txn_id).refresh()
    assert header.state == "OPEN" and (header.deadline_ms or 0) - (header.created_ms or 0) >= 3_600_000
    assert cluster.recorded[-1] == ("console.transaction.begin", {"txn_id": txn_id}, 200)
    page = visitor.open("/topics/by-hand/messages?show=all")
    page.get_by_text("Produce a message").click()
    page.get_by_label("Value", exact=True).fill("1")
    page.get_by_label("Transaction").fill(short_id(txn_id))
    page.get_by_role("button", name="Produce").click()
    expect(page.locator("tbody tr")).to_contain_text("undecided")
    client.attach(txn_id).commit()
    expect(page.locator("tbody tr")).to_contain_text("readable")


def test_one_transaction_is_told_as_a_story(visitor: Visitor, cluster: ConsoleCluster) -> None:
    """While it is open, and as it ends."""
    with cluster.client() as client:
        txn = client.begin(timeout_ms=600_000)
        with client.producer("orders") as producer:
            producer.send({"id": 1}, key="1", txn=txn)
        page = visitor.open(f"/transactions/{short_id(txn.id)}")
        story = page.get_by_role("list").filter(has_text="Begun")
        expect(story).to_contain_text(re.compile("Begun.*Writes orders.*1 message in 1 entry.*Expires", re.DOTALL))
        work = page.get_by_role("region", name="Work by segment")
        expect(work).to_contain_text("waits for the decision")
        txn.commit()
        expect(story).to_contain_text(re.compile("Wrote.*Committed.*Visible orders.*ms after the decision", re.DOTALL))
        expect(work).not_to_contain_text("waits for the decision")
    expect(page.get_by_text("committed", exact=True)).to_be_visible()


def test_a_page_says_that_the_records_of_its_transaction_were_removed(
    visitor: Visitor, sender: Sender, cluster: ConsoleCluster, client: metatxn.Client
) -> None:
    """Anyone who has seen it keeps what was seen; anyone who comes later is told that this is no fault of the link."""
    txn = client.begin(timeout_ms=600_000)
    page = visitor.open(f"/transactions/{txn.id}")
    story = page.get_by_role("list").filter(has_text="Begun")
    expect(story).to_contain_text("Expires")
    txn.commit()
    expect(story).to_contain_text("Committed")  # so the page follows, and has seen it
    cluster.collect(txn.id)
    expect(story).to_contain_text(re.compile("Begun.*Committed.*Collected.*its records were removed", re.DOTALL))
    expect(page.get_by_role("region", name="Its records")).to_contain_text("What it decided stays decided.")
    assert page.get_by_role("alert").count() == 0
    later = sender.get(f"/transactions/{txn.id}")
    assert later.status_code == 404 and 'role="alert"' not in later.text
    assert "Nothing is remembered about this transaction." in later.text and "/console/access/audit" in later.text
    assert "Nothing is remembered" in sender.first_event(f"/console/transactions/{txn.id}")


def test_its_records_are_shown_as_they_stand_in_the_store(visitor: Visitor, life: Life) -> None:
    """What was opened stays open while the page follows."""
    page = visitor.open(f"/transactions/{life.open}")
    record = page.locator("details").first
    record.locator("summary").click()
    expect(record.locator("pre")).to_contain_text('"state": "OPEN"')
    expect(page.get_by_text(re.compile("Open for"))).to_be_visible()
    before = page.locator(".facts").inner_text()
    expect(page.locator(".facts")).not_to_have_text(before, use_inner_text=True)
    expect(record.locator("pre")).to_be_visible()
    expect(page.locator("details").nth(1).locator("summary")).to_contain_text(f"/txn-op/{life.open}/")


def test_the_command_that_shows_a_record_is_copied(
    visitor: Visitor, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AwayStore, "command_for", lambda _, key: f"etcdctl get '{key}'")
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = visitor.open(f"/transactions/{life.committed}")
    record = page.locator("details.record").first
    record.locator("summary").click()
    expect(record.locator(".command code")).to_have_text(f"etcdctl get '/txn/{life.committed}'")
    record.get_by_role("button", name="Copy").click()
    expect(record.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == f"etcdctl get '/txn/{life.committed}'"


def test_names_that_are_meant_to_do_harm_are_only_names(visitor: Visitor, life: Life) -> None:
    page = visitor.open(f"/transactions/{life.hostile}")
    expect(page.locator(".facts")).to_contain_text(HOSTILE)
    expect(page.locator(".facts")).to_contain_text(RIGHT_TO_LEFT)
    assert page.locator("main img, main script").count() == 0


def test_one_of_somebody_else_says_who_can_end_it(secured: Secured) -> None:
    with (
        secured.cluster.client(secured.tokens["root"]) as root,
        Sender(secured.cluster.url, secured.tokens["eve"]) as eve,
        root.begin() as txn,
    ):
        answer = eve.get(f"/transactions/{txn.id}")
        assert answer.status_code == 403 and "Only its owner and administrators see it." in answer.text
        assert f"<code>{txn.id}</code>" in answer.text


def test_an_unknown_transaction_is_said_to_be_unknown(sender: Sender) -> None:
    for txn_id, status, words in (("fffffff", 404, "or it never began"), ("not-an-id", 422, "txn_id")):
        answer = sender.get(f"/transactions/{txn_id}")
        assert (answer.status_code, words in answer.text.partition("<main")[2]) == (status, True)


# -- what hangs ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("later")
def test_what_hangs_is_named_with_its_cost(visitor: Visitor, life: Life) -> None:
    page = visitor.open("/hanging")
    first = page.locator(f"#txn-{life.open}")
    expect(first.get_by_text("readers wait").first).to_be_visible()
    expect(first).to_contain_text(re.compile("orders.*0000-7fff-0", re.DOTALL))
    expect(first).to_contain_text("1 subscription")
    expect(first).to_contain_text(re.compile(r"\d+ entries, [\d.]+ KiB"))
    expect(page.locator(f"#txn-{life.prepared}")).to_contain_text("behind an earlier one")
    visitor.open("/hanging?age=1h")
    expect(page.get_by_text("No transaction is hanging.")).to_be_visible()


def test_what_only_acknowledges_costs_something_and_what_does_nothing_is_left_out(
    sender: Sender, cluster: ConsoleCluster, client: metatxn.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest come first, over all pages."""
    monkeypatch.setattr(hanging, "EXAMINED_PER_PAGE", 2)
    monkeypatch.setattr(hanging, "PER_PAGE", 2)
    client.create_topic("acknowledged", exist_ok=True)
    client.create_subscription("acknowledged", "s")
    with client.producer("acknowledged") as producer:
        for number in range(3):
            producer.send(number).result()
    with client.consumer("acknowledged", "s") as consumer:
        txns = [client.begin(timeout_ms=70_000_000) for _ in range(5)]
        for txn in txns[1:4]:
            consumer.acknowledge(consumer.receive_many(1, timeout_s=30), txn)
        cluster.ahead_ms += 600_000
        cluster.count_open()
        try:
            for show, expected in (("all", txns), ("holding", txns[1:4])):
                rows = dict(_hanging_rows(sender, f"/hanging?show={show}"))
                assert [each for each in rows if each in {txn.id for txn in txns}] == [txn.id for txn in expected]
            assert "1 acknowledged message" in rows[txns[1].id] and "1 subscription" in rows[txns[1].id]
            assert "acknowledges 1 message on s" in rows[txns[1].id]
        finally:
            cluster.ahead_ms -= 600_000
            for txn in txns:
                txn.abort()


def _hanging_rows(sender: Sender, path: str) -> Iterator[tuple[str, str]]:
    """The rows of all pages, by transaction, as words."""
    while path:
        text = sender.get(path).text
        for txn_id, row in re.findall(r'<tr id="txn-([0-9a-f]{32})">(.*?)</tr>', text, re.DOTALL):
            yield txn_id, " ".join(re.sub(r"<[^>]+>", " ", row).split())
        following = re.search(r'href="/console([^"]+)">Next page', text)
        path = html.unescape(following[1]) if following else ""


def test_what_is_wrong_is_said_with_what_to_do_and_leads_to_it(
    sender: Sender, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    action = "Start it with `metatxn broker`."
    topic = f"public/default/{HOSTILE.replace('/', '_')}"
    segment = f"segment segment://{topic}/0000-ffff-0"
    wrong = [
        HealthProblem(f"broker {HOSTILE}", "does not answer", action),
        HealthProblem("cluster", "it is odd", action),
    ]
    monkeypatch.setattr(services, "service_problems", lambda _: wrong)
    monkeypatch.setattr(overview, "topic_problems", lambda *_: [HealthProblem(segment, "without a broker", action)])
    shown, unserved = sender.get("/").text, sender.get("/unserved").text
    assert f'href="/console/cluster#service-{quote(HOSTILE, safe="")}"' in shown and "It is odd." in shown
    assert f'href="/console/topics/{quote(topic, safe="")}"' in unserved
    for text in (shown, unserved):
        assert "<code>metatxn broker</code>" in text and "<img src=x" not in text and "<script>alert" not in text


@pytest.mark.usefixtures("later")
def test_the_first_page_says_what_is_stuck(visitor: Visitor, cluster: ConsoleCluster, life: Life) -> None:
    page = visitor.open()
    stuck = page.get_by_role("region", name="What is wrong now")
    expect(stuck.get_by_role("link", name=f"Transaction {short_id(life.open)}", exact=True)).to_be_visible()
    expect(stuck).to_contain_text("holds back readers of orders")
    cluster.count_open()
    tile = page.locator(".tile").filter(has_text="Open transactions").locator("dd")
    with cluster.client() as client:
        expect(tile).to_have_text(str(sum(1 for _ in client.transactions("OPEN"))))
    expect(page.locator(".tile").filter(has_text="Oldest open").get_by_role("link")).to_have_text(re.compile("1[0-9]m"))
    expect(page.get_by_role("img", name=re.compile("Messages per second, the last 15 minutes"))).to_be_visible()


_STUCK = re.compile(r'href="/console/transactions/([0-9a-f]{32})">(.*?)<p class="note">', re.DOTALL)


def stuck(sender: Sender) -> dict[str, str]:
    """What the first page says of each transaction that has been open for long, in its order."""
    return {txn_id: " ".join(text.split()) for txn_id, text in _STUCK.findall(sender.get("/").text)}


def test_what_holds_readers_back_comes_before_what_only_stays_open(
    sender: Sender, cluster: ConsoleCluster, client: metatxn.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many that are older have written nothing; and of those it is not said that they hold anything."""
    monkeypatch.setattr(overview, "MOST_EXAMINED", 1_000)
    client.create_topic("blocked", exist_ok=True)
    client.create_subscription("blocked", "s")
    with client.producer("blocked") as producer:
        producer.send("to be acknowledged").result()
    idle = [client.begin(timeout_ms=70_000_000) for _ in range(25)]
    blocking, acknowledging = client.begin(timeout_ms=75_000_000), client.begin(timeout_ms=75_000_000)
    with client.producer("blocked") as producer, client.consumer("blocked", "s") as consumer:
        producer.send("inside", txn=blocking).result()
        consumer.acknowledge(consumer.receive_many(1, timeout_s=30), acknowledging)
    cluster.ahead_ms += 600_000
    cluster.count_open()
    try:
        shown = stuck(sender)
        assert shown[blocking.id].endswith("and holds back readers of blocked.")
        assert shown[acknowledging.id].endswith("and holds messages that it has acknowledged on s.")
        monkeypatch.setattr(overview, "MOST_STUCK", 1_000)
        shown = stuck(sender)
        assert [*shown].index(blocking.id) < min([*shown].index(txn.id) for txn in idle)
        assert all("has written and acknowledged nothing" in shown[txn.id] for txn in idle)
    finally:
        cluster.ahead_ms -= 600_000
        for txn in (*idle, blocking, acknowledging):
            txn.abort()


def test_it_is_never_said_that_nothing_is_stuck_where_that_is_not_known(
    secured: Secured, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is no administrator sees its own, and that there are others."""
    with (
        secured.cluster.client(secured.tokens["root"]) as root,
        secured.cluster.client(secured.tokens["ada"]) as client,
        Sender(secured.cluster.url, secured.tokens["eve"]) as eve,
        Sender(secured.cluster.url, secured.tokens["ada"]) as ada,
        root.begin(timeout_ms=70_000_000) as theirs,
        client.begin(timeout_ms=70_000_000) as own,
    ):
        secured.cluster.ahead_ms += 600_000
        secured.cluster.count_open()
        try:
            assert "no transaction has been open" not in eve.get("/").text
            assert "none of your transactions has been open" in eve.get("/").text
            assert re.search(r"\d transactions are open in all", eve.get("/").text)
            shown = stuck(ada)
            assert theirs.id not in shown and "holds" not in shown[own.id]
        finally:
            secured.cluster.ahead_ms -= 600_000

    async def refused(_: object) -> None:
        raise metatxn.RateLimited("too many requests")

    monkeypatch.setattr(overview, "_hanging", refused)
    text = sender.get("/").text
    assert "is not known: too many requests" in text and "no transaction has been open" not in text

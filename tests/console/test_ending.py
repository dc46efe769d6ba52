"""Goal: an open transaction is ended from the console by anyone who may do so, by nobody else, and the audit log says
who.

Method: a browser for what a person sees, and forms that are sent without one for what nobody may do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

import pytest
from playwright.sync_api import expect

import metatxn
from metatxn.console.app import CHANGES, MAX_FIELDS
from metatxn.words import short_id
from tests.console.browser import Visitor
from tests.console.cluster import ConsoleCluster
from tests.console.conftest import Secured
from tests.console.forms import Sender
from tests.console.life import HOSTILE, begun
from tests.console.test_frame import sign_in


@pytest.fixture
def client(cluster: ConsoleCluster) -> Iterator[metatxn.Client]:
    with cluster.client() as client:
        client.create_topic("orders", segments=2, exist_ok=True)
        client.create_topic("ended", exist_ok=True)
        yield client
        for txn in client.transactions("OPEN"):  # other tests count what hangs
            if txn.txn_id is not None and (txn.properties or {}).get("left") == "open":
                client.attach(txn.txn_id).abort()


def left_open(client: metatxn.Client) -> str:
    txn = begun(client, topic="ended", properties={"left": "open"})
    txn.leave_open()
    return txn.id


def header_of(client: metatxn.Client, txn_id: str) -> metatxn.TransactionHeader:
    return client.attach(txn_id).refresh()


def test_one_is_aborted_with_a_reason(visitor: Visitor, cluster: ConsoleCluster, client: metatxn.Client) -> None:
    txn_id = left_open(client)
    page = visitor.open(f"/transactions/{short_id(txn_id)}")
    page.get_by_label("Reason").fill(HOSTILE)
    page.get_by_role("button", name="Abort").click()
    expect(page.get_by_text(f"Transaction {short_id(txn_id)} is aborted.")).to_be_visible()
    expect(page.locator(".facts")).to_contain_text(HOSTILE)
    expect(page.get_by_role("heading", name="End it")).to_have_count(0)
    assert header_of(client, txn_id).reason == HOSTILE
    assert cluster.recorded[-1] == ("console.transaction.abort", {"txn_id": txn_id}, 200)


def test_one_is_committed_by_somebody_who_knows_that_it_is_complete(
    visitor: Visitor, cluster: ConsoleCluster, client: metatxn.Client
) -> None:
    txn_id = left_open(client)
    page = visitor.open(f"/transactions/{txn_id}")
    page.get_by_text("Commit it instead").click()
    page.get_by_role("button", name="Commit").click()
    expect(page.locator(".ending")).to_be_visible()
    assert header_of(client, txn_id).state == "OPEN", "the browser asks for the box first"
    page.get_by_label("Everything that belongs to it is written").check()
    page.get_by_role("button", name="Commit").click()
    expect(page.get_by_text(f"Transaction {short_id(txn_id)} is committed.")).to_be_visible()
    assert cluster.recorded[-1] == ("console.transaction.commit", {"txn_id": txn_id}, 200)


def test_what_has_ended_meanwhile_is_not_offered_any_more(visitor: Visitor, client: metatxn.Client) -> None:
    txn_id = left_open(client)
    page = visitor.open(f"/transactions/{txn_id}")
    page.get_by_label("Reason").fill("typed before")
    expect(page.get_by_role("heading", name="End it")).to_be_visible()
    client.attach(txn_id).commit()
    expect(page.get_by_role("heading", name="End it")).to_be_hidden()


def test_many_that_hang_are_aborted_at_once(visitor: Visitor, cluster: ConsoleCluster, client: metatxn.Client) -> None:
    """What was chosen stays chosen while the page follows, and is the same row."""
    chosen = [left_open(client) for _ in range(2)]
    later = left_open(client)
    cluster.ahead_ms += 600_000
    try:
        page = visitor.open("/hanging")
        for txn_id in chosen:
            page.get_by_label(f"Choose {short_id(txn_id)}", exact=True).check()
        age = page.locator(f"#txn-{later} td.n").first
        before = age.inner_text()
        client.attach(later).commit()
        expect(page.locator(f"#txn-{later}")).to_have_count(0)
        expect(page.locator(f"#txn-{chosen[0]} td.n").first).not_to_have_text(before)
        assert [page.get_by_label(f"Choose {short_id(txn_id)}", exact=True).is_checked() for txn_id in chosen] == [
            True,
            True,
        ]
        page.get_by_label("Reason").fill("the job is gone")
        page.get_by_role("button", name="Abort the chosen ones").click()
        expect(page.get_by_text("2 transactions are aborted.")).to_be_visible()
        assert [header_of(client, txn_id).reason for txn_id in chosen] == ["the job is gone"] * 2
        assert {about["txn_id"] for _, about, _ in cluster.recorded[-2:]} == set(chosen)
    finally:
        cluster.ahead_ms -= 600_000


def test_one_that_hangs_is_aborted_with_one_click(
    visitor: Visitor, cluster: ConsoleCluster, client: metatxn.Client
) -> None:
    txn_id = left_open(client)
    cluster.ahead_ms += 600_000
    try:
        page = visitor.open("/hanging?age=1m")
        page.get_by_role("button", name=f"Abort {short_id(txn_id)}", exact=True).click()
        expect(page.get_by_text(f"Transaction {short_id(txn_id)} is aborted.")).to_be_visible()
        assert page.url.endswith("/console/hanging?age=1m"), "the list from which it was asked for"
        assert header_of(client, txn_id).reason == "aborted in the console"
    finally:
        cluster.ahead_ms -= 600_000


# -- what cannot be done -------------------------------------------------------------------------------------------


def test_what_cannot_be_done_is_said(sender: Sender, cluster: ConsoleCluster, client: metatxn.Client) -> None:
    done = left_open(client)
    client.attach(done).commit()
    open_ = left_open(client)
    for path, fields, status, words in (
        (f"/transactions/{open_}/commit", {}, 422, "confirm that everything is written"),
        (f"/transactions/{done}/abort", {}, 409, "COMMITTED"),
        (f"/transactions/{'f' * 32}/abort", {}, 404, "unknown"),
        ("/transactions/not-an-id/abort", {}, 422, "txn_id"),
        (f"/transactions/{open_}/abort", {"reason": "x" * 2_000}, 422, "reason"),
        ("/hanging/abort", {}, 422, "choose between 1 and 100"),
        ("/hanging/abort", {"txn": [f"{number:032x}" for number in range(101)]}, 422, "choose between 1 and 100"),
        ("/hanging/abort", {"txn": ["f" * 32, done]}, 404, "unknown"),
        ("/hanging/abort", {"txn": ["x"] * MAX_FIELDS}, 422, "fields"),
    ):
        answer = sender.post(path, **fields)
        assert (answer.status_code, words in answer.text) == (status, True), (path, answer.text)
        assert 'href="/console/">Try again' in answer.text, "this browser does not say on which page the form was"
    assert header_of(client, open_).state == "OPEN"
    assert {status for verb, _, status in cluster.recorded[-3:]} <= {404, 409, 422}, "failures are recorded, too"


def test_one_that_cannot_be_aborted_keeps_no_other_from_it(
    visitor: Visitor, sender: Sender, client: metatxn.Client
) -> None:
    done, open_ = left_open(client), left_open(client)
    client.attach(done).commit()
    answer = sender.post("/hanging/abort", txn=[done, open_, open_])
    assert answer.status_code == 303 and header_of(client, open_).state == "ABORTED"
    assert "1%20transaction%20is%20aborted.%201%20could%20not%20be" in answer.headers["set-cookie"]


def filled(path: str, txn_id: str) -> str:
    return path.format(txn_id=txn_id, topic="orders", subscription="billing", key="loader", broker_id="b1")


def test_no_change_is_made_for_another_site(sender: Sender, cluster: ConsoleCluster, client: metatxn.Client) -> None:
    txn_id, layout = left_open(client), client.topic("orders")
    before = len(cluster.recorded)
    good = sender.form_token
    for path, form_token in product(CHANGES, ("", "0" * 64, good[:-1])):
        sender.form_token = form_token
        answer = sender.post(filled(path, txn_id), txn=txn_id, complete="yes", name="orders")
        assert answer.status_code == 403 and "Nothing was changed" in answer.text, path
    assert header_of(client, txn_id).state == "OPEN" and len(cluster.recorded) == before
    assert client.topic("orders") == layout


def test_a_console_that_is_read_only_changes_nothing(
    sender: Sender, cluster: ConsoleCluster, client: metatxn.Client
) -> None:
    txn_id, layout = left_open(client), client.topic("orders")
    cluster.site.read_only = True
    try:
        for path in CHANGES:
            answer = sender.post(filled(path, txn_id), txn=txn_id, complete="yes", name="orders")
            assert answer.status_code == 403 and "read-only" in answer.text, path
        shown = sender.get(f"/transactions/{txn_id}").text + sender.get("/hanging").text
    finally:
        cluster.site.read_only = False
    assert header_of(client, txn_id).state == "OPEN" and client.topic("orders") == layout
    assert not re.search("/abort|/commit", shown), "it is not offered, either"


# -- with tokens ---------------------------------------------------------------------------------------------------


@pytest.fixture
def prepared_by_ada(secured: Secured) -> str:
    with secured.cluster.client(secured.tokens["ada"]) as ada:
        txn = ada.begin(timeout_ms=80_000_000)
        txn.prepare(86_400_000)
        txn.leave_open()
        return txn.id


def test_somebody_elses_is_refused(secured: Secured) -> None:
    with secured.cluster.client(secured.tokens["root"]) as root:
        txn = root.begin()
        with Sender(secured.cluster.url, secured.tokens["ada"]) as ada:
            assert ada.post(f"/transactions/{txn.id}/abort").status_code == 403
            assert secured.cluster.recorded[-1] == ("console.transaction.abort", {"txn_id": txn.id}, 403)
            assert ada.post("/hanging/abort", txn=txn.id).status_code == 403
            assert ada.post(f"/transactions/{txn.id}/commit", complete="yes").status_code == 403
        with Sender(secured.cluster.url) as nobody:
            before = len(secured.cluster.recorded)
            answer = nobody.post(f"/transactions/{txn.id}/abort")
            assert answer.status_code == 303 and "/sign-in" in answer.headers["location"]
            assert len(secured.cluster.recorded) == before
        assert txn.refresh().state == "OPEN"
        txn.abort()


def test_a_prepared_one_of_somebody_else_is_aborted_by_force(
    stranger: Visitor, secured: Secured, prepared_by_ada: str
) -> None:
    path = f"/transactions/{prepared_by_ada}"
    with Sender(secured.cluster.url, secured.tokens["root"]) as root:
        assert root.post(f"{path}/abort").status_code == 403
    page = sign_in(stranger, secured.tokens["root"], path)
    page.get_by_label("It is prepared: the other half of its commit may be done elsewhere.").check()
    page.get_by_role("button", name="Abort").click()
    expect(page.get_by_text(f"Transaction {short_id(prepared_by_ada)} is aborted.")).to_be_visible()
    with secured.cluster.client(secured.tokens["ada"]) as client:
        header = header_of(client, prepared_by_ada)
        assert (header.reason, header.ended_by) == ("aborted in the console", "root")
    expect(page.get_by_text("by root: aborted in the console")).to_be_visible()


def test_its_owner_needs_no_force(secured: Secured, prepared_by_ada: str) -> None:
    path = f"/transactions/{prepared_by_ada}"
    with Sender(secured.cluster.url, secured.tokens["ada"]) as ada:
        assert 'name="force"' not in ada.get(path).text
        assert ada.post(f"{path}/abort", reason="no need").status_code == 303

"""Goal: what holds on every page of the console: who may see it, what a form may do, how it looks and reads, and that
it follows what changes.

Method: a real browser at a coordinator without tokens and at one with them. Every test also fails for an error in the
browser's console and for a request to elsewhere (`tests/console/browser.py`).
"""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import Page, Route, expect
from starlette.requests import Request
from starlette.routing import compile_path

import metatxn
from benchmarks import console as console_benchmark
from metatxn.console import live, services, visit
from metatxn.console.app import OPEN_PAGES, PAGES
from metatxn.console.sessions import is_secure
from metatxn.service import known_cluster
from tests.console.browser import DESKTOP, GONE, PHONE, Visitor, dark_violations, is_too_wide, violations
from tests.console.cluster import ConsoleCluster
from tests.console.conftest import Secured
from tests.console.forms import Sender
from tests.console.life import Life

EVERY_PAGE = (
    *("/", "/sign-in", "/no-such-page", "/transactions", "/transactions?text=nothing", "/transactions?state=lost"),
    *("/transactions/{open}", "/transactions/{hostile}", "/hanging", "/hanging?age=1d"),
    *("/topics", "/topics?text=nothing", "/topics/orders", "/topics/nothing", "/topics/orders/messages?show=all"),
    *(
        "/subscriptions",
        "/subscriptions?text=nothing",
        "/topics/orders/subscriptions",
        "/topics/orders/subscriptions/billing",
    ),
    *("/topics/orders/subscriptions/billing/seek?to=earliest", "/keys", "/keys/loader"),
    *("/cluster", "/cluster/brokers/{broker}", "/cluster/store?prefix=/txn/", "/cluster/store/check"),
    *("/access", "/access/tokens", "/access/audit"),
)
NO_PAGES = {
    *("/unserved", "/topic-count", "/topic-sizes", "/topics/{topic}/messages/download"),
    "/topics/{topic}/subscriptions/{subscription}/seek/effect",
}
"""What is a part of another page, or a file."""


def sign_in(visitor: Visitor, token: str, path: str = "/") -> Page:
    page = visitor.open(path)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    return page


def test_every_page_can_be_used_by_everybody(visitor: Visitor, life: Life, client: metatxn.Client) -> None:
    """axe finds nothing in either theme, and nobody has to scroll sideways on a phone."""
    assert {_route_of(path) for path in EVERY_PAGE} >= {*PAGES, *OPEN_PAGES} - NO_PAGES
    visitor.expected = "status of 4(04|22)"
    (broker,) = client.cluster().brokers
    for path in EVERY_PAGE:
        page = visitor.open(path.format(open=life.open, hostile=life.hostile, broker=broker.id))
        expect(page.locator("[hx-get]")).to_have_count(0)  # everything is there
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        assert violations(page) == dark_violations(page) == [], path
        for crumbs in page.locator(".crumbs").all():
            assert crumbs.inner_text() == " / ".join(crumbs.get_by_role("link").all_inner_texts()), path
        page.set_viewport_size(PHONE)
        assert not is_too_wide(page), path
        page.set_viewport_size(DESKTOP)


def test_every_page_is_measured() -> None:
    assert {_route_of(path) for path in console_benchmark.PAGES.values()} >= {*PAGES, *OPEN_PAGES}


def _route_of(path: str) -> str:
    """The path of a page as the console has it, of one that a test asks for."""
    routes = (route for route in (*PAGES, *OPEN_PAGES) if compile_path(route)[0].match(path.partition("?")[0]))
    return next(routes, "")


def test_a_page_that_cannot_be_used_is_noticed(visitor: Visitor) -> None:
    page = visitor.open()
    page.evaluate("document.querySelector('h1').innerHTML = '<img src=\"/console/static/mark.svg\">'")
    page.evaluate("document.querySelector('main').style.width = '2000px'")
    page.evaluate("document.querySelector('main').style.color = '#444'")
    found = " ".join(violations(page))
    assert "alternative text" in found and "color-contrast" not in found
    assert "color-contrast" in " ".join(dark_violations(page))
    assert is_too_wide(page)


def test_the_page_follows_what_changes(visitor: Visitor, cluster: ConsoleCluster) -> None:
    page = visitor.open()
    services = page.get_by_role("region", name="Services")
    expect(services.get_by_text(cluster.url, exact=True)).to_be_visible()
    expect(services.get_by_text(cluster.broker_url, exact=True)).to_be_visible()
    before = page.get_by_text("The metadata store is memory").inner_text()
    with cluster.client() as client:
        client.begin()
    expect(page.get_by_text("The metadata store is memory")).not_to_have_text(before)


def test_a_page_says_that_its_coordinator_is_gone_and_follows_the_next_one(
    visitor: Visitor, cluster: ConsoleCluster
) -> None:
    visitor.expected = GONE
    page = visitor.open()
    lost = page.get_by_text("The coordinator does not answer")
    expect(lost).to_be_hidden()
    cluster.stop_coordinator()
    expect(lost).to_be_visible()
    cluster.start_coordinator()
    expect(lost).to_be_hidden()
    expect(page.get_by_role("region", name="Services").get_by_text(cluster.url, exact=True)).to_be_visible()


@pytest.mark.parametrize("status", [None, 503])
def test_a_page_whose_first_events_do_not_come_says_so_and_asks_again(
    visitor: Visitor, cluster: ConsoleCluster, status: int | None
) -> None:
    """The coordinator was there for the page, and then not, or it had too much to do."""
    visitor.expected = f"{GONE}|htmx:error"
    failing = True

    def asked(route: Route) -> None:
        if not failing or "text/event-stream" not in route.request.headers["accept"]:
            route.continue_()
        elif status is None:
            route.abort()
        else:
            route.fulfill(status=status, content_type="application/problem+json", body="{}")

    visitor.page.route("**/*", asked)
    page = visitor.open(f"/transactions?text=after-{status}")
    lost = page.get_by_text("The coordinator does not answer")
    expect(lost).to_be_visible()
    expect(page.get_by_text("No transaction matches.")).to_be_visible()
    failing = False
    expect(lost).to_be_hidden()
    with cluster.client() as client:
        txn = client.begin(properties={"name": f"after-{status}"})
        expect(page.locator(f"#txn-{txn.id}")).to_be_visible()


def test_a_coordinator_that_is_frozen_is_noticed_while_its_connection_is_open(
    visitor: Visitor, cluster: ConsoleCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within half a minute on the clock of the page; and that nothing changes is no reason for it."""
    monkeypatch.setattr(live, "STILL_EVERY_S", 0.5)
    visitor.expected = GONE
    visitor.page.clock.install()
    page = visitor.open("/transactions?text=nothing-changes-here")
    lost = page.get_by_text("The coordinator does not answer")
    for _ in range(3):
        page.evaluate("new Promise(heard => document.addEventListener('still-here', heard, { once: true }))")
        page.clock.fast_forward(15_000)
        expect(lost).to_be_hidden()
    with cluster.frozen():
        page.clock.fast_forward(29_000)
        expect(lost).to_be_visible()
    page.clock.fast_forward(15_000)
    expect(lost).to_be_hidden()
    with cluster.client() as client:
        txn = client.begin(properties={"name": "nothing-changes-here"})
        expect(page.locator(f"#txn-{txn.id}")).to_be_visible()


def test_a_store_that_is_away_is_named_and_no_service_is_blamed(
    visitor: Visitor, cluster: ConsoleCluster, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an open page and on one that is opened then; and it follows once the store is back."""
    for seconds in ("WITHIN_SECONDS", "AWAY_WITHIN_SECONDS"):
        monkeypatch.setattr(known_cluster, seconds, 0.2)
    monkeypatch.setattr(visit, "READ_TIMEOUT_S", 1.0)
    for module in (visit, services):
        monkeypatch.setattr(module, "STATUS_TIMEOUT_S", 4.0)
    page = visitor.open()
    wrong = page.get_by_role("region", name="What is wrong now")
    with cluster.store_away():
        expect(wrong).to_contain_text(re.compile("The metadata store: no answer.*go on by themselves", re.DOTALL))
        expect(page.get_by_role("row", name=re.compile("not ready"))).to_have_count(2)
        for path, status in (
            ("/", 200),
            ("/cluster", 200),
            ("/unserved", 200),
            ("/topics", 503),
            ("/transactions", 503),
        ):
            answer = sender.get(path)
            shown = answer.text.partition('id="lost-at"')[2] or answer.text
            assert (answer.status_code, "the metadata store: no answer" in shown.lower()) == (status, True), path
            assert "Check that the service runs" not in shown and "did not answer" not in shown, path
            assert "Start it, or check whether" not in shown and "Nothing" not in shown, path
        assert "metadata store: no answer" in sender.first_event("/console/topics").lower()
        assert "Start it, or check whether" not in wrong.inner_text()
    expect(wrong).not_to_contain_text("no answer")
    expect(page.get_by_text("The metadata store is memory")).to_be_visible()


def test_one_page_asks_why_the_store_is_away_and_the_next_ones_know_it(
    cluster: ConsoleCluster, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not wait as long for it either, until it may be back."""
    for seconds in ("WITHIN_SECONDS", "AWAY_WITHIN_SECONDS"):
        monkeypatch.setattr(known_cluster, seconds, 0.2)
    monkeypatch.setattr(visit, "READ_TIMEOUT_S", 1.0)
    monkeypatch.setattr(visit, "STATUS_TIMEOUT_S", 4.0)
    asked: list[float] = []
    waited: list[float] = []
    client_with = visit.Visit.client_with

    def noted(self: visit.Visit, timeout_s: float) -> metatxn.AsyncClient:
        (asked if timeout_s == visit.STATUS_TIMEOUT_S else waited).append(timeout_s)
        return client_with(self, timeout_s)

    monkeypatch.setattr(visit.Visit, "client_with", noted)
    monkeypatch.setattr(visit, "AWAY_TIMEOUT_S", 0.5)
    monkeypatch.setattr(visit, "AWAY_FOR_S", 600.0)
    with cluster.store_away():
        for _ in range(3):
            answer = sender.get("/topics")
            assert answer.status_code == 503 and "the metadata store: no answer" in answer.text.lower()
        assert (asked, waited) == ([4.0], [1.0, 0.5, 0.5])
        monkeypatch.setattr(visit, "AWAY_FOR_S", 0.0)
        sender.get("/topics")
        assert (asked, waited) == ([4.0, 4.0], [1.0, 0.5, 0.5, 1.0])
    assert sender.get("/topics").status_code == 200


def test_colours_are_those_that_were_chosen(visitor: Visitor) -> None:
    page = visitor.open()
    expect(page.locator("html")).to_have_attribute("data-theme", "auto")
    for theme in ("light", "dark", "auto"):
        page.get_by_role("button", name=re.compile("auto|light|dark", re.IGNORECASE)).click()
        expect(page.locator("html")).to_have_attribute("data-theme", theme)


# -- who may see it ------------------------------------------------------------------------------------------------


def test_with_tokens_a_page_is_shown_after_signing_in(stranger: Visitor, secured: Secured) -> None:
    page = sign_in(stranger, secured.tokens["root"], "/?of=interest")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert page.url == f"{secured.cluster.url}/console/?of=interest", "the page that was asked for"
    (cookie,) = [each for each in stranger.context.cookies() if each["name"].startswith("metatxn-console-")]
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/console")
    assert secured.tokens["root"] not in page.content() and page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    stranger.open()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_part_of_a_page_never_shows_the_page_on_which_to_sign_in(stranger: Visitor, secured: Secured) -> None:
    """The token is not accepted any more when a part asks for its content: the whole page is asked for again."""

    def refused(route: Route) -> None:
        stranger.context.clear_cookies()
        route.fulfill(status=303, headers={"location": "/console/sign-in"})

    stranger.context.route("**/console/unserved", refused)
    page = sign_in(stranger, secured.tokens["root"])
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_role("heading", name="Overview")).not_to_be_visible()


def test_cookies_are_for_tls_alone_where_the_browser_has_come_over_tls(cluster: ConsoleCluster) -> None:
    """TLS may end at a proxy, which says so. Without TLS a browser would not send such a cookie back."""
    for headers, secure in (
        ({}, False),
        ({"x-forwarded-proto": "http"}, False),
        ({"x-forwarded-proto": "https"}, True),
    ):
        for path in ("/sign-in", "/topics"):
            answer = httpx.get(f"{cluster.url}/console{path}", headers=headers)
            assert ("Secure" in answer.headers["set-cookie"]) == secure, (path, headers)
    scope = {"type": "http", "scheme": "https", "server": ("host", 443), "path": "/", "headers": []}
    assert is_secure(Request(scope)) and not is_secure(Request({**scope, "scheme": "http"}))


UNKNOWN = "mtx_0000000000000000_" + "0" * 64


def test_a_wrong_token_is_refused_in_words(stranger: Visitor) -> None:
    stranger.expected = "status of 401"
    for wrong in (UNKNOWN, "<script>alert(1)</script>", "x" * 4_000, "päss"):
        page = sign_in(stranger, wrong)
        expect(page.get_by_role("alert")).to_be_visible()
        assert wrong not in page.content()
    assert violations(page) == []


def test_a_link_on_another_site_leads_to_the_page(stranger: Visitor, secured: Secured) -> None:
    """The browser does not send the cookie with such a request, and with the next one it does."""
    expect(sign_in(stranger, secured.tokens["ada"]).get_by_role("button", name="Sign out")).to_be_visible()
    elsewhere = secured.cluster.url.replace("127.0.0.1", "localhost")
    page = stranger.new_page()
    page.goto(f"{elsewhere}/console/sign-in")
    page.evaluate("url => { document.body.innerHTML = '<a href=\"' + url + '\">here</a>' }", f"{stranger.url}/console/")
    page.get_by_text("here").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    stranger.troubles = [trouble for trouble in stranger.troubles if "localhost" not in trouble]


# -- what a form may do --------------------------------------------------------------------------------------------


def test_what_another_site_sends_changes_nothing(visitor: Visitor, cluster: ConsoleCluster) -> None:
    page = visitor.open()
    form_token = page.locator("input[name=form_token]").first.get_attribute("value")
    cookies = {each["name"]: each["value"] for each in visitor.context.cookies()}
    url = f"{cluster.url}/console/theme"
    here = {"sec-fetch-site": "same-origin"}
    good = {"form_token": form_token, "theme": "dark"}
    with httpx.Client(cookies=cookies) as http:
        for headers, sent in (
            (here, {"theme": "dark"}),
            (here, good | {"form_token": "0" * 64}),
            ({"sec-fetch-site": "cross-site"}, good),
            ({"sec-fetch-site": "same-site"}, good),
            ({"origin": "http://evil.example"}, good),
            ({}, good),
        ):
            refused = http.post(url, data=sent, headers=headers)
            assert (refused.status_code, "set-cookie" in refused.headers) == (403, False), headers
            assert "Nothing was changed" in refused.text
        for headers in (here, {"origin": cluster.url}):
            assert http.post(url, data=good, headers=headers).status_code == 303
    with httpx.Client() as http:  # another browser, or one that keeps its cookie from another site
        for headers in (here, {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}):
            refused = http.post(url, data=good, headers=headers)
            assert (refused.status_code, "set-cookie" in refused.headers) == (403, False), "nobody is signed out"

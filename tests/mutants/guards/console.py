"""The console: what no other site may do through the browser of somebody who is signed in."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_APP = "metatxn/console/app.py"
_FRAME = "tests/console/test_frame.py"
_ENDING = "tests/console/test_ending.py"

_SEEKING = "tests/participants/subscription/test_seek.py"

CONSOLE = (
    Mutant(
        "fence-whoever-holds-it",
        "a holder is fenced only at the epoch that was on the page",
        "coordinator/transaction_keys.py",
        "return await self.connect(key, ConnectRequest(epoch=epoch, owner=owner))",
        "return await self.connect(key, ConnectRequest(epoch=-1, owner=owner))",
        tests=(
            "tests/coordinator/test_transaction_keys.py::test_a_holder_that_is_fenced_ends_and_the_next_one_goes_on",
        ),
    ),
    Mutant(
        "preview-forgets-what-is-acknowledged",
        "a preview counts as delivered again what is acknowledged, and nothing else",
        "participants/subscription/dispatch.py",
        "return Moved(place, messages, messages - left, skipped)",
        "return Moved(place, messages, messages, skipped)",
        tests=(f"{_SEEKING}::test_a_preview_tells_what_would_be_delivered_again_and_what_never",),
    ),
    Mutant(
        "preview-forgets-what-has-passed",
        "a preview of a revision counts as passed what a snapshot shows, also behind what it does not",
        "participants/subscription/dispatch.py",
        "Cursor(begin, [(begin, to.acked)])",
        "Cursor(begin)",
        tests=(
            "tests/participants/subscription/test_seek_to_revision.py"
            "::test_a_preview_counts_what_a_snapshot_shows_as_passed_wherever_it_lies",
        ),
    ),
    Mutant(
        "console-asks-for-the-cluster-without-a-store",
        "while the metadata store is away, the console names it, and blames no service",
        "metatxn/console/services.py",
        "await client.cluster(patient=False) if own.store is not None else None",
        "await client.cluster(patient=False)",
        tests=(f"{_FRAME}::test_a_store_that_is_away_is_named_and_no_service_is_blamed",),
    ),
    Mutant(
        "every-page-waits-for-a-store-that-is-away",
        "once a page has found that the metadata store is away, the next ones say so at once",
        "metatxn/console/visit.py",
        "if (known := self.site.away(AWAY_FOR_S)) is not None:",
        "if (known := self.site.away(0)) is not None:",
        tests=(f"{_FRAME}::test_one_page_asks_why_the_store_is_away_and_the_next_ones_know_it",),
    ),
    Mutant(
        "cookie-without-tls",
        "a cookie that was set over TLS is never sent without it",
        "metatxn/console/sessions.py",
        "secure=is_secure(request)",
        "secure=False",
        tests=(f"{_FRAME}::test_cookies_are_for_tls_alone_where_the_browser_has_come_over_tls",),
    ),
    Mutant(
        "form-from-anywhere",
        "a change is made only if a page of this session has asked for it",
        _APP,
        'not comes_from_here(request) or not visit.session.sent(form.get("form_token", ""))',
        "not comes_from_here(request)",
        tests=(f"{_FRAME}::test_what_another_site_sends_changes_nothing",),
    ),
    Mutant(
        "origin-not-compared",
        "a change is made only if the browser says that a page of this origin has asked for it",
        _APP,
        'not comes_from_here(request) or not visit.session.sent(form.get("form_token", ""))',
        'not visit.session.sent(form.get("form_token", ""))',
        tests=(f"{_FRAME}::test_what_another_site_sends_changes_nothing",),
    ),
    Mutant(
        "another-site-ends-the-session",
        "a request that another site has led to gets no new session, in place of one that the browser keeps back",
        "metatxn/console/visit.py",
        'found is None and request.method == "GET" and not comes_from_elsewhere(request)',
        "found is None",
        tests=(
            f"{_FRAME}::test_a_link_on_another_site_leads_to_the_page",
            f"{_FRAME}::test_what_another_site_sends_changes_nothing",
        ),
    ),
    Mutant(
        "sent-elsewhere-after-signing-in",
        "signing in leads to a page of the console and to nowhere else",
        "metatxn/console/sessions.py",
        "not parts.scheme and not parts.netloc and",
        "not parts.scheme and",
        tests=("tests/console/test_console.py::test_nobody_is_sent_elsewhere",),
    ),
    Mutant(
        "read-only-console-changes",
        "a read-only console changes nothing, also if a form is sent to it",
        _APP,
        "            if self._site.read_only:\n",
        "            if False:\n",
        tests=(f"{_ENDING}::test_a_console_that_is_read_only_changes_nothing",),
    ),
    Mutant(
        "offered-to-everybody",
        "an abort by force is asked for only where the transaction of somebody else is prepared",
        "metatxn/console/pages/ending.py",
        "txn.prepared is True and caller is not None and txn.owner not in (None, caller)",
        "txn.prepared is True",
        tests=(f"{_ENDING}::test_its_owner_needs_no_force",),
    ),
    Mutant(
        "failures-of-changes-count-as-done",
        "the line of a change in the audit log says what became of it",
        "metatxn/console/visit.py",
        "            status = error.status if error.definite else metatxn.OutcomeUnknown.status\n",
        "            status = 200\n",
        tests=(f"{_ENDING}::test_somebody_elses_is_refused",),
    ),
    Mutant(
        "undecided-is-skipped",
        "an entry behind the horizon is never said to be skipped",
        "metatxn/stored/entries.py",
        "frame.position <= horizon",
        "frame.position",
        tests=("tests/console/test_messages.py::test_an_entry_is_never_called_skipped_before_it_is",),
    ),
    Mutant(
        "pages-keep-a-coordinator-from-stopping",
        "the streams of open pages end when the coordinator is stopped",
        _APP,
        "        self._site.closing.set()\n",
        "",
        tests=("tests/console/test_console.py::test_a_coordinator_stops_although_somebody_watches",),
    ),
)

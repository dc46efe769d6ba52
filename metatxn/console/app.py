"""The console: pages that show a cluster and change it, for people with a browser.

It is a client like any other. All that it knows about a cluster comes from the public REST API of the services, with
the token of its caller; nothing here reads the store or calls into a service.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl, quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

import metatxn
from metatxn.console import signing_in
from metatxn.console.live import events, is_live
from metatxn.console.pages import (
    ending,
    hanging,
    keys,
    layout,
    messages,
    overview,
    seeking,
    subscriptions,
    topics,
    transactions,
)
from metatxn.console.pages.access import access, audit_lines, token_list
from metatxn.console.pages.beginning import begin_transaction
from metatxn.console.pages.cluster import broker_segments, cluster, drain_broker, undrain_broker
from metatxn.console.pages.producing import produce_message
from metatxn.console.pages.store import check_store, store_records
from metatxn.console.sessions import PATH, comes_from_elsewhere, comes_from_here
from metatxn.console.site import Recorder, Site
from metatxn.console.visit import MadeChange, SentForm, Visit
from metatxn.transport.pool import HttpTransport

PageHandler = Callable[[Visit], Awaitable[Response]]
FormHandler = Callable[[Visit, SentForm], Awaitable[Response]]
ChangeHandler = Callable[[Visit, SentForm], Awaitable[MadeChange]]

PAGES: dict[str, PageHandler] = {
    "/": overview.overview,
    "/unserved": overview.unserved,
    "/transactions": transactions.transactions,
    "/transactions/{txn_id}": transactions.transaction,
    "/hanging": hanging.hanging,
    "/cluster": cluster,
    "/cluster/brokers/{broker_id}": broker_segments,
    "/cluster/store": store_records,
    "/cluster/store/check": check_store,
    "/access": access,
    "/access/tokens": token_list,
    "/access/audit": audit_lines,
    "/keys": keys.keys,
    "/keys/{key}": keys.one_key,
    "/subscriptions": subscriptions.all_subscriptions,
    "/topics": topics.topics,
    "/topic-count": topics.topic_count,
    "/topic-sizes": topics.topic_sizes,
    "/topics/{topic}": topics.one_topic,
    "/topics/{topic}/messages": messages.messages,
    "/topics/{topic}/messages/download": messages.download_messages,
    "/topics/{topic}/subscriptions": subscriptions.topic_subscriptions,
    "/topics/{topic}/subscriptions/{subscription}": subscriptions.one_subscription,
    "/topics/{topic}/subscriptions/{subscription}/seek": seeking.preview,
    "/topics/{topic}/subscriptions/{subscription}/seek/effect": seeking.effect,
}
"""The pages, by path. Only callers that the services know get there."""
OPEN_PAGES: dict[str, PageHandler] = {"/sign-in": signing_in.form}
OPEN_CHANGES: dict[str, FormHandler] = {
    "/sign-in": signing_in.sign_in,
    "/sign-out": signing_in.sign_out,
    "/theme": signing_in.choose_theme,
}
"""The actions that change only the reader's own session."""
CHANGES: dict[str, ChangeHandler] = {
    "/transactions": begin_transaction,
    "/transactions/{txn_id}/commit": ending.commit_transaction,
    "/transactions/{txn_id}/abort": ending.abort_transaction,
    "/hanging/abort": ending.abort_chosen,
    "/cluster/brokers/{broker_id}/drain": drain_broker,
    "/cluster/brokers/{broker_id}/undrain": undrain_broker,
    "/keys/{key}/fence": keys.fence,
    "/topics": layout.create_topic,
    "/topics/{topic}/messages": produce_message,
    "/topics/{topic}/delete": layout.delete_topic,
    "/topics/{topic}/policy": layout.change_policy,
    "/topics/{topic}/split": layout.split_segment,
    "/topics/{topic}/merge": layout.merge_segments,
    "/topics/{topic}/seal": layout.seal_segment,
    "/topics/{topic}/trim": layout.trim_segment,
    "/topics/{topic}/subscriptions/{subscription}/seek": seeking.seek,
    "/topics/{topic}/subscriptions/{subscription}/redrive": seeking.redrive_letters,
}
"""The actions that change the cluster, with the rights of the caller."""

_HEADERS = {
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; base-uri 'none'; connect-src 'self'; font-src 'self'; "
    b"form-action 'self'; frame-ancestors 'none'; img-src 'self'; script-src 'self'; style-src 'self'",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"same-origin",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
}
"""The headers of every answer, unless it has others."""
MAX_FIELDS = 1_100
"""The most fields of one form: more than there are rows on any page."""


def create_console(url: str, *, record: Recorder, read_only: bool = False) -> Console:
    """The console of the cluster that the service at `url` belongs to. `record` writes a line of the audit log for each
    change. With `read_only` nothing can be changed."""
    return Console(Site(url, HttpTransport(), record, read_only))


class Console:
    """An ASGI application, to be mounted at `/console`."""

    def __init__(self, site: Site) -> None:
        self._site = site
        handlers = {HTTPException: self._no_such_page, Exception: self._bug}
        self._app = Starlette(routes=[*self._routes()], exception_handlers=handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] += [pair for pair in _HEADERS.items() if pair[0] not in given]
            await send(message)

        await self._app(scope, receive, with_headers)

    async def close(self) -> None:
        """End the streams of open pages, so that the server can stop, and close the connections to the services."""
        self._site.closing.set()
        await self._site.transport.close()

    # -- routes ------------------------------------------------------------------------------------------------

    def _routes(self) -> list[BaseRoute]:
        pages = [Route(path, self._showing(page, open_to_all=False)) for path, page in PAGES.items()]
        pages += [Route(path, self._showing(page, open_to_all=True)) for path, page in OPEN_PAGES.items()]
        changes = [Route(path, self._changing(change), methods=["POST"]) for path, change in OPEN_CHANGES.items()]
        changes += [Route(path, self._changing(self._made(make)), methods=["POST"]) for path, make in CHANGES.items()]
        return [*pages, *changes, Route("/static/{name}", self._asset)]

    def _showing(self, page: PageHandler, *, open_to_all: bool) -> Callable[[Request], Awaitable[Response]]:
        async def show(request: Request) -> Response:
            visit = Visit(self._site, request)
            if comes_from_elsewhere(request):
                return visit.page("elsewhere.html")
            if self._site.closing.is_set():
                return visit.page("stopping.html", 503) if not is_live(request) else events([])
            try:
                if not open_to_all:
                    await visit.identify()
                return await page(visit)
            except metatxn.MetatxnError as error:
                cause = await visit.cause(error)
                return failed(visit, cause) if not is_live(request) else events([visit.problem(cause)])

        return show

    def _changing(self, change: FormHandler) -> Callable[[Request], Awaitable[Response]]:
        async def make(request: Request) -> Response:
            visit = Visit(self._site, request)
            try:
                form = SentForm(parse_qsl((await request.body()).decode("utf-8", "replace"), max_num_fields=MAX_FIELDS))
            except ValueError:
                return failed(visit, metatxn.InvalidArgument(f"the form has more than {MAX_FIELDS:,} fields"))
            if not comes_from_here(request) or not visit.session.sent(form.get("form_token", "")):
                return visit.page("forged.html", 403)
            try:
                return await change(visit, form)
            except metatxn.MetatxnError as error:
                return failed(visit, await visit.cause(error))

        return make

    def _made(self, change: ChangeHandler) -> FormHandler:
        async def make(visit: Visit, form: SentForm) -> Response:
            if self._site.read_only:
                return visit.page("read_only.html", 403)
            await visit.identify()
            done = await change(visit, form)
            assert visit.recorded, "every change has a line in the audit log"
            return visit.done(done)

        return make

    async def _asset(self, request: Request) -> Response:
        found = self._site.assets.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return found.response()

    async def _bug(self, request: Request, _: Exception) -> Response:
        """The page for a bug. What was raised goes on to the service, which logs it."""
        return Visit(self._site, request).page("bug.html", 500)

    async def _no_such_page(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return Visit(self._site, request).page("missing.html", error.status_code)


def failed(visit: Visit, error: metatxn.MetatxnError) -> Response:
    """The page that says what is wrong and what to do; or that on which to sign in."""
    if isinstance(error, metatxn.Unauthenticated):
        return RedirectResponse(f"{PATH}/sign-in?next={quote(visit.here, safe='')}", 303)
    status = 503 if isinstance(error, metatxn.ServiceUnreachable) else error.status
    return visit.page("problem.html", status, error=error)

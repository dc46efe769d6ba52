"""One request to the console: who asks, what the services answer them, and the page that is made of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

import metatxn
from metatxn.client import connect_async
from metatxn.console.live import is_live, live_response
from metatxn.console.sessions import PATH, BrowserSession, comes_from_elsewhere, set_cookie, url_before
from metatxn.console.site import Site
from metatxn.health import STORE_ACTION, AskedService, store_away
from metatxn.wire.models import Process

READ_TIMEOUT_S = 5.0
"""The time after which a page says that a service does not answer, rather than let its reader wait."""
AWAY_TIMEOUT_S = 1.5
"""The same while the metadata store is known to be away."""
AWAY_FOR_S = 10.0
"""How long pages believe what one of them has found of the metadata store, before the next one asks again."""
STATUS_TIMEOUT_S = 9.0
"""The same for the status of a service, which waits three seconds for the metadata store: a request that may be
repeated has half of its time for an answer."""
CHANGE_TIMEOUT_S = 30.0
TIMES = "Write it as 2026-03-02 09:04, in your own zone, or as 2026-03-02T09:04:00Z."
FORM_HEADER = "metatxn-form"
GO_HEADER = "metatxn-go"
THEME = "metatxn-theme"
SAID = "metatxn-said"
THEMES = ("auto", "light", "dark")
LONGEST_SAID = 300
INTERNAL_ERROR = 500
NAVIGATION = (
    *(("/", "Overview"), ("/topics", "Topics"), ("/subscriptions", "Subscriptions")),
    *(("/transactions", "Transactions"), ("/hanging", "Hanging"), ("/keys", "Keys")),
    *(("/cluster", "Cluster"), ("/access", "Access")),
)
FOR_ADMINISTRATORS = ("/hanging", "/keys")
Values = Mapping[str, Any]
"""What a template shows, by name."""


def time_of_form(field: str, text: str) -> datetime:
    """The time in a field. The script of the page adds the zone of its reader, where the text has none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise metatxn.InvalidArgument(f"{field}: {text!r} is not a time. {TIMES}", action="", field=field) from None
    if found.tzinfo is None:
        raise metatxn.InvalidArgument(f"{field}: {text!r} has no time zone. {TIMES}", action="", field=field)
    return found


class SentForm(dict[str, str]):
    """What a form has sent. Boxes that were ticked share one name."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._pairs = [*pairs]
        super().__init__(self._pairs)

    def every(self, name: str) -> list[str]:
        return [value for each, value in self._pairs if each == name]


@dataclass(frozen=True, slots=True)
class MadeChange:
    """A change was made: what to say, and the page on which to say it."""

    said: str
    url: str


class Visit:
    """A request to the console. `client` asks the services with the token of the caller."""

    def __init__(self, site: Site, request: Request) -> None:
        self.site = site
        self.request = request
        found = BrowserSession.of(request)
        # The browser does not send its cookie if another site has led to us: it may have one anyway.
        self._begins_session = found is None and request.method == "GET" and not comes_from_elsewhere(request)
        self.session = found or BrowserSession.begin()
        read_s = READ_TIMEOUT_S if site.away(AWAY_FOR_S) is None else min(AWAY_TIMEOUT_S, READ_TIMEOUT_S)
        self.client = self.client_with(read_s if request.method == "GET" else CHANGE_TIMEOUT_S)
        self._access: metatxn.AccessInfo | None = None
        self.recorded = 0
        """The lines that this request has written into the audit log."""

    def client_with(self, timeout_s: float) -> metatxn.AsyncClient:
        """A client that waits for this long, with the token of the caller."""
        return connect_async(self.site.url, self.session.token, timeout_s, transport=self.site.transport)

    @property
    def theme(self) -> str:
        chosen = self.request.cookies.get(THEME, "auto")
        return chosen if chosen in THEMES else "auto"

    @property
    def access(self) -> metatxn.AccessInfo:
        """The rights of the caller, once they were asked for."""
        return self._access or metatxn.AccessInfo(admin=False)

    @property
    def here(self) -> str:
        """The URL of this page, without its host; that of the page that a form was on."""
        if self.request.method != "GET":
            return url_before(self.request)
        url = self.request.url
        return f"{url.path}?{url.query}" if url.query else url.path

    @property
    def navigation(self) -> list[tuple[str, str]]:
        """The pages that the caller may open, by URL; none before it has signed in."""
        if self._access is None:
            return []
        left_out = () if self._access.admin else FOR_ADMINISTRATORS
        return [(f"{PATH}{url}", name) for url, name in NAVIGATION if url not in left_out]

    def is_below(self, url: str) -> bool:
        """Whether this page is the one at `url`, or belongs to it."""
        return self.request.url.path == url or (url != f"{PATH}/" and self.request.url.path.startswith(f"{url}/"))

    async def identify(self) -> None:
        """Ask the coordinator of this console who the caller is, also while the metadata store is away. Raises
        `Unauthenticated` and what else a client raises."""
        self._access = await self.client.access(self.site.url)

    async def cause(self, error: metatxn.MetatxnError) -> metatxn.MetatxnError:
        """What is behind an error. A service that does not reach the metadata store answers late or not at all; nobody
        is to look for a service then that runs."""
        if not isinstance(error, metatxn.ServiceUnreachable | metatxn.StoreUnavailable):
            return error
        if (known := self.site.away(AWAY_FOR_S)) is not None:
            return known
        try:
            status = await self.client_with(STATUS_TIMEOUT_S).service_status(self.site.url)
        except metatxn.MetatxnError:
            return error
        away = store_away([AskedService(status.service, Process(id="", url=self.site.url), status)])
        if away is None:
            self.site.found_away(None)
            return error
        found = metatxn.StoreUnavailable(f"the metadata store: {away.text}", action=STORE_ACTION)
        self.site.found_away(found)
        return found

    @property
    def by_script(self) -> bool:
        """Whether the script of a page has sent this form. It goes to the next page itself; if there is an error, it
        stays on the page of the form, with all that was typed, and shows the alert of the answer."""
        return FORM_HEADER in self.request.headers

    def query(self, name: str) -> str:
        """A parameter of the query, without the space around it; empty if it is not there."""
        return self.request.query_params.get(name, "").strip()

    def part(self, name: str) -> str:
        """A parameter of the path."""
        return unquote(self.request.path_params[name])

    @contextmanager
    def recording(self, verb: str, about: Mapping[str, Any], **arguments: Any) -> Iterator[None]:
        """A change of the cluster. Once its outcome is known, the audit log has a line with the address of the person
        who made it; the line of the service, if there is one, has that of this coordinator."""
        status = INTERNAL_ERROR
        try:
            yield
            status = 200
        except metatxn.MetatxnError as error:
            status = error.status if error.definite else metatxn.OutcomeUnknown.status
            raise
        finally:
            self.recorded += 1
            client = self.request.client
            self.site.record(
                f"console.{verb}",
                about,
                status,
                principal=self.access.principal,
                address=client.host if client else None,
                arguments=arguments,
            )

    # -- answers -----------------------------------------------------------------------------------------------

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        said = unquote(self.request.cookies.get(SAID, ""))
        response = HTMLResponse(self._render(template, {**values, "said": said}), status)
        if said:
            response.delete_cookie(SAID, PATH)
        if self._begins_session:
            self.session.keep(self.request, response)
        return response

    async def live_page(self, template: str, load: Callable[[], Awaitable[Values]]) -> Response:
        """A page whose block `live` follows what changes: the browser asks the same URL for its events."""
        if not is_live(self.request):
            return self.page(template, **await load())

        async def look() -> str:
            try:
                return self._block(template, "live", await load())
            except metatxn.MetatxnError as error:
                return self.problem(await self.cause(error))

        return live_response(look, self.site.closing)

    def problem(self, error: metatxn.MetatxnError) -> str:
        """What is shown in place of the live part of a page until the services answer again."""
        return self._block("problem.html", "live", {"error": error})

    def fragment(self, template: str, block: str, **values: Any) -> Response:
        """A part of a page, for htmx."""
        return HTMLResponse(self._block(template, block, values))

    def done(self, done: MadeChange) -> Response:
        """Go to a page that says so. The sentence travels in a cookie that is taken away there."""
        response = Response(headers={GO_HEADER: done.url}) if self.by_script else RedirectResponse(done.url, 303)
        set_cookie(self.request, response, SAID, quote(done.said[:LONGEST_SAID]), max_age_s=60)
        return response

    def _render(self, template: str, values: Values) -> str:
        return self.site.templates.get_template(template).render({**values, "visit": self})

    def _block(self, template: str, block: str, values: Values) -> str:
        found = self.site.templates.get_template(template)
        context = found.new_context({**values, "visit": self})
        return "".join(found.blocks[block](context))

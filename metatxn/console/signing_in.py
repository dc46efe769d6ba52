"""Signing in and out, and the colours of the pages."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response

import metatxn
from metatxn.client import connect_async
from metatxn.console.sessions import MAX_TOKEN_LENGTH, PATH, BrowserSession, is_token, local_url, set_cookie
from metatxn.console.visit import THEME, THEMES, SentForm, Visit

A_YEAR_S = 365 * 86_400


async def form(visit: Visit) -> Response:
    return visit.page("sign_in.html", next=local_url(visit.query("next")), wrong=None)


async def sign_in(visit: Visit, values: SentForm) -> Response:
    """Sign in. The token counts once the services know it. The session is a new one: forms of the former are
    worthless."""
    token, then = values.get("token", "").strip(), local_url(values.get("next", ""))
    wrong = await _refusal(visit, token)
    if wrong is not None:
        return visit.page("sign_in.html", 401, next=then, wrong=wrong)
    response = RedirectResponse(then, 303)
    BrowserSession.begin(token).keep(visit.request, response)
    return response


async def _refusal(visit: Visit, token: str) -> str | None:
    if len(token) > MAX_TOKEN_LENGTH:
        return f"A browser cannot keep a token of more than {MAX_TOKEN_LENGTH:,} characters. Use a shorter one."
    if not is_token(token):
        return "This is not a token. Paste the whole token, and nothing else."
    try:
        await connect_async(visit.site.url, token, transport=visit.site.transport).access(visit.site.url)
    except metatxn.Unauthenticated as error:
        return f"{error.detail[:1].upper()}{error.detail[1:]}."
    return None


async def sign_out(visit: Visit, _: SentForm) -> Response:
    response = RedirectResponse(f"{PATH}/sign-in", 303)
    BrowserSession.begin().keep(visit.request, response)
    return response


async def choose_theme(visit: Visit, values: SentForm) -> Response:
    theme = values.get("theme", "")
    response = RedirectResponse(local_url(values.get("next", "")), 303)
    if theme in THEMES:
        set_cookie(visit.request, response, THEME, theme, A_YEAR_S)
    return response

"""Transaction keys: who holds each, what happened to earlier holders, and fencing the one that holds it."""

from __future__ import annotations

import asyncio
from urllib.parse import quote, urlencode

from starlette.responses import Response

import metatxn
from metatxn.console.visit import MadeChange, SentForm, Values, Visit
from metatxn.key_history import epochs_of
from metatxn.wire.coordinator import TransactionHeader

PER_PAGE = 50
MOST_TRANSACTIONS = 200
"""The most transactions of a key from which its history is shown."""
MOST_EPOCHS = 50
LONGEST_EPOCH = 16
PATH = "/console/keys"


def key_url(key: str, owner: str | None) -> str:
    url = f"{PATH}/{quote(key, safe='')}"
    return f"{url}?{urlencode({'owner': owner})}" if owner else url


async def keys(visit: Visit) -> Response:
    owner, token = visit.query("owner"), visit.query("page") or None

    async def load() -> Values:
        found, next_token = await visit.client.keys(owner or None, limit=PER_PAGE).page_at(token)
        return {
            "rows": [(each, key_url(each.key, each.owner)) for each in found],
            "owner": owner,
            "turned": token is not None,
            "first": _url(owner, None) if token else None,
            "next": _url(owner, next_token) if next_token else None,
            "now_ms": visit.site.now_ms(),
        }

    return await visit.live_page("keys.html", load)


def _url(owner: str, token: str | None) -> str:
    query = {name: value for name, value in (("owner", owner), ("page", token)) if value}
    return f"{PATH}?{urlencode(query)}" if query else PATH


async def one_key(visit: Visit) -> Response:
    name, owner = visit.part("key"), visit.query("owner") or None

    async def load() -> Values:
        key = await visit.client.key(name, owner)
        listing = visit.client.transactions(key=name, owner=owner, newest_first=True, limit=MOST_TRANSACTIONS)
        (found, more), held = await asyncio.gather(listing.page_at(None), _held(visit, key.txn_id))
        epochs = epochs_of(key, found)
        return {
            "key": key,
            "held": held,
            "epochs": epochs[:MOST_EPOCHS],
            "more": more is not None or len(epochs) > MOST_EPOCHS,
            "now_ms": visit.site.now_ms(),
        }

    return await visit.live_page("key.html", load)


async def _held(visit: Visit, txn_id: str | None) -> TransactionHeader | None:
    """The transaction that a key holds; None if it has just been forgotten."""
    try:
        return await visit.client.attach(txn_id).refresh() if txn_id else None
    except metatxn.MetatxnError:
        return None


async def fence(visit: Visit, form: SentForm) -> MadeChange:
    """Fence only at the epoch that was on the page: a process that has taken over since then is left alone."""
    name, owner = visit.part("key"), form.get("owner", "") or None
    text = form.get("epoch", "").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= LONGEST_EPOCH):
        raise metatxn.InvalidArgument(f"epoch: {text!r} is not an epoch", field="epoch")
    if form.get("sure") != "yes":
        raise metatxn.InvalidArgument("sure: confirm that its holder is to end", field="sure")
    about = {"key": name, "owner": owner} if owner else {"key": name}
    with visit.recording("transaction_key.fence", about, epoch=int(text)):
        done = await visit.client.fence_key(name, int(text), owner)
    said = f"The holder of {name} is fenced: its epoch is {done.epoch} now."
    if done.aborted_txn_id:
        said += " Its open transaction is aborted."
    if done.prepared_txn_id:
        said += " Its prepared transaction is still open."
    return MadeChange(said, key_url(name, owner))

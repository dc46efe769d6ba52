"""Reading a topic in batches, as the client library does, and as what `GET /v1/topics/{topic}/messages` answers."""

from __future__ import annotations

import base64
from typing import Any

import httpx

from metatxn.wire.contents import messages_of
from metatxn.wire.names import message_ids
from metatxn.wire.pages import PAGE_MEDIA_TYPE, PageEntry, PageHead, decode_page

UNLIKE_JSON = {"compacted", "max"}
"""Parameters of the other read that this one does not have."""


async def read_page(http: httpx.AsyncClient, topic: str, **query: Any) -> tuple[PageHead, list[PageEntry]]:
    answer = await http.get(f"/v1/topics/{topic}/batches", params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == PAGE_MEDIA_TYPE
    return decode_page(answer.content)


async def read_all(http: httpx.AsyncClient, topic: str, **query: Any) -> list[dict[str, Any]]:
    """Every message that is readable now, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        head, entries = await read_page(http, topic, **query)
        found += [message for entry in entries for message in _messages(entry)]
        if not entries:
            assert not head.more
            return found
        query["after"] = head.next


def _messages(entry: PageEntry) -> list[dict[str, Any]]:
    frame = entry.frame
    keys, values, properties, times_ms = messages_of(frame)
    ids = message_ids(entry.segment, frame.position, range(len(values)))
    return [
        {
            "message_id": message_id,
            "key": key,
            "value": None if isinstance(value, bytes) else value,
            "value_base64": base64.b64encode(value).decode() if isinstance(value, bytes) else None,
            "properties": named or {},
            "publish_ms": frame.publish_ms,
            "txn_id": str(frame.txn_id) if frame.txn_id is not None else None,
            "deliver_at_ms": time_ms,
        }
        for message_id, key, value, named, time_ms in zip(ids, keys, values, properties, times_ms, strict=True)
    ][entry.skip :]


async def assert_read_alike(
    http: httpx.AsyncClient, topic: str, messages: list[dict[str, Any]], query: dict[str, Any]
) -> None:
    """Nothing has changed since these messages were read with JSON: in batches they are the first ones."""
    if "wait_ms" not in query and not UNLIKE_JSON & query.keys():
        found = await read_all(http, topic, **query)
        assert found[: len(messages)] == messages

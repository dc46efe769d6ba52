"""What everything of one client shares: the HTTP layer, the directory of services, the topic layouts, the threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from metatxn.cluster import AnyOf, Directory
from metatxn.delivery import Entry
from metatxn.errors import ServiceUnreachable
from metatxn.http import Call, Http, json_body, json_of, path_of
from metatxn.topics import Layout, OwnerOf, Topics
from participants.api.models import PublishAnswer

THREADS = 8
LAYOUT_PAUSE_S = 0.05
LAYOUT_PATIENCE_S = 5.0
"""A broker that is not the owner may learn of a seal a little later than we do."""

M = TypeVar("M", bound=BaseModel)


class Connection:
    def __init__(
        self,
        url: str,
        token: str | None,
        request_timeout_s: float,
        transport: httpx.BaseTransport | None = None,
        ca: str | None = None,
    ) -> None:
        self.http = Http(token, request_timeout_s, transport, ca=ca, only_tls=url.startswith("https://"))
        self.directory = Directory(self.http, url.rstrip("/"))
        self.topics = Topics(self.http, self.directory)
        self.coordinators = AnyOf(self.directory, "coordinator")
        self.brokers = AnyOf(self.directory, "broker")
        self.request_timeout_s = request_timeout_s
        self._executor: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    @property
    def executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="metatxn")
            return self._executor

    def close(self) -> None:
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()
        self.http.close()

    # -- requests ----------------------------------------------------------------------------------------------

    def coordinator(self, call: Call) -> Any:
        return json_of(self.http.request(self.coordinators, call))

    def broker(self, call: Call) -> Any:
        return json_of(self.http.request(self.brokers, call))

    def owner_of(self, segment: str, call: Call) -> httpx.Response:
        return self.http.request(OwnerOf(self.topics, self.directory, segment), call)

    def home_of(self, topic: str, call: Call) -> httpx.Response:
        """To the broker that hands out the subscriptions of `topic`: where we were sent before, or any."""
        return self.http.request(OwnerOf(self.topics, self.directory, f"subscriptions of {topic}"), call)

    def pages(self, endpoint: AnyOf, path: str, params: Mapping[str, Any], item: type[M]) -> Iterator[M]:
        """The items of a paged list."""
        token: str | None = None
        while True:
            call = Call("GET", path, {**params, "page_token": token})
            page = json_of(self.http.request(endpoint, call))
            for found in page["items"]:
                yield parsed(item, found)
            token = page.get("next_page_token")
            if not token:
                return

    # -- delivery ----------------------------------------------------------------------------------------------

    def layout(self, topic: str) -> Layout:
        return self.topics.layout(topic)

    def layout_without(self, topic: str, segment: str) -> Layout | None:
        deadline = time.monotonic() + min(LAYOUT_PATIENCE_S, self.request_timeout_s)
        while True:
            layout = self.topics.refresh(topic)
            if all(active.segment != segment for active in layout.active):
                return layout
            if time.monotonic() >= deadline:
                return None
            self.http.sleep(LAYOUT_PAUSE_S)

    def publish(self, entry: Entry) -> str:
        params = {
            "txn_id": entry.txn_id,
            "writer": entry.writer,
            "producer": entry.producer,
            "sequence": entry.sequence,
            "count": entry.count,
        }
        call = Call("POST", path_of("segments", entry.segment, "entries"), params, entry.payload, entry.content_type)
        return parsed(PublishAnswer, json_of(self.owner_of(entry.segment, call))).position


def parsed(model: type[M], value: Any) -> M:
    """Raises `ServiceUnreachable` when the answer is not what this version of the services sends."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise ServiceUnreachable(f"an answer is no {model.__name__}: {error}", retriable=False) from error


def post(path: str, body: Mapping[str, Any], *, idempotent: bool = True) -> Call:
    return Call("POST", path, content=json_body(body), idempotent=idempotent)

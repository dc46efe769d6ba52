"""The quotas of a service: which requests may pass, and what they have used."""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager

import structlog
from prometheus_client import CollectorRegistry, Counter
from starlette.types import Message, Scope, Send

from metastore.api import MetadataStore
from metastore.background import Backoff, in_background
from metastore.errors import MetastoreError
from metastore.keys import unescape
from metastore.txn import paths
from metastore.txn.records.quotas import PrincipalUse, QuotaRecord
from metastore.types import Event
from metastore.watches import Mirror
from metatxn.service.quotas.division import part_of
from metatxn.service.quotas.exchange import Exchange
from metatxn.service.quotas.meters import Meter, Meters, uses_of
from metatxn.service.quotas.peers import KnownPeers
from metatxn.wire import errors
from metatxn.wire.broker import PEER_HEADER
from metatxn.wire.quotas import QUOTA_NAMES, UNLIMITED, QuotaSettings, QuotaUse, effective_quota

NOBODY = ""
"""The principal of callers that are not authenticated."""
MAX_PRINCIPALS = 10_000
"""The most principals that are remembered. Those silent for longest are forgotten first; their buckets are full
then."""
MAX_TOLD = 1_000
"""The principals in the record of a process: those that use most."""
INTERVAL_S = 1.0
SOON_S = 0.1
LEAST_WAIT_S = 0.001
"""The shortest time after which a waiting request looks again."""
_PUBLISHED = re.compile(r"/v1/(?:topics/[^/]+/messages|segments/[^/]+/entries|txns/[^/]+/entries)")
_READ = re.compile(r"/v1/(?:topics/[^/]+/(?:messages|batches)|segments/[^/]+/entries)")
_RECEIVED = re.compile(r"/v1/topics/[^/]+/subscriptions/[^/]+/(?:receive|share/take)")
_WORDS = {
    "requests_per_second": "requests per second",
    "bytes_in_per_second": "bytes published per second",
    "bytes_out_per_second": "bytes read per second",
}
log = structlog.get_logger()


class Charge:
    """A request that has passed. What it moves is counted when it is known: its body at once if it tells the length."""

    __slots__ = ("_declared", "_published", "_read")

    def __init__(self, published: Meter | None, read: Meter | None, declared: int) -> None:
        self._published, self._read, self._declared = published, read, declared
        if published is not None:
            published.take(declared)

    def body(self, size: int) -> None:
        if self._published is not None:
            self._published.take(size - self._declared)

    def answer(self, size: int) -> None:
        if self._read is not None:
            self._read.take(size)

    def counting(self, send: Send) -> Send:
        """A function to be used in place of `send`."""
        read = self._read
        if read is None:
            return send

        async def counted(message: Message) -> None:
            read.take(len(message.get("body", b"")))
            await send(message)

        return counted


class Quotas:
    """`running` follows the records. Until then, and without any quota, everything passes.

    `refused` is called with the name of the amount of each refusal.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        clock: Callable[[], float] = time.monotonic,
        refused: Callable[[str], None] = lambda name: None,
        process: str | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._refused = refused
        self._mirror = Mirror(store, paths.QUOTAS, self._set)
        self._own: dict[str, QuotaRecord] = {}
        self._default: QuotaRecord | None = None
        self._meters: OrderedDict[str, Meters] = OrderedDict()
        self._exchange = Exchange(store, process or secrets.token_hex(8), clock, self._heard)
        self._peers = KnownPeers(store)
        self._heard_times = 0
        self._advanced_s = clock()
        self._any = asyncio.Event()
        self._news = asyncio.Event()

    @property
    def active(self) -> bool:
        """Whether there is any quota."""
        return self._default is not None or bool(self._own)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the records inside this block. Raises the store's errors."""
        async with self._mirror.running():
            task = in_background(self._exchange_forever(), "quotas")
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    # -- what was set ------------------------------------------------------------------------------------------

    def _set(self, event: Event) -> None:
        record = QuotaRecord.decode(event.record.value) if event.record is not None else None
        if event.key == paths.DEFAULT_QUOTA:
            self._default = record
            self._meters.clear()
        else:
            principal = unescape(event.key.removeprefix(paths.PRINCIPAL_QUOTAS))
            self._meters.pop(principal, None)
            if record is None:
                self._own.pop(principal, None)
            else:
                self._own[principal] = record
        if self.active:
            self._any.set()

    def _limits(self, principal: str) -> dict[str, int]:
        own: QuotaSettings | None = self._own.get(principal) if principal != NOBODY else None
        found = effective_quota(own, self._default)
        amounts = {name: getattr(found, name).value for name in QUOTA_NAMES}
        return {name: value for name, value in amounts.items() if value != UNLIMITED}

    def _meters_of(self, principal: str) -> Meters:
        found = self._meters.get(principal)
        if found is None:
            now = self._clock()
            limits = self._limits(principal)
            found = self._meters[principal] = Meters({name: Meter(limit, now) for name, limit in limits.items()})
            if len(self._meters) > MAX_PRINCIPALS:
                self._meters.popitem(last=False)
            if limits:
                self._news.set()  # so that the others soon leave a part to this process
        else:
            self._meters.move_to_end(principal)
        if found.divided != self._heard_times:
            self._divide(principal, found)
        return found

    # -- requests ----------------------------------------------------------------------------------------------

    def begin(self, principal: str | None, request: Scope) -> Charge | None:
        """A request that is to pass, or None if nothing counts for it. Raises RATE_LIMITED."""
        meters = self._meters_of(principal or NOBODY).by_name
        if not meters or self._peers.knows(_header(request, PEER_HEADER)):
            return None
        charged = _of(meters, _moved(request))
        if (missing := self._missing(charged)) is not None:
            name, wait_s = missing
            self._refused(name)
            raise _used_up(principal, name, charged[name].limit, wait_s)
        return _charge(charged, _declared(request))

    async def begin_later(self, principal: str | None, amounts: Iterable[str], published: int) -> Charge | None:
        """A request of a protocol in which it waits until it may pass; it uses these amounts. Counts as one refusal if
        it has waited."""
        names, has_waited = tuple(amounts), False
        while True:
            charged = _of(self._meters_of(principal or NOBODY).by_name, names)
            missing = self._missing(charged)
            if missing is None:
                return _charge(charged, published) if charged else None
            name, wait_s = missing
            if not has_waited:
                self._refused(name)
            has_waited = True
            await asyncio.sleep(max(wait_s, LEAST_WAIT_S))

    def _missing(self, charged: Mapping[str, Meter]) -> tuple[str, float] | None:
        """The first amount that is used up, and the seconds until it is not."""
        now = self._clock()
        for name, meter in charged.items():
            if (wait_s := meter.wait_s(now)) > 0:
                meter.limited = True
                return name, wait_s
        return None

    # -- the parts of this process -----------------------------------------------------------------------------

    def _divide(self, principal: str, meters: Meters) -> None:
        others, now = self._exchange.others(), self._clock()
        for name, meter in meters.by_name.items():
            uses = [use for told in others if (use := uses_of(told, principal, name)) is not None]
            fair = meter.limit / (len(uses) + 1)
            part = fair if self._exchange.cut_off else part_of(meter.limit, meter.use, uses)
            meter.divide(part, fair, now)
        meters.divided = self._heard_times

    def _heard(self) -> None:
        self._heard_times += 1

    async def advance(self) -> None:
        """About a second has passed: tell the others what was used, and divide anew."""
        now = self._clock()
        seconds, self._advanced_s = max(now - self._advanced_s, SOON_S), now
        for meters in self._meters.values():
            for meter in meters.by_name.values():
                meter.advance(seconds, now)
        for principal in [principal for principal, meters in self._meters.items() if meters.idle]:
            del self._meters[principal]
        self._heard_times += 1
        for principal, meters in self._meters.items():
            self._divide(principal, meters)  # also for those that wait and do not ask
        await self._exchange.tell(self._told())

    def _told(self) -> Mapping[str, PrincipalUse]:
        told = {principal: meters.told() for principal, meters in self._meters.items() if meters.by_name}
        if len(told) <= MAX_TOLD:
            return told
        most = sorted(told, key=lambda principal: -sum(told[principal].rates.values()))
        return {principal: told[principal] for principal in most[:MAX_TOLD]}

    async def _exchange_forever(self) -> None:
        """Exchange every second, from the first quota on."""
        await self._any.wait()
        backoff = Backoff(first_s=0.1, longest_s=5.0)
        while True:
            try:
                async with self._peers.running(), self._exchange.running():
                    backoff.reset()
                    while True:
                        await self._second_over()
                        await self.advance()
            except MetastoreError as error:
                log.info("the use of quotas is not heard of", error=str(error))
                await backoff.pause()

    async def _second_over(self) -> None:
        """Wait until a second is over, or a principal has come that the others should hear of soon."""
        self._news.clear()
        try:
            async with asyncio.timeout(INTERVAL_S):
                await self._news.wait()
        except TimeoutError:
            return
        await asyncio.sleep(SOON_S)

    # -- looking -----------------------------------------------------------------------------------------------

    def use_of(self, principal: str) -> QuotaUse:
        """The use in the whole cluster, as far as this process knows."""
        own = self._meters[principal].told() if principal in self._meters else PrincipalUse(rates={})
        told = [own, *(each[principal] for each in self._exchange.others() if principal in each)]
        return QuotaUse(**{name: sum(use.rates.get(name, 0.0) for use in told) for name in QUOTA_NAMES})


def _of(meters: Mapping[str, Meter], amounts: Iterable[str]) -> dict[str, Meter]:
    return {name: meter for name in amounts if (meter := meters.get(name)) is not None}


def _charge(charged: Mapping[str, Meter], declared: int) -> Charge:
    if "requests_per_second" in charged:
        charged["requests_per_second"].take(1)
    return Charge(charged.get("bytes_in_per_second"), charged.get("bytes_out_per_second"), declared)


def count_refusals(registry: CollectorRegistry) -> Callable[[str], None]:
    """A metric to be passed as `refused`."""
    metric = Counter(
        "metatxn_quota_refusals", "Requests that were refused because of a quota.", ["quota"], registry=registry
    )
    return lambda name: metric.labels(name).inc()


def _moved(request: Scope) -> Iterator[str]:
    """The amounts that a request uses. Its path is as it was sent: a `/` in a name is escaped."""
    yield "requests_per_second"
    method, path = request["method"], (request.get("raw_path") or request["path"].encode()).decode("latin-1")
    if method == "POST" and _PUBLISHED.fullmatch(path):
        yield "bytes_in_per_second"
    elif (_READ if method == "GET" else _RECEIVED).fullmatch(path):
        yield "bytes_out_per_second"


def _header(request: Scope, wanted: bytes) -> bytes | None:
    return next((value for name, value in request["headers"] if name == wanted), None)


def _declared(request: Scope) -> int:
    """The length of the body, as far as the head says it."""
    length = _header(request, b"content-length")
    return int(length) if length is not None and length.isdigit() else 0


def _used_up(principal: str | None, name: str, limit: int, wait_s: float) -> errors.MetatxnError:
    who = f"principal {principal}" if principal is not None else "callers without a token"
    return errors.RateLimited(
        f"{who}: the quota of {limit:,} {_WORDS[name]} in the whole cluster is used up",
        action="Nothing happened. Try again after Retry-After seconds, or have the quota raised: metatxn quota set.",
        retry_after_s=math.ceil(wait_s),
        quota=name,
        limit=limit,
    )

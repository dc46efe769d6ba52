"""A topic that lives long: its segments are split, merged, trimmed and removed under readers and consumers.

Authors write, plainly and in transactions. Browsers follow the topic from page to page; one that is told that it has
missed something begins again, so in the end each has seen once, and in order, all that is left. Consumers acknowledge
what they are given. Janitors change the layout, and delete segments or trim all of them, no matter who still needs
them."""

from __future__ import annotations

from metastore.txn import paths
from tests.simulation.client import Refused, payload_of
from tests.simulation.history import Browsed
from tests.simulation.workloads.base import Actor, Workload

AUTHORS = 2
BROWSERS = 3
CONSUMERS = 2
SUBSCRIPTION = "following"
AGAIN = "again"
TIMEOUT_MS = (2_000, 15_000)
ALL = (1 << 62, 0)
PAGE = 5


class Lasting(Workload):
    name = "lasting"
    aims = (paths.SEGMENTS, paths.SEGMENT_STATES, paths.SEGMENT_OWNERS)

    async def set_up(self) -> None:
        random = self.world.generator("lasting")
        self.diary = await self.create_topic("diary", random)
        client = self.client(random)
        await client.subscribe(self.diary, SUBSCRIPTION, random.choice(("exclusive", "failover", "shared")))
        self._browsers = [Browsing(f"browser-{number}") for number in range(BROWSERS)]

    def start(self) -> None:
        for number in range(AUTHORS):
            self.employ(f"author-{number}", Author)
        for number in range(BROWSERS):
            self.employ(f"browser-{number}", Browser)
        for number in range(CONSUMERS):
            self.employ(f"consumer-{number}", Consumer)
        self.employ("janitor", Janitor)

    def browsing(self, name: str) -> Browsing:
        """What a browser has seen, which another process goes on with in the end."""
        return next(each for each in self._browsers if each.name == name)

    async def read_everything(self) -> None:
        await super().read_everything()
        browser = Browser(self, "final browser", self.world.generator("final browser"))
        for each in self._browsers:
            while await browser.browse(each):
                pass
            self.history.browsed[each.name] = Browsed(self.diary, each.seen, each.since)
        client = self.client(self.world.generator("again"))
        await client.subscribe(self.diary, AGAIN, "shared")
        again = self.history.again[self.diary] = set()
        while given := await client.receive(self.diary, AGAIN, "again", 100):
            again.update(payload_of(message)["id"] for message in given)


class Browsing:
    """`since` is when the first page was answered, after the reader has begun or was told that it has missed
    something."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.token: str | None = None
        self.seen: list[str] = []
        self.since = 0.0


class Author(Actor):
    async def act(self) -> None:
        assert isinstance(self.workload, Lasting)
        random, txn_id = self.random, None
        if random.random() < 0.5:
            txn_id = await self.client.begin(random.choice(TIMEOUT_MS))
        for _ in range(random.choice((1, 2, 5))):
            key = f"day-{random.randrange(20)}"
            await self.write(self.workload.diary, key, 0, txn_id=txn_id, writer=self.name, producer=self.name)
        fate = random.random()
        if txn_id is not None and fate < 0.95:
            await self.end(txn_id, commit=fate < 0.6)


class Browser(Actor):
    async def act(self) -> None:
        assert isinstance(self.workload, Lasting)
        await self.browse(self.workload.browsing(self.name))

    async def browse(self, browsing: Browsing) -> bool:
        """A page. Whether there may be more."""
        assert isinstance(self.workload, Lasting)
        try:
            messages, token = await self.client.browse(self.workload.diary, browsing.token, PAGE)
        except Refused as refused:
            if refused.code != "POSITION_TRIMMED":
                raise
            browsing.token, browsing.seen = None, []
            return True
        if browsing.token is None:
            browsing.since = self.workload.world.loop.time()
        browsing.token = token
        browsing.seen += [payload_of(message)["id"] for message in messages]
        return bool(messages)


class Consumer(Actor):
    async def act(self) -> None:
        assert isinstance(self.workload, Lasting)
        diary = self.workload.diary
        given = await self.client.receive(diary, SUBSCRIPTION, self.name, 20)
        if not given:
            return
        txn_id = await self.client.begin(self.random.choice(TIMEOUT_MS))
        await self.client.acknowledge(diary, SUBSCRIPTION, [each["message_id"] for each in given], txn_id)
        await self.end(txn_id, commit=self.random.random() < 0.8)


class Janitor(Actor):
    pause_s = 1.5

    async def act(self) -> None:
        assert isinstance(self.workload, Lasting)
        diary = self.workload.diary
        sealed = [place for place in await self.client.look(diary) if not place.active]
        fate = self.random.random()
        if not sealed or fate < 0.3:
            await self.client.change_layout(diary)
            return
        place = sealed[0] if fate < 0.8 else self.random.choice(sealed)
        if self.random.random() < 0.5:
            self.history.trimmed[place.segment] = ALL
            await self.client.delete_segment(place.segment)
        else:
            ledger, entry = (await self.client.horizon(place)).max_read_position
            self.history.trimmed[place.segment] = ALL
            await self.client.trim(place.segment, (ledger, entry + 1))

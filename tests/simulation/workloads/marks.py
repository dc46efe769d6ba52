"""Readers that mark how far they have read, in segments that are trimmed.

Authors write to a log, in transactions of which many are aborted. Each reader writes a mark, the place to which it has
read a segment, and acknowledges everything up to there in the same transaction; when it has aborted that, it sometimes
does it again at once. So in the end a subscription stands at the highest mark that was committed, no matter who was
refused, aborted, killed or late. Meanwhile the oldest entries are trimmed, and with them what is known of their
transactions."""

from __future__ import annotations

from metastore.txn import paths
from tests.simulation.client import Refused
from tests.simulation.workloads.base import Actor, Workload, whatever_comes

AUTHORS = 2
READERS = 3
SUBSCRIPTION = "reading"
TIMEOUT_MS = (2_000, 15_000)


class Marks(Workload):
    name = "marks"
    aims = (paths.CURSORS, ":a:")

    async def set_up(self) -> None:
        random = self.world.generator("marks")
        self.log = await self.create_topic("log", random)
        self.marks = await self.create_topic("marks", random)
        await self.client(random).subscribe(self.log, SUBSCRIPTION, random.choice(("exclusive", "failover", "shared")))

    def start(self) -> None:
        for number in range(AUTHORS):
            self.employ(f"author-{number}", Author)
        for number in range(READERS):
            self.employ(f"reader-{number}", Reader)
        self.employ("janitor", Janitor)

    async def read_everything(self) -> None:
        await super().read_everything()
        client = self.client(self.world.generator("final marks"))
        for segment, place in (await client.mark_deletes(self.log, SUBSCRIPTION)).items():
            self.history.mark_deletes[segment] = place
        self.history.marks = self.marks


class Author(Actor):
    async def act(self) -> None:
        assert isinstance(self.workload, Marks)
        random = self.random
        if random.random() < 0.3:
            await self._write(None)
            return
        txn_id = await self.client.begin(random.choice(TIMEOUT_MS))
        await whatever_comes(*(self._write(txn_id) for _ in range(random.choice((1, 2, 5)))))
        fate = random.random()
        if fate < 0.9:
            await self.end(txn_id, commit=fate < 0.5)

    async def _write(self, txn_id: str | None) -> None:
        assert isinstance(self.workload, Marks)
        key = f"page-{self.random.randrange(20)}"
        await self.write(self.workload.log, key, 0, txn_id=txn_id, writer=self.name, producer=self.name)


class Seeker(Actor):
    """Goes on reading; from the first entry that is left when the next one was trimmed."""

    async def seek(self) -> tuple[str, tuple[int, int]] | None:
        """A segment of the log, and a place in it that is readable."""
        assert isinstance(self.workload, Marks)
        place = self.random.choice(await self.client.look(self.workload.log))
        try:
            read = await self.read_on(place)
        except Refused as refused:
            if refused.code == "POSITION_TRIMMED":
                self._places.pop(place.segment, None)  # there is none when the trim came between look and read
            raise
        if self.random.random() < 0.2:
            await self.ask_for_horizon(place)
        if not read.frames:
            return None
        return place.segment, self.random.choice(read.frames).position


class Reader(Seeker):
    async def act(self) -> None:
        assert isinstance(self.workload, Marks)
        if (found := await self.seek()) is None:
            return
        while await self._mark(*found):
            pass

    async def _mark(self, segment: str, position: tuple[int, int]) -> bool:
        """In a transaction of its own. Whether it was aborted and is to be done again at once, as the next run of a job
        does."""
        workload, txn_id = self.workload, await self.client.begin(self.random.choice(TIMEOUT_MS))
        assert isinstance(workload, Marks)
        mark = f"{segment} {position[0]}:{position[1]}"
        await self.write(workload.marks, mark, 0, txn_id=txn_id)
        await self.client.acknowledge_up_to(workload.log, SUBSCRIPTION, segment, position, txn_id)
        fate = self.random.random()
        if fate < 0.9:
            await self.end(txn_id, commit=fate < 0.65)
        return 0.75 < fate < 0.9


class Janitor(Seeker):
    pause_s = 6.0

    async def act(self) -> None:
        if (found := await self.seek()) is None:
            return
        segment, position = found
        self.history.trimmed[segment] = max(position, self.history.trimmed.get(segment, position))
        await self.client.trim(segment, position)

"""Goal: the batches of a client with several requests on their way travel together, and nothing else is kept waiting.

Method: a client and a sender on virtual time. The client answers each wave with as many new batches, one after the
other; the sender takes what is there, and says when it began. DESIGN §5.22, rule 6.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from metatxn_gateways.kafka.wave_pace import LONGEST_PAUSE, LONGEST_PAUSE_S, WavePace
from tests.simulation.loop import SimulationLoop

WAVE_S = 0.02
APART_S = 0.001


class Sender:
    """Sends waves of what waits, each of which takes `WAVE_S`, unless a test says otherwise."""

    def __init__(self) -> None:
        self.pace = WavePace()
        self.wave_s = WAVE_S
        self.waiting = 0
        self.waves: list[tuple[float, int]] = []
        """When each wave began, and its batches."""

    def arrive(self) -> None:
        self.waiting += 1
        self.pace.changed(self.waiting)

    async def wave(self, most: int = 16) -> int:
        """One wave. Returns the number of its batches."""
        await self.pace.until_enough(self.waiting)
        wave = min(self.waiting, most)
        is_full = wave < self.waiting
        self.waves.append((asyncio.get_running_loop().time(), wave))
        self.waiting -= wave
        await asyncio.sleep(self.wave_s)
        self.pace.ended(0 if is_full else self.waiting + wave)
        return wave

    def later(self, count: int, apart_s: float) -> None:
        """This many batches arrive, one after the other."""
        for number in range(count):
            asyncio.get_running_loop().call_later(apart_s * (number + 1), self.arrive)


Program = Callable[[Sender], Awaitable[None]]


def waves_of(program: Program) -> list[tuple[float, int]]:
    """The waves of a sender on virtual time."""
    loop, sender = SimulationLoop(Random(0), 1, lambda: 0.0), Sender()

    async def run() -> None:
        await program(sender)

    task = loop.create_task(run())
    task.add_done_callback(lambda _: loop.stop())
    loop.run_forever()
    task.result()
    loop.close()
    return sender.waves


async def pipelined(sender: Sender) -> None:
    """Five requests are on their way. The first leaves alone, because the others come a moment later."""
    sender.arrive()
    sender.later(4, APART_S)
    for _ in range(5):
        wave = await sender.wave()
        sender.later(wave, APART_S)
        if not sender.waiting:
            await asyncio.sleep(APART_S)


def test_a_client_with_five_requests_on_their_way_sends_waves_of_five() -> None:
    assert [wave for _, wave in waves_of(pipelined)] == [1, 4, 5, 5, 5]


def test_a_wave_waits_until_the_last_batch_is_there_and_no_longer() -> None:
    began = [time for time, _ in waves_of(pipelined)]
    assert began[3] - began[2] == pytest.approx(WAVE_S + 5 * APART_S)


def test_a_batch_of_a_client_with_one_request_on_its_way_leaves_at_once() -> None:
    async def one_by_one(sender: Sender) -> None:
        for _ in range(4):
            sender.arrive()
            await sender.wave()

    assert waves_of(one_by_one) == [(WAVE_S * number, 1) for number in range(4)]


def test_what_does_not_come_is_waited_for_for_a_part_of_a_wave_and_once() -> None:
    async def stops(sender: Sender) -> None:
        for waiting in (5, 5, 1, 1, 1):
            while sender.waiting < waiting:
                sender.arrive()
            await sender.wave()

    waves = waves_of(stops)
    paused = [later - earlier - WAVE_S for (earlier, _), (later, _) in itertools.pairwise(waves)]
    assert paused == pytest.approx([0, WAVE_S * LONGEST_PAUSE, 0, 0])


def test_what_comes_long_after_a_wave_leaves_at_once() -> None:
    """The pause counts from the end of the wave."""

    async def paced(sender: Sender) -> None:
        for _ in range(3):
            for _ in range(5):
                sender.arrive()
            await sender.wave()
        await asyncio.sleep(10)
        sender.arrive()
        await sender.wave()

    assert waves_of(paced)[-1] == (3 * WAVE_S + 10, 1)


def test_a_full_wave_is_followed_at_once() -> None:
    """More is on its way than a wave can take, so nothing is waited for."""

    async def large(sender: Sender) -> None:
        sender.later(3, 0)
        await asyncio.sleep(0)
        for _ in range(4):
            sender.arrive()
            await sender.wave(most=1)

    assert [time for time, _ in waves_of(large)] == pytest.approx([WAVE_S * number for number in range(4)])


def test_a_wave_that_was_held_up_is_followed_soon() -> None:
    """The store, or the device, may have taken long."""

    async def slow(sender: Sender) -> None:
        for sender.wave_s, waiting in ((WAVE_S, 5), (30.0, 5), (WAVE_S, 1)):
            while sender.waiting < waiting:
                sender.arrive()
            await sender.wave()

    (_, (began, _), (next_began, _)) = waves_of(slow)
    assert next_began - began == pytest.approx(30 + LONGEST_PAUSE_S)


def test_a_pause_does_not_lengthen_the_next_one() -> None:
    async def slower_and_slower(sender: Sender) -> None:
        for waiting in (5, 5, 4, 3):
            while sender.waiting < waiting:
                sender.arrive()
            await sender.wave()
            sender.pace.ended(5)  # as if those that did not come were on their way

    waves = waves_of(slower_and_slower)
    assert [later - earlier for (earlier, _), (later, _) in itertools.pairwise(waves)] == pytest.approx(
        [WAVE_S, WAVE_S * (1 + LONGEST_PAUSE), WAVE_S * (1 + LONGEST_PAUSE)]
    )


def test_nothing_is_waited_for_when_everything_was_withdrawn() -> None:
    async def withdrawn(sender: Sender) -> None:
        for _ in range(2):
            for _ in range(5):
                sender.arrive()
            await sender.wave()
        sender.arrive()
        asyncio.get_running_loop().call_soon(sender.pace.changed, 0)
        await sender.wave()

    assert waves_of(withdrawn)[-1] == (2 * WAVE_S, 1)


def test_two_batches_of_a_short_transaction_do_not_wait_for_a_third() -> None:
    """One wave with company is no pattern yet."""

    async def short(sender: Sender) -> None:
        sender.arrive()
        sender.later(1, APART_S)
        await sender.wave()
        await sender.wave()

    assert waves_of(short) == [(0, 1), (WAVE_S, 1)]

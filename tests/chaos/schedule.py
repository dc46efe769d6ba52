"""What befalls whom, when and for how long: the same for the same mix, seed and length."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from tests.chaos.mixes import Fault, Mix

COORDINATORS = ("coordinator-0", "coordinator-1")
BROKERS = ("broker-0", "broker-1")
SERVICES = (*COORDINATORS, *BROKERS)
CLIENTS = ("client-0", "client-1")
FEEDER, MEMBERS, TWIN = "feeder", ("member-0", "member-1"), "twin"
"""Of Kafka's clients: the one that fills and reads topics, the members of a group, and one with the same transactional
id as the first of them."""
KAFKA_CLIENTS = (FEEDER, *MEMBERS, TWIN)
SHIPPER, WORKERS = "shipper", ("worker-0", "worker-1")
"""Of Pulsar's clients: the one that fills and reads topics, and those that transform what was sent."""
PULSAR_CLIENTS = (SHIPPER, *WORKERS)
LISTENER_CLIENTS: dict[str | None, tuple[str, ...]] = {None: (), "kafka": KAFKA_CLIENTS, "pulsar": PULSAR_CLIENTS}
TRANSFORMERS: dict[str | None, tuple[str, ...]] = {None: (), "kafka": MEMBERS, "pulsar": WORKERS}
"""Those that are struck more often."""
STORE = "store"
DISKS = "disk"
SHORTEST_S = 1.0
NETWORK_S = 12.0
"""Longer than a request is tried, and than a lease lasts."""
DOWN_S = 6.0
"""How long one that was killed stays away at most."""
STORM_S = 12.0


@dataclass(frozen=True, slots=True)
class Strike:
    """`target` is a process, a way `from>to`, the store as a whole, or the disk of the ledgers. Times are seconds."""

    at_s: float
    fault: Fault
    target: str
    for_s: float

    def __str__(self) -> str:
        return f"{self.at_s:7.1f} s  {self.fault:<24} {self.target:<24} for {self.for_s:.1f} s"


def members(mix: Mix) -> list[str]:
    return [f"{STORE}-{number}" for number in range(mix.members)]


def clients(mix: Mix) -> tuple[str, ...]:
    return (CLIENTS[0], *LISTENER_CLIENTS[mix.listener]) if mix.listener else CLIENTS


def ways(mix: Mix) -> list[str]:
    """From clients to each service, and from each service to each member of the store. Those to the brokers come three
    times, as all messages go there: what is lost on them tests what retries do. Clients of a listener have one way to
    each broker together, and each of them one to all brokers."""
    to_services = [f"clients>{name}" for name in (*COORDINATORS, *BROKERS, *BROKERS, *BROKERS)]
    transformers = TRANSFORMERS[mix.listener]
    to_listeners = [f"{mix.listener}>{name}" for name in (*BROKERS, *BROKERS)] if mix.listener else []
    to_listeners += [f"{name}>brokers" for name in (*LISTENER_CLIENTS[mix.listener], *transformers, *transformers)]
    to_members = [f"{name}>{one}" for name in SERVICES for one in members(mix)]
    return [*to_services, *to_listeners, *to_members]


def whole(target: str) -> str:
    """What counts as one: no two members of the store by different faults, which decide whether there is a quorum."""
    return STORE if target.startswith(STORE) else target


def schedule(mix: Mix, seed: int, seconds: float) -> list[Strike]:
    """Faults are cards, as many of each as the mix says; only when all are played they are shuffled again. So each of
    them occurs within two decks, however rare it is. Nothing is struck again before the last fault there is over."""
    dice = Random(f"{seed}")
    free_at: dict[str, float] = {}
    strikes: list[Strike] = []
    deck: Counter[Fault] = Counter()
    now = 0.0
    while (now := now + dice.expovariate(1 / mix.pause_s)) < seconds:
        deck = deck or Counter(mix.faults)
        (fault,) = dice.choices(list(deck), list(deck.values()))
        target = dice.choice(_targets(mix, fault))
        for_s = min(_duration(dice, mix, fault), seconds - now)
        if free_at.get(whole(target), 0.0) > now:
            continue
        free_at[whole(target)] = now + for_s
        deck = deck - Counter([fault])
        strikes.append(Strike(now, fault, target, for_s))
    return strikes


def _targets(mix: Mix, fault: Fault) -> list[str]:
    match fault:
        case Fault.KILL | Fault.FREEZE:
            return [*SERVICES, *BROKERS, *clients(mix), *TRANSFORMERS[mix.listener], *members(mix)]
        case Fault.RESTARTS | Fault.STOP:
            return list(SERVICES)
        case Fault.RELEASE:
            return [*SERVICES, *BROKERS, *CLIENTS]
        case Fault.DRAIN:
            return list(BROKERS)
        case Fault.COMPACTION | Fault.LEADER | Fault.QUORUM | Fault.STORE_FULL:
            return [STORE]
        case Fault.APART | Fault.APART_SILENT | Fault.STORE_DISK:
            return members(mix)
        case Fault.DISK:
            return [DISKS]
        case _:
            return ways(mix)


def _duration(dice: Random, mix: Mix, fault: Fault) -> float:
    match fault:
        case Fault.KILL | Fault.STOP | Fault.RELEASE:
            return dice.uniform(0, DOWN_S)
        case Fault.RESTARTS:
            return STORM_S
        case Fault.FREEZE:  # most are short
            return SHORTEST_S * float((mix.longest_s / SHORTEST_S) ** dice.random())
        case _:
            return dice.uniform(SHORTEST_S, NETWORK_S)

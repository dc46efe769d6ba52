"""The current consumers of a subscription. The time is passed in, in seconds.

    exclusive   one consumer; a second one is refused until it is gone
    failover    the first one is active, the others wait in the order they came
    shared      all of them
    key_shared  all of them, each for its keys (see `assignment`)

A consumer is present from its first `receive` until it leaves, or until it was silent for the session timeout, which
each `receive` may set. While a `receive` of it waits, it is not silent. Each time it arrives it gets a session with a
new number, under which it holds messages, so that those of an earlier session return even if it arrives under the same
name.
"""

from __future__ import annotations

from dataclasses import dataclass

from metatxn.wire.broker import SubscriptionType


class ConsumerBusy(Exception):
    """The subscription is exclusive, and `holder` is its consumer."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


@dataclass(slots=True)
class Session:
    number: int
    last_seen_s: float
    timeout_s: float
    waiting: int = 0


class Sessions:
    def __init__(self, kind: SubscriptionType, timeout_s: float) -> None:
        self._kind = kind
        self._timeout_s = timeout_s
        self._sessions: dict[str, Session] = {}
        self.newest = 0
        """The number of the session that began last. Numbers only grow."""

    @property
    def consumers(self) -> list[str]:
        """The consumers in the order in which they arrived."""
        return list(self._sessions)

    @property
    def names(self) -> dict[int, str]:
        """The consumers by the numbers of their sessions."""
        return {session.number: name for name, session in self._sessions.items()}

    @property
    def numbers(self) -> list[int]:
        """The numbers of all sessions, in the same order."""
        return [session.number for session in self._sessions.values()]

    def enter(self, consumer: str, now_s: float, timeout_s: float | None = None) -> int:
        """Begin a `receive`, whose session times out after `timeout_s` of silence from now on. Returns the number of
        the session. Raises `ConsumerBusy`."""
        if self._kind == "exclusive" and (others := [name for name in self._sessions if name != consumer]):
            raise ConsumerBusy(others[0])
        session = self._sessions.get(consumer)
        if session is None:
            self.newest += 1
            session = self._sessions[consumer] = Session(self.newest, now_s, self._timeout_s)
        session.timeout_s = self._timeout_s if timeout_s is None else timeout_s
        session.waiting += 1
        return session.number

    def exit(self, consumer: str, number: int, now_s: float) -> None:
        """End a `receive` of this session."""
        session = self._sessions.get(consumer)
        if session is not None and session.number == number:
            session.waiting -= 1
            session.last_seen_s = now_s

    def may_receive(self, number: int) -> bool:
        numbers = self.numbers
        return number in numbers if self._kind in ("shared", "key_shared") else numbers[:1] == [number]

    def consumer(self, number: int) -> str | None:
        """The name of the consumer with this session, if it is present."""
        return next((name for name, each in self._sessions.items() if each.number == number), None)

    def leave(self, consumer: str) -> bool:
        """Remove a consumer. Returns whether it was present."""
        return self._sessions.pop(consumer, None) is not None

    def expire(self, now_s: float) -> list[str]:
        """Remove and return the consumers whose sessions have timed out."""
        silent = [
            name for name, each in self._sessions.items() if (end := self._end(each)) is not None and end <= now_s
        ]
        for name in silent:
            del self._sessions[name]
        return silent

    def next_expiry_s(self) -> float | None:
        return min((end for each in self._sessions.values() if (end := self._end(each)) is not None), default=None)

    def _end(self, session: Session) -> float | None:
        return None if session.waiting else session.last_seen_s + session.timeout_s

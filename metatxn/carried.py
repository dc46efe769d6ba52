"""A commit that travels with the last entries of its transaction, instead of behind their answers.

    commit ──▶ the last entries depart ──▶ broker: append all of them, then decide ──▶ positions, and the decision

Only when nothing else of the transaction is under way does its commit depart with them, and the broker decides once
every one of them is durable. So this is the commit that the client would send after the answer, one round trip earlier
(DESIGN §5.1).

From then on the transaction may be committed, until an answer says that no commit was tried. Its entries are sent again
without the promise that nobody had committed the transaction. A broker forgets the sequences of a decided transaction.
So when such an entry is refused, the header tells: in a committed transaction every entry is durable, because nobody
but this client commits it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Set

from pydantic import ValidationError

from metatxn.wire.coordinator import CommitRequest, TransactionHeader
from metatxn.wire.errors import MetatxnError, OutcomeUnknown
from metatxn.wire.problems import Problem, from_problem

NOT_TOLD = ""
"""The position of an entry that is durable, where the answer with its position was lost."""

EntryName = tuple[str, int]
"""The producer and the sequence of an entry."""


class CarriedCommit:
    """A commit with these `writers`, while the last entries of its transaction are under way. `is_ready` tells whether
    these entries are all that is under way. `departs` is called before it departs, and `read` reads the header."""

    def __init__(
        self,
        writers: list[str] | None,
        is_ready: Callable[[Set[EntryName]], bool],
        departs: Callable[[], None],
        read: Callable[[], Awaitable[TransactionHeader]],
    ) -> None:
        self.request = _request(writers)
        self._is_ready = is_ready
        self._departs = departs
        self._read = read
        self.header: TransactionHeader | None = None
        """The decision, if it was answered."""
        self.unknown: MetatxnError | None = None
        """Why it is not known whether the transaction is committed."""

    @property
    def may_have_landed(self) -> bool:
        """Whether it has departed, and no answer says that it was not carried out."""
        return self.header is not None or self.unknown is not None

    def departs_with(self, entries: Set[EntryName]) -> bool:
        """Whether it departs with a request of these entries, if it is not on its way already."""
        if self.request is None or self.may_have_landed or not self._is_ready(entries):
            return False
        self._departs()
        self.unknown = OutcomeUnknown("the commit that was sent with the last entries has no answer")
        return True

    def answered(self, answer: TransactionHeader | Problem | None) -> None:
        """The broker has answered: without a commit it has tried none."""
        self.unknown = None
        if isinstance(answer, TransactionHeader):
            self.header = answer
        elif answer is not None:
            self.failed(from_problem(answer.model_dump(exclude_none=True)))

    def failed(self, error: MetatxnError) -> None:
        """It was refused, or has no answer."""
        self.unknown = None if error.definite else error

    async def has_landed(self, refusal: MetatxnError) -> bool:
        """Whether the transaction is committed, so that an entry of the request, which was refused now, is durable.
        Raises `OutcomeUnknown` if that cannot be learned."""
        try:
            return (await self._read()).state == "COMMITTED"
        except MetatxnError as error:
            unknown = OutcomeUnknown(f"{refusal.detail}; and whether it is committed is not known: {error.detail}")
            raise unknown from refusal


def _request(writers: list[str] | None) -> CommitRequest | None:
    """None if it does not fit: then a coordinator refuses the commit, or the caller has to learn that it cannot be
    sent."""
    try:
        return CommitRequest.model_validate({"writers": writers}, strict=True)
    except ValidationError:
        return None

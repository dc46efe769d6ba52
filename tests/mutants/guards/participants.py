"""Brokers and their segments."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TEST_OWNERSHIP = "tests/participants/broker/test_ownership.py"
_TEST_ROLLING = "tests/participants/segment/test_rolling.py"

PARTICIPANTS = (
    Mutant(
        "given-up-by-a-deposed-owner",
        "5.2: an owner gives a segment up at its own generation, not at another one's",
        "participants/broker/broker.py",
        "self.store.apply(self.store.batch().check(check).put(check.key, owner.encode()))",
        "self.store.apply(self.store.batch().put(check.key, owner.encode()))",
        tests=(f"{_TEST_OWNERSHIP}::test_what_another_broker_has_taken_is_not_given_up",),
    ),
    Mutant(
        "only-the-newest-ledger-is-read",
        "5.9: sequences are recovered from the first ledger that no snapshot tells of",
        "participants/segment/recovery.py",
        "for ledger in ledgers.sealed if ledger.id > through][:1]",
        "for ledger in ledgers.sealed if ledger.id > through][-1:]",
        tests=(f"{_TEST_ROLLING}::test_an_owner_that_dies_between_two_ledgers_leaves_the_sequences_of_both",),
    ),
)

"""The errors of store calls.

    MetastoreError
    ├── CheckFailed        a check did not hold; nothing happened               definite
    ├── InvalidBatch       malformed, too large, key written twice              definite
    ├── StoreUnavailable   did not reach the store; nothing happened            definite, retriable
    ├── StoreFull          the store refuses writes until there is space        definite, retriable
    ├── StoreInUse         another process holds this embedded store            definite
    ├── StoreUnusable      what was opened is not a store of this version       definite
    │   └── StoreMissing   what was opened to be read is not there yet          definite
    ├── StoreClosed        this client has been closed                          definite
    ├── StoreWentBack      the store is older than what was read from it        definite
    ├── StoreTooNew        its cluster version is of a later release            definite
    └── OutcomeUnknown     sent, no answer: it may or may not have happened     NOT definite

Two facts decide what a caller may do. `retriable`: the same call can succeed later without a change. `definite`: the
operation certainly had no effect. After an error that is not definite, read the records again; never send the write
again blindly.
"""

from __future__ import annotations

from metastore.types import Check, Record, Revision


class MetastoreError(Exception):
    """The root of the tree, which is never raised itself."""

    retriable = False
    definite = True


class CheckFailed(MetastoreError):
    """A check of the batch did not hold. The error carries what the loser needs, so that it need not read again.

    `check` is the first one that failed, in the order of the batch; `current` is the record that made it fail (None:
    the key is absent; for `EmptyRange`: the first record found); `revision` is the store revision of that observation.
    """

    def __init__(self, check: Check, current: Record | None, revision: Revision) -> None:
        super().__init__(f"check failed: {check}, found {current}")
        self.check = check
        self.current = current
        self.revision = revision


class InvalidBatch(MetastoreError):
    """The batch can never be applied: too large for the store, a malformed key, the same key written twice."""


class StoreUnavailable(MetastoreError):
    """The store did not answer, and nothing was sent that could still take effect."""

    retriable = True


class StoreFull(MetastoreError):
    """The store has no space left (etcd: NOSPACE alarm; SQLite: disk full) and accepts no writes until it has."""

    retriable = True


class StoreInUse(MetastoreError):
    """An embedded store is open in another process."""


class StoreUnusable(MetastoreError):
    """What was opened is not a metadata store, was written by a newer version, or cannot give a store's guarantees."""


class StoreMissing(StoreUnusable):
    """There is no store at the place that was opened for reading. Opened to be written, it would be made."""


class StoreClosed(MetastoreError):
    """`close` has been called on this client."""


class StoreWentBack(MetastoreError):
    """The store contains less than this process has read from it, or another incarnation: it was restored from a
    backup.

    What this process knows is no longer valid, so its client refuses every call from then on. Restart the process once
    the store has been recovered (see `metastore.incarnation`).
    """


class StoreTooNew(MetastoreError):
    """The cluster version is above the one that this release speaks, so it cannot read everything that is in the store
    (see `metastore.versions`). Nothing was changed. Start a later release."""


class OutcomeUnknown(MetastoreError):
    """The request was sent and its answer was lost. Read the records to learn what happened."""

    definite = False

"""Records that the whole store has once, and records of which only the keys are checked."""

from __future__ import annotations

from metastore.txn import paths
from metastore.txn.laws.law import MalformedKeyError, Problems, View, decoded, named, parsed_key, parsed_number
from metastore.txn.laws.remedies import RECOVER, RESTORE, RESTORE_AGAIN
from metastore.txn.records.processes import DrainRecord, Incarnation, VersionRecord
from metastore.txn.records.transactions import FirstNumber, GcHorizon
from metastore.types import Record
from metastore.versions import FIRST, SPEAKS, too_new


def sequence_value(value: bytes) -> int:
    first = int(value)
    if first < 1:
        raise ValueError(f"the next free id is {first}")
    return first


def sequence_law(record: Record, view: View) -> Problems:
    parsed_key(record.key, lambda: parsed_number(record.key.removeprefix(paths.ID_SEQUENCES)), paths.id_sequence)
    decoded(record, sequence_value)
    yield from ()


def horizon_law(record: Record, view: View) -> Problems:
    if record.key != paths.GC_HORIZON:
        raise MalformedKeyError(f"expected {paths.GC_HORIZON}")
    horizon = decoded(record, GcHorizon.decode)
    # The horizon is the version of a header that was read before, and later writes have higher versions.
    if not 0 <= horizon.revision < record.version:
        problem = f"the horizon {horizon.revision} lies in the future: it was written at revision {record.version}"
        yield problem, "Every snapshot read would be refused. After a restore into a new store, delete this key."


def first_number_law(record: Record, view: View) -> Problems:
    if record.key != paths.FIRST_NUMBER:
        raise MalformedKeyError(f"expected {paths.FIRST_NUMBER}")
    if decoded(record, FirstNumber.decode).number < 0:
        yield "the number is negative, so counters could give out numbers again", RESTORE


def incarnation_law(record: Record, view: View) -> Problems:
    if record.key != paths.INCARNATION:
        raise MalformedKeyError(f"expected {paths.INCARNATION}")
    incarnation = decoded(record, Incarnation.decode)
    if incarnation.restoring is not None:
        yield f"the backup {incarnation.restoring} is not restored completely", RESTORE_AGAIN
    elif incarnation.recovering:
        yield "the recovery of a restored store has begun but has not ended", RECOVER
    elif incarnation.restored_how is not None:
        yield f"the store was restored from a backup: {incarnation.restored_how}", RECOVER


def version_law(record: Record, view: View) -> Problems:
    if record.key != paths.VERSION:
        raise MalformedKeyError(f"expected {paths.VERSION}")
    version = decoded(record, VersionRecord.decode).version
    if version < FIRST:
        yield f"there is no cluster version {version}", RESTORE
    elif version > SPEAKS:
        yield too_new(version), "Check the store with a later release; what this one says about it may be wrong."


def drain_law(record: Record, view: View) -> Problems:
    named(record.key, paths.drain_of_storage)
    decoded(record, DrainRecord.decode)
    yield from ()


def by_key_only(record: Record, view: View) -> Problems:
    if "//" in record.key or record.key.endswith("/"):
        raise MalformedKeyError("a part of it is empty")
    yield from ()

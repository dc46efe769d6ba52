"""What a store means, as plainly as it can be said: a dictionary, and loops over all of it.

Nothing of the product's own logic is used but its nouns. Batches for the model carry no indexes; the entries are
derived anew from the records after every write. A version is the number of the write.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metastore.types import Absent, AtVersion, Batch, Check, EmptyRange, FirstVersion, Record
from tests.metastore.factories import BY_COLOR, ITEMS


@dataclass(frozen=True)
class Lost:
    """Which check of the batch failed, by its place, and the record that it met."""

    place: int
    current: Record | None


@dataclass
class Model:
    keeps_entries: bool
    records: dict[str, Record] = field(default_factory=dict)
    writes: int = 0

    def apply(self, batch: Batch) -> Lost | None:
        for place, check in enumerate(batch.checks):
            holds, current = self._look(check)
            if not holds:
                return Lost(place, current)
        before = dict(self.records)
        number = self.writes + 1
        for key in before:
            if key in batch.deletes or any(start <= key < end for start, end in batch.range_deletes):
                del self.records[key]
        for key, value in batch.puts.items():
            self.records[key] = Record(key, value, number, first=key not in before)
        if self.keeps_entries:
            self._derive_entries(number)
        if self.records != before:
            self.writes = number
        return None

    def put_sequential(self, prefix: str, counter_key: str, value: bytes) -> str | Lost:
        """The name given, or what stood in its place."""
        counter = self.records.get(counter_key)
        number = int(counter.value) if counter else 1
        key = f"{prefix}{number:020}"
        if key in self.records:
            return Lost(0, self.records[key])
        self.apply(Batch().put(counter_key, b"%d" % (number + 1)).put(key, value))
        return key

    def lease_ids(self, key: str, count: int) -> range:
        first = int(self.records[key].value) if key in self.records else 1
        self.apply(Batch().put(key, b"%d" % (first + count)))
        return range(first, first + count)

    def range(self, start: str, end: str, reverse: bool = False) -> list[Record]:
        found = [record for key, record in self.records.items() if start <= key < end]
        return sorted(found, key=lambda record: record.key, reverse=reverse)

    def entries(self) -> list[str]:
        items = [record for key, record in self.records.items() if key.startswith(ITEMS)]
        return sorted({entry for item in items for entry in BY_COLOR.entries(item.key, item.value)})

    def _derive_entries(self, number: int) -> None:
        said = {BY_COLOR.root + entry for entry in self.entries()}
        for key in [key for key in self.records if key.startswith(BY_COLOR.root) and key not in said]:
            del self.records[key]
        for key in said - self.records.keys():
            self.records[key] = Record(key, b"", number, first=True)

    def _look(self, check: Check) -> tuple[bool, Record | None]:
        """Whether it holds, and the record it met."""
        match check:
            case Absent(key):
                return key not in self.records, self.records.get(key)
            case AtVersion(key, version):
                current = self.records.get(key)
                return current is not None and current.version == version, current
            case FirstVersion(key):
                current = self.records.get(key)
                return current is not None and current.first, current
            case EmptyRange(start, end):
                found = self.range(start, end)
                return not found, found[0] if found else None

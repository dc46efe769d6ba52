"""Goal: no name a user can think of changes which records are found, in any backend.

Method: records under keys built from hostile names, looked up by prefix: each prefix finds its own and nothing else.
"""

from __future__ import annotations

import asyncio

from metastore import keys
from metastore.api import MetadataStore

NAMES = [
    "s",
    "s1",
    "s/1",
    "s%2F1",
    "",
    "%",
    ".",
    "..",
    "...",
    "/",
    "//",
    " ",
    "a b",
    "a+b",
    "a&b=c",
    "*",
    "[x]",
    "'; DROP TABLE records; --",
    "%s",
    "_",
    "été",
    "日本語",
    "😀",
    "\uffff",
    "a:b",
    "segment://t/n/x/1",
    "segment://t/n/x/10",
    "S",
]


async def test_every_name_finds_its_own_records_only(store: MetadataStore) -> None:
    await asyncio.gather(
        *(
            store.apply(store.batch().create(f"/sub/{keys.escape(name)}/{keys.escape(other)}", b""))
            for name in NAMES
            for other in NAMES
        )
    )
    for name in NAMES:
        found = await store.scan(f"/sub/{keys.escape(name)}/")
        parts = [keys.split(record.key) for record in found.records]
        assert {part[1] for part in parts} == {name}
        assert sorted(part[2] for part in parts) == sorted(NAMES)


async def test_numbers_are_found_in_numeric_order(store: MetadataStore) -> None:
    numbers = [0, 1, 2, 9, 10, 99, 100, 2**31, 2**63, 10**19]
    batch = store.batch()
    for number in reversed(numbers):
        batch.put(f"/n/{keys.number(number)}", b"")
    await store.apply(batch)
    assert [int(record.key.rpartition("/")[2]) for record in (await store.scan("/n/")).records] == numbers
    upto = await store.range("/n/", f"/n/{keys.number(100)}")
    assert [int(record.key.rpartition("/")[2]) for record in upto.records] == [0, 1, 2, 9, 10, 99]

"""Goal: a real S3 server keeps what object ledgers require of one (`participants.ledger.bucket`): of the puts that
create one name exactly one takes place, however many there are at once, and what was acknowledged is read and listed at
once.

Method: `make object-store-test` starts the server that S3_SERVER names, and runs this beside the contract of ledgers.
It is not part of `make test`: that a stand-in in one process is free of races says nothing about a server.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from participants.ledger.bucket import Bucket
from tests.servers import S3Server

ROUNDS = 50
WRITERS = 16


async def created(bucket: Bucket, name: str, content: bytes) -> bool:
    try:
        await bucket.create(name, content)
    except FileExistsError:
        return False
    return True


def test_the_server_is_the_one_that_was_named(s3: S3Server) -> None:
    """Else all of this could quietly test the stand-in."""
    assert s3.command[0] == os.environ["S3_SERVER"]


async def test_of_puts_that_create_one_name_at_once_one_takes_place(s3: S3Server, tmp_path: Path) -> None:
    buckets = [Bucket.open(f"s3://{S3Server.BUCKET}{tmp_path}") for _ in range(WRITERS)]
    for number in range(ROUNDS):
        name = f"race/{number:03}"
        done = await asyncio.gather(*(created(each, name, b"%d" % at) for at, each in enumerate(buckets)))
        assert done.count(True) == 1, number
        assert await buckets[0].get(name) == b"%d" % done.index(True)
        assert not await created(buckets[0], name, b"later")
    assert list(await buckets[0].sizes("race")) == [f"race/{number:03}" for number in range(ROUNDS)]


async def test_a_name_that_was_deleted_is_free_and_more_than_a_page_is_listed(s3: S3Server, tmp_path: Path) -> None:
    """A page of a listing has a thousand names."""
    bucket = Bucket.open(f"s3://{S3Server.BUCKET}{tmp_path}")
    names = [f"many/{number:04}" for number in range(1_100)]
    for at in range(0, len(names), 100):
        assert all(await asyncio.gather(*(created(bucket, name, b"12345") for name in names[at : at + 100])))
    assert await bucket.sizes("many") == dict.fromkeys(names, 5)
    await bucket.delete(names[:600])
    assert list(await bucket.sizes("many")) == names[600:]
    assert await created(bucket, names[0], b"again")
    assert await bucket.get_range(names[0], 1, 3) == b"ga"

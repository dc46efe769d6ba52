"""Goal: entries that travel together are treated as if each had travelled alone.

Method: requests as they travel. What one of several entries is answered is compared with what it is answered in a
request of its own; and one of them is at fault while the others are not.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from functools import partial
from typing import Any

import httpx
import pytest

from coordinator.local import LocalCommits
from coordinator.transactions import Transactions
from metastore.errors import OutcomeUnknown, StoreUnavailable
from metatxn.service.security.principal import ANYONE, Principal
from metatxn.wire.broker import BATCH_MEDIA_TYPE, BYTES_MEDIA_TYPE, MESSAGES_MEDIA_TYPE
from metatxn.wire.coordinator import CommitRequest, TransactionHeader
from metatxn.wire.entry_groups import MAX_ENTRIES, MEDIA_TYPE, pack_entries
from metatxn.wire.errors import ErrorCode
from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.ids import TxnId
from tests.participants.api.test_rest import UNKNOWN_TXN, append, assert_problem, enc, read
from tests.participants.broker.process import BrokerProcess
from tests.participants.segment.world import World


def head(segment: str, size: int = 1, sequence: int = 0, **members: Any) -> dict[str, Any]:
    return {"segment": segment, "media_type": BYTES_MEDIA_TYPE, "size": size, "sequence": sequence, **members}


def body_of(*entries: tuple[str, bytes], sequence: int = 0) -> bytes:
    return pack_entries(
        (segment, Entry(payload, PayloadKind.BYTES, 1, None, None, "p", sequence)) for segment, payload in entries
    )


def in_json(value: object) -> bytes:
    return json.dumps(value).encode()


def with_head(text: bytes, payloads: bytes = b"") -> bytes:
    return struct.pack("<I", len(text)) + text + payloads


async def send_body(process: BrokerProcess, txn: TxnId | str, body: bytes) -> httpx.Response:
    headers = {"content-type": MEDIA_TYPE}
    return await process.http.post(f"/v1/txns/{txn}/entries", content=body, headers=headers)


async def send(process: BrokerProcess, txn: TxnId, *entries: tuple[str, bytes], sequence: int = 0) -> list[Any]:
    answer = await send_body(process, txn, body_of(*entries, sequence=sequence))
    assert answer.status_code == 200, answer.text
    found: list[Any] = answer.json()["outcomes"]
    return found


async def test_entries_for_several_segments_become_visible_together(process: BrokerProcess, world: World) -> None:
    segments = [*await process.create("a", 2), *await process.create("b")]
    txn = await world.begin()
    outcomes = await send(process, txn, *[(segment, segment.encode()) for segment in segments])
    assert [outcome["duplicate"] for outcome in outcomes] == [False] * 3
    assert [await read(process, segment) for segment in segments] == [[], [], []]
    await world.commit(txn)
    for segment in segments:
        assert await read(process, segment, wait_ms=5_000) == [segment]


@pytest.mark.parametrize("together", [True, False])
async def test_170_what_is_vouched_for_is_appended_without_the_store(
    process: BrokerProcess, world: World, together: bool
) -> None:
    one, two = await process.create("t", 2)
    txn = await world.begin()
    await send(process, txn, (one, b"1"), (two, b"2"))
    world.store.away = StoreUnavailable("gone")
    if together:
        entries = [
            Entry(b"x", PayloadKind.BYTES, 1, None, None, "p", 1, before_commit=vouched) for vouched in (True, False)
        ]
        answer = await send_body(process, txn, pack_entries(zip((one, two), entries, strict=True)))
        found = answer.json()["outcomes"]
    else:
        alone = partial(append, process, body=b"x", txn_id=str(txn), producer="p", sequence=1)
        found = [(await alone(segment=one, before_commit="true")).json(), (await alone(segment=two)).json()]
    world.store.away = None
    assert found[0]["duplicate"] is False
    assert found[1]["code"] == ErrorCode.STORE_UNAVAILABLE
    assert await read(process, one, isolation="read_uncommitted") == ["1", "x"]


async def test_an_entry_that_was_appended_is_recognized_in_either_form(process: BrokerProcess, world: World) -> None:
    one, two = await process.create("t", 2)
    txn = await world.begin()
    first = await send(process, txn, (one, b"1"), (two, b"2"))
    again = await send(process, txn, (two, b"2"), (one, b"1"))
    assert [outcome["position"] for outcome in again] == [outcome["position"] for outcome in reversed(first)]
    assert [outcome["duplicate"] for outcome in again] == [True, True]
    alone = (await append(process, one, b"1", txn_id=str(txn), producer="p", sequence=0)).json()
    assert alone == first[0] | {"duplicate": True}
    await world.commit(txn)
    assert await read(process, one, wait_ms=5_000) == ["1"]


async def test_two_entries_of_one_segment_in_a_group_are_one_if_their_sequence_is(
    process: BrokerProcess, world: World
) -> None:
    (segment,) = await process.create("t")
    txn = await world.begin()
    outcomes = await send(process, txn, (segment, b"x"), (segment, b"x"))
    assert {outcome["position"] for outcome in outcomes} == {outcomes[0]["position"]}
    await world.commit(txn)
    assert await read(process, segment, wait_ms=5_000) == ["x"]


async def test_one_entry_is_refused_and_the_others_are_appended(process: BrokerProcess, world: World) -> None:
    one, two = await process.create("t", 2)
    (sealed,) = await process.create("u")
    await process.http.post(f"/v1/segments/{enc(sealed)}/seal", json={})
    txn = await world.begin()
    outcomes = await send(process, txn, (one, b"1"), (sealed, b"no"), ("segment://no/such/one/0000-ffff-0", b"no"))
    alone = [
        await append(process, segment, b"no", txn_id=str(txn), producer="p", sequence=0)
        for segment in (sealed, "segment://no/such/one/0000-ffff-0")
    ]
    assert outcomes[1:] == [answer.json() for answer in alone]
    assert [outcome["code"] for outcome in outcomes[1:]] == [ErrorCode.SEGMENT_SEALED, ErrorCode.NOT_FOUND]
    assert (await send(process, txn, (two, b"2")))[0]["duplicate"] is False
    await world.commit(txn)
    assert [await read(process, segment, wait_ms=5_000) for segment in (one, two)] == [["1"], ["2"]]


async def test_nothing_is_announced_where_nothing_is_taken(process: BrokerProcess, world: World) -> None:
    """On sealed segments, and those of other brokers; what is named twice counts once."""
    (one,), (sealed,) = await process.create("t"), await process.create("u")
    await process.http.post(f"/v1/segments/{enc(sealed)}/seal", json={})
    txn = str(await world.begin())
    body = {"txn_ids": [txn, txn], "segments": [one, sealed, one, "segment://no/such/one/0000-ffff-0"]}
    assert (await process.http.post("/v1/intents", json=body)).json() == {"stored": 1}
    refused: list[dict[str, Any]]
    refused = [{"txn_ids": []}, {"txn_ids": ["x"]}, {"segments": []}, {"segments": [one] * 17}, {"more": 1}]
    for wrong in refused:
        answer = await process.http.post("/v1/intents", json=body | wrong)
        (name,) = wrong
        assert answer.status_code == 422 and answer.json()["field"].startswith(name), answer.text


async def test_each_entry_belongs_to_its_writer(process: BrokerProcess, world: World) -> None:
    one, two = await process.create("t", 2)
    txn = await world.begin()
    entries = [
        (segment, Entry(writer.encode(), PayloadKind.BYTES, 1, None, writer, None, 0))
        for segment, writer in ((one, "a"), (one, "b"), (two, "b"), (two, "a"))
    ]
    outcomes = (await send_body(process, txn, pack_entries(entries))).json()["outcomes"]
    assert [outcome["duplicate"] for outcome in outcomes] == [False] * 4
    await world.commit(txn, writers=["a"])
    assert [await read(process, segment, wait_ms=5_000) for segment in (one, two)] == [["a"], ["a"]]


async def test_nothing_enters_a_transaction_that_is_decided(process: BrokerProcess, world: World) -> None:
    segments = await process.create("t", 2)
    txn = await world.begin()
    await world.abort(txn)
    outcomes = await send(process, txn, *[(segment, b"late") for segment in segments])
    alone = await append(process, segments[0], b"late", txn_id=str(txn), producer="p", sequence=0)
    assert outcomes[0] == alone.json()
    assert [outcome["code"] for outcome in outcomes] == [ErrorCode.TXN_CONFLICT] * 2
    unknown = await send(process, TxnId.parse(UNKNOWN_TXN), *[(segment, b"late") for segment in segments])
    assert [outcome["code"] for outcome in unknown] == [ErrorCode.TXN_NOT_FOUND] * 2
    assert [await read(process, segment, isolation="read_uncommitted") for segment in segments] == [[], []]


async def test_a_lost_answer_of_the_store_is_that_of_one_entry(process: BrokerProcess, world: World) -> None:
    segments = await process.create("t", 2)
    txn = await world.begin()
    assert len(await send(process, txn, *[(segment, b"1") for segment in segments])) == 2
    world.store.away = StoreUnavailable("the store is away")
    try:
        outcomes = await send(process, txn, *[(segment, b"2") for segment in segments], sequence=1)
    finally:
        world.store.away = None
    assert {outcome["code"] for outcome in outcomes} == {ErrorCode.STORE_UNAVAILABLE}
    assert all(outcome["definite"] for outcome in outcomes)


async def test_the_types_of_entries_are_told_for_each(process: BrokerProcess, world: World) -> None:
    """And so is a body that is not of its type."""
    one, two = await process.create("t", 2)
    txn = await world.begin()
    payload = b'[{"value":1},{"value":2}]'
    heads = [
        head(one, len(payload), media_type=MESSAGES_MEDIA_TYPE, count=2),
        head(two, len(payload), media_type=MESSAGES_MEDIA_TYPE, count=3),
        head(two, len(payload), 1, media_type=BATCH_MEDIA_TYPE),
    ]
    body = with_head(in_json({"entries": heads}), payload * 3)
    outcomes = (await send_body(process, txn, body)).json()["outcomes"]
    assert "position" in outcomes[0]
    assert [(outcome["code"], outcome["field"]) for outcome in outcomes[1:]] == [
        (ErrorCode.INVALID_ARGUMENT, "count"),
        (ErrorCode.INVALID_ARGUMENT, "body"),
    ]


SEGMENT = "segment://public/default/t/0000-ffff-0"
WRONG = {
    "nothing": (b"", "body"),
    "half a length": (b"\0\0\0", "body"),
    "a head beyond the end": (struct.pack("<I", 3) + b"{}", "body"),
    "no JSON": (with_head(b"{"), "body"),
    "not UTF-8": (with_head(b'{"entries": "\xff"}'), "body"),
    "no entries": (with_head(b'{"entries": []}'), "entries"),
    "too many entries": (with_head(in_json({"entries": [head(SEGMENT, 0)] * (MAX_ENTRIES + 1)})), "entries"),
    "no sequence": (with_head(in_json({"entries": [head(SEGMENT) | {"sequence": None}]}), b"x"), "entries.0.sequence"),
    "a sequence as text": (
        with_head(in_json({"entries": [head(SEGMENT) | {"sequence": "1"}]}), b"x"),
        "entries.0.sequence",
    ),
    "a sequence below zero": (with_head(in_json({"entries": [head(SEGMENT, 1, -1)]}), b"x"), "entries.0.sequence"),
    "no type": (
        with_head(in_json({"entries": [{"segment": SEGMENT, "size": 1, "sequence": 0}]}), b"x"),
        "entries.0.media_type",
    ),
    "a field that is not known": (with_head(in_json({"entries": [head(SEGMENT, colour=1)]}), b"x"), "entries.0.colour"),
    "an empty producer": (with_head(in_json({"entries": [head(SEGMENT, producer="")]}), b"x"), "entries.0.producer"),
    "a control character": (with_head(in_json({"entries": [head("a\0")]}), b"x"), "entries.0.segment"),
    "a payload that ends early": (with_head(in_json({"entries": [head(SEGMENT, 2)]}), b"x"), "body"),
    "a payload too much": (with_head(in_json({"entries": [head(SEGMENT, 1)]}), b"xy"), "body"),
    "two payloads for three": (with_head(in_json({"entries": [head(SEGMENT)] * 3}), b"xy"), "body"),
    "a negative size": (with_head(in_json({"entries": [head(SEGMENT, -1), head(SEGMENT, 2)]}), b"x"), "entries.0.size"),
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_malformed_group_changes_nothing(process: BrokerProcess, world: World, what: str) -> None:
    (segment,) = await process.create("t")
    assert segment == SEGMENT
    txn = await world.begin()
    body, field = WRONG[what]
    assert_problem(await send_body(process, txn, body), ErrorCode.INVALID_ARGUMENT, field)
    assert await read(process, segment, isolation="read_uncommitted") == []
    assert await world.operations(txn) == []


async def test_the_id_of_the_transaction_is_checked(process: BrokerProcess) -> None:
    assert_problem(await send_body(process, "1", body_of((SEGMENT, b"x"))), ErrorCode.INVALID_ARGUMENT, "txn_id")


# -- with a commit ------------------------------------------------------------------------------------------------


async def send_with_commit(
    process: BrokerProcess, txn: TxnId, *segments: str, writers: list[str] | None = None, writer: str | None = None
) -> Any:
    """What a request with an entry for each segment, and with a commit, is answered."""
    entries = [(segment, Entry(b"x", PayloadKind.BYTES, 1, None, writer, "p", 0)) for segment in segments]
    answer = await send_body(process, txn, pack_entries(entries, CommitRequest(writers=writers)))
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def transactions(process: BrokerProcess, world: World) -> Transactions:
    """What commits in the process of the broker."""
    transactions = Transactions(world.store, world.now_ms)
    process.broker.committer = LocalCommits(transactions)
    return transactions


async def test_171_the_commit_follows_the_entries(
    process: BrokerProcess, world: World, transactions: Transactions
) -> None:
    one, two = await process.create("t", 2)
    txn = await world.begin()
    answer = await send_with_commit(process, txn, one, two)
    assert [outcome["duplicate"] for outcome in answer["outcomes"]] == [False] * 2
    assert (answer["commit"]["state"], answer["commit"]["txn_id"]) == ("COMMITTED", str(txn))
    for segment in (one, two):
        assert await read(process, segment, wait_ms=5_000) == ["x"]


async def test_171_only_the_named_writers_count(
    process: BrokerProcess, world: World, transactions: Transactions
) -> None:
    one, two = await process.create("t", 2)
    txn = await world.begin()
    await send(process, txn, (one, b"of nobody"))
    answer = await send_with_commit(process, txn, two, writers=["a"], writer="b")
    assert answer["commit"]["writers"] == ["a"]
    assert await read(process, one, wait_ms=5_000) == ["of nobody"]
    assert await read(process, two) == []


class _Looking:
    """Commits nothing, but looks at what is durable at that moment."""

    def __init__(self, process: BrokerProcess, *segments: str) -> None:
        self._process, self._segments = process, segments
        self.seen: list[list[str]] = []
        self.counts = dict[str, int]

    async def commit(
        self, txn_id: TxnId, writers: Iterable[str] | None = None, *, caller: Principal = ANYONE
    ) -> TransactionHeader:
        uncommitted = partial(read, self._process, isolation="read_uncommitted")
        self.seen = [await uncommitted(segment) for segment in self._segments]
        raise OutcomeUnknown("the reply was lost")


async def test_171_it_is_tried_once_every_entry_is_durable_and_its_problem_is_told(
    process: BrokerProcess, world: World
) -> None:
    one, two = await process.create("t", 2)
    process.broker.committer = looking = _Looking(process, one, two)
    answer = await send_with_commit(process, await world.begin(), one, two)
    assert looking.seen == [["x"], ["x"]]
    assert (answer["commit"]["code"], answer["commit"]["definite"]) == (ErrorCode.OUTCOME_UNKNOWN, False)
    assert all("position" in outcome for outcome in answer["outcomes"])


async def test_171_nothing_is_committed_if_an_entry_is_refused(
    process: BrokerProcess, world: World, transactions: Transactions
) -> None:
    (segment,) = await process.create("t")
    txn = await world.begin()
    answer = await send_with_commit(process, txn, segment, segment.replace("/t/", "/elsewhere/"))
    assert [outcome.get("code") for outcome in answer["outcomes"]] == [None, ErrorCode.NOT_FOUND]
    assert "commit" not in answer
    assert (await transactions.get(txn))["state"] == "OPEN"


async def test_171_a_broker_that_commits_nothing_says_nothing(process: BrokerProcess, world: World) -> None:
    (segment,) = await process.create("t")
    txn = await world.begin()
    assert "commit" not in await send_with_commit(process, txn, segment)
    assert (await Transactions(world.store, world.now_ms).get(txn))["state"] == "OPEN"


async def test_171_entries_that_were_there_already_count(
    process: BrokerProcess, world: World, transactions: Transactions
) -> None:
    one, two = await process.create("t", 2)
    txn = await world.begin()
    first = await send(process, txn, (one, b"x"), (two, b"x"))
    answer = await send_with_commit(process, txn, one, two)
    assert answer["outcomes"] == [outcome | {"duplicate": True} for outcome in first]
    assert answer["commit"]["state"] == "COMMITTED"


async def test_171_what_does_not_fit_has_no_effect(
    process: BrokerProcess, world: World, transactions: Transactions
) -> None:
    (segment,) = await process.create("t")
    txn = await world.begin()
    for commit, field in (({"writers": "a"}, "commit.writers"), ({"force": True}, "commit.force"), (1, "commit")):
        text = in_json({"entries": [head(segment)], "commit": commit})
        answer = await send_body(process, txn, with_head(text, b"x"))
        assert_problem(answer, ErrorCode.INVALID_ARGUMENT, field)
    assert await read(process, segment, isolation="read_uncommitted") == []
    assert (await transactions.get(txn))["state"] == "OPEN"

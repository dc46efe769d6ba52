"""Goal: segments are split, merged and sealed under open transactions and live writers: nothing is lost, doubled or
out of order, and one who dies in the middle leaves something that is finished or given up.

Method: a broker in-process, its HTTP paths, a store that dies after every number of writes. Scenarios 89-91; DESIGN
§5.13, §5.14.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metatxn.wire import errors
from metatxn.wire.errors import ErrorCode
from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.ids import TxnId
from participants.segment.dedup import AppendedBefore, Scope
from participants.topic.layout import CLAIM_PATIENCE_MS
from tests.participants.broker.process import BrokerProcess
from tests.participants.broker.stories import (
    HIGH,
    LOW,
    Death,
    assert_lawful,
    browse,
    either,
    post,
    quoted,
    record_of,
    send,
)
from tests.participants.devices import on_both, on_local_files
from tests.participants.reconciling import reconcile, reconcile_subscribed
from tests.participants.segment.faulty_store import INTENT, Fault, puts
from tests.participants.segment.world import World, committed, entry, materialized, publish, released, sending

PARENT = "segment://public/default/t/0000-ffff-0"
CHILDREN = ["segment://public/default/t/0000-7fff-1", "segment://public/default/t/8000-ffff-2"]
MERGED = "segment://public/default/t/0000-ffff-3"
SEAL = puts(paths.segment(CHILDREN[0]))


async def ended(process: BrokerProcess, world: World, txn: Any, commit: bool) -> None:
    await (world.commit(txn) if commit else world.abort(txn))
    for segment in process.broker.served.values():
        await materialized(segment, txn)


@pytest.mark.parametrize("commit", [True, False])
async def test_89_90_a_transaction_writes_on_while_its_segment_is_split(
    process: BrokerProcess, world: World, commit: bool
) -> None:
    (parent,) = await process.create("t")
    txn = await world.begin()
    await send(process, LOW, "before", txn)
    assert await post(process, parent, "split") == CHILDREN
    for key in (LOW, HIGH):
        await send(process, key, f"after {key}", txn)
    await send(process, LOW, "sentinel")
    assert await browse(process) == []
    await ended(process, world, txn, commit)
    expected = ["before", f"after {LOW}", f"after {HIGH}", "sentinel"] if commit else ["sentinel"]
    assert sorted(await browse(process)) == sorted(expected)
    assert await world.operations(txn) == []
    process = await process.crash()
    assert sorted(await browse(process)) == sorted(expected)
    await process.stop()
    await assert_lawful(world)


@pytest.mark.parametrize("commit", [True, False])
async def test_91_a_transaction_over_a_merge(process: BrokerProcess, world: World, commit: bool) -> None:
    (parent,) = await process.create("t")
    one, other = await post(process, parent, "split")
    txn = await world.begin()
    for key in (LOW, HIGH):
        await send(process, key, f"before {key}", txn)
    (child,) = await post(process, other, "merge", **{"with": one})
    assert child == MERGED
    assert await post(process, one, "merge", **{"with": other}) == [child], "merging again changes nothing"
    await send(process, LOW, "after", txn)
    await send(process, HIGH, "sentinel")
    await ended(process, world, txn, commit)
    expected = [f"before {LOW}", f"before {HIGH}", "after", "sentinel"] if commit else ["sentinel"]
    assert sorted(await browse(process)) == sorted(expected)
    assert await world.operations(txn) == []
    assert (await record_of(world, child)).parents == (one, other)
    await assert_lawful(world)


async def test_readers_go_on_at_the_children_of_a_segment_whose_last_ledger_is_empty(process: BrokerProcess) -> None:
    """It had just rolled when it was split. Found by chaos with small ledgers."""
    (name,) = await process.create("t")
    parent = await process.broker.segment(name)
    parent.max_ledger_bytes = 1
    await send(process, LOW, "before")
    assert parent._rolling is not None
    await parent._rolling
    await post(process, name, "split")
    await send(process, LOW, "after")
    assert await browse(process) == ["before", "after"]


async def test_a_keys_messages_are_read_in_the_order_written_across_a_split_and_a_merge(process: BrokerProcess) -> None:
    (parent,) = await process.create("t")
    await send(process, LOW, 0)
    one, other = await post(process, parent, "split")
    await send(process, LOW, 1)
    await send(process, HIGH, "x")
    await post(process, one, "merge", **{"with": other})
    await send(process, LOW, 2)
    assert [value for value in await browse(process, max=1) if value != "x"] == [0, 1, 2]


async def test_a_child_is_not_read_before_what_its_parent_still_holds_back(
    process: BrokerProcess, world: World
) -> None:
    (parent,) = await process.create("t")
    txn = await world.begin()
    await send(process, LOW, "first", txn)
    await post(process, parent, "split")
    await send(process, LOW, "second")
    assert await browse(process) == []
    await ended(process, world, txn, True)
    assert await browse(process) == ["first", "second"]


async def test_a_waiting_reader_follows_into_the_children(process: BrokerProcess) -> None:
    (parent,) = await process.create("t")
    await send(process, LOW, "first")
    page = (await process.http.get("/v1/topics/t/messages")).json()
    waiting = asyncio.create_task(
        process.http.get("/v1/topics/t/messages", params={"after": page["next"], "wait_ms": 60_000})
    )
    await post(process, parent, "split")
    await send(process, LOW, "second")
    assert [message["value"] for message in (await waiting).json()["messages"]] == ["second"]


@on_both
async def test_nobody_is_sent_to_children_that_are_being_opened(process: BrokerProcess, world: World) -> None:
    """Anyone who waits or comes while they are opened reads on in the parent, and is not told to come again."""
    (parent,) = await process.create("t")
    await send(process, LOW, "first")
    page = (await process.http.get("/v1/topics/t/messages")).json()
    opening = world.store.fault(Fault(puts(paths.segment_owner(CHILDREN[1])), hold_before=True))
    split = asyncio.create_task(post(process, parent, "split"))
    await opening.reached.wait()
    while CHILDREN[0] not in process.broker.served:
        await asyncio.wait(process.broker.changes(), return_when=asyncio.FIRST_COMPLETED)
    waiting = asyncio.create_task(
        process.http.get("/v1/topics/t/messages", params={"after": page["next"], "wait_ms": 60_000})
    )
    assert await browse(process) == ["first"]
    (await process.broker.segment(parent)).changed.notify()
    assert await browse(process) == ["first"]
    assert not waiting.done()
    opening.go.set()
    await split
    await send(process, LOW, "second")
    assert [message["value"] for message in (await waiting).json()["messages"]] == ["second"]


async def test_a_sealed_segment_says_who_took_over_and_stays_readable(process: BrokerProcess) -> None:
    (name,) = await process.create("t")
    parent = await process.broker.segment(name)
    await publish(parent, "x")
    await post(process, name, "split")
    with pytest.raises(errors.MetatxnError) as error:
        await publish(parent, "y")
    assert error.value.code == ErrorCode.SEGMENT_SEALED and error.value.members["children"] == CHILDREN
    assert await committed(parent) == ["x"]
    page = await process.http.get(f"/v1/segments/{quoted(name)}/entries", params={"after": "1:0", "wait_ms": 60_000})
    assert page.headers["Metatxn-End"] == "true", "nobody waits for what cannot come"
    process = await process.crash()
    assert await committed(await process.broker.segment(name)) == ["x"]
    await process.stop()


async def test_a_segment_sealed_for_good_answers_so(process: BrokerProcess) -> None:
    (name,) = await process.create("t")
    await send(process, LOW, "x")
    assert await post(process, name, "seal") == []
    assert await post(process, name, "seal") == [], "sealing again changes nothing"
    refused = await process.http.post("/v1/topics/t/messages", json={"messages": [{"key": LOW, "value": 1}]})
    assert (refused.status_code, refused.json()["code"], refused.json()["children"]) == (409, "SEGMENT_SEALED", [])
    assert "sealed for good" in refused.json()["action"], "not to children that there are none of"
    assert (await process.http.post(f"/v1/segments/{quoted(name)}/split", json={})).status_code == 409
    process = await process.crash()
    assert await browse(process) == ["x"]
    await process.stop()


async def test_an_empty_segment_is_split_and_opened_again(process: BrokerProcess) -> None:
    (name,) = await process.create("t")
    await post(process, name, "split", at=1)
    assert [
        (await record_of(process.world, child)).range for child in (await record_of(process.world, name)).children
    ] == [(0, 0), (1, 0xFFFF)]
    process = await process.crash()
    assert process.broker.not_ready == {}
    await send(process, LOW, "x")
    assert await browse(process) == ["x"]
    await process.stop()


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("split", {"at": 0}, "at"),
        ("split", {"at": 0x10000}, "at"),
        ("merge", {"with": PARENT}, "with"),
        ("merge", {}, "with"),
        ("seal", {"children": []}, "children"),
        ("trim", {"before": "x"}, "before"),
        ("trim", {"before": "99:0"}, "before"),
    ],
)
async def test_nonsense_is_refused_by_name_and_changes_nothing(
    process: BrokerProcess, verb: str, body: dict[str, Any], field: str
) -> None:
    (name,) = await process.create("t")
    answer = await process.http.post(f"/v1/segments/{quoted(name)}/{verb}", json=body)
    assert (answer.status_code, answer.json()["field"].removeprefix("body.")) == (422, field), answer.text
    await send(process, LOW, "x")
    assert (await record_of(process.world, name)).state == "active"


async def test_a_split_at_another_place_than_it_was_is_refused(process: BrokerProcess) -> None:
    (name,) = await process.create("t")
    children = await post(process, name, "split", at=16)
    assert await post(process, name, "split", at=16) == children
    assert await post(process, name, "split") == children
    answer = await process.http.post(f"/v1/segments/{quoted(name)}/split", json={"at": 17})
    assert (answer.status_code, answer.json()["children"]) == (409, children)


# -- what is in flight -------------------------------------------------------------------------------------------------


async def test_what_was_admitted_before_the_seal_lands_in_the_parent_and_nothing_after(
    process: BrokerProcess, world: World
) -> None:
    """The intent is on its way while the seal begins; what comes then waits, and is told about the children."""
    (name,) = await process.create("t")
    parent = await process.broker.segment(name)
    txn = await world.begin()
    held = world.store.fault(Fault(INTENT, hold_after=True))
    admitted = sending(parent, "in", txn)
    await held.reached.wait()
    split = asyncio.create_task(post(process, name, "split"))
    while not parent.publisher.closing:
        await asyncio.sleep(0)
    late = sending(parent, "late", txn)
    await asyncio.sleep(0)
    held.go.set()
    await admitted
    assert await split == CHILDREN
    with pytest.raises(errors.MetatxnError) as error:
        await late
    assert error.value.code == ErrorCode.SEGMENT_SEALED
    await ended(process, world, txn, True)
    assert await committed(parent) == ["in"]


@on_both
@pytest.mark.parametrize("commit", [True, False])
async def test_89_91_appends_flow_while_their_segment_is_split_and_merged_again(
    process: BrokerProcess, world: World, commit: bool
) -> None:
    """Plain ones and those of a transaction, in both halves: each is there once, in the order in which it was sent."""
    (parent,) = await process.create("t")
    txn = await world.begin()
    sent: dict[tuple[str, TxnId | None], list[str]] = {
        (key, inside): [] for key in (LOW, HIGH) for inside in (None, txn)
    }
    over = asyncio.Event()

    async def produce(key: str, inside: TxnId | None) -> None:
        while not over.is_set():
            value = f"{key} {inside} {len(sent[key, inside])}"
            body = {"messages": [{"key": key, "value": value}]}
            query = {"txn_id": str(inside)} if inside else {}
            answer = await process.http.post("/v1/topics/t/messages", json=body, params=query)
            if answer.status_code == 200:
                sent[key, inside].append(value)
            else:
                assert (answer.status_code, answer.json()["definite"]) == (503, True), answer.text
                await asyncio.sleep(0)

    async def more() -> None:
        """Until each of them has sent something that it began after now."""
        enough = {producer: len(values) + 2 for producer, values in sent.items()}
        while any(len(sent[producer]) < least for producer, least in enough.items()):
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as producers:
        for key, inside in sent:
            producers.create_task(produce(key, inside))
        await more()
        one, other = await post(process, parent, "split")
        await more()
        await post(process, one, "merge", **{"with": other})
        await more()
        over.set()
    await ended(process, world, txn, commit)
    found = await browse(process)
    for (key, inside), values in sent.items():
        expected = values if commit or inside is None else []
        assert [value for value in found if value.startswith(f"{key} {inside} ")] == expected
    assert await world.operations(txn) == []
    await assert_lawful(world)


@pytest.mark.parametrize("landed", [True, False])
async def test_while_the_outcome_of_the_seal_is_unknown_nothing_is_admitted(
    process: BrokerProcess, world: World, landed: bool
) -> None:
    (name,) = await process.create("t")
    parent = await process.broker.segment(name)
    lost = OutcomeUnknown("no answer")
    first = world.store.fault(Fault(SEAL, after=lost) if landed else Fault(SEAL, before=lost))
    read = world.store.hold_read(lambda wanted: paths.segment(name) in wanted and first.times == 0)
    split = asyncio.create_task(post(process, name, "split"))
    await read.reached.wait()
    refused = sending(parent, "x")
    with pytest.raises(errors.MetatxnError) as error:
        await refused
    assert error.value.code == ErrorCode.STORE_UNAVAILABLE
    read.go.set()
    assert await split == CHILDREN
    assert await committed(parent) == []
    await assert_lawful(world)


async def test_a_decision_between_two_attempts_to_seal_does_not_stop_the_seal(
    process: BrokerProcess, world: World
) -> None:
    """What is remembered of a transaction is forgotten when it is decided; the snapshot is of when the drain ended."""
    (name,) = await process.create("t")
    parent = await process.broker.segment(name)
    txn = await world.begin()
    await publish(parent, "x", txn, writer="w", sequence=1)
    held = world.store.fault(Fault(SEAL, hold_before=True, before=StoreUnavailable("gone")))
    split = asyncio.create_task(post(process, name, "split"))
    await held.reached.wait()
    await world.commit(txn)
    await released(parent, txn)
    held.go.set()
    assert await split == CHILDREN
    assert await committed(parent) == ["x"]
    await assert_lawful(world)


async def test_a_deposed_owner_seals_nothing(process: BrokerProcess, world: World) -> None:
    """Somebody else took the segment while it was being drained."""
    (name,) = await process.create("t")
    parent = await process.broker.segment(name)
    held = world.store.fault(Fault(SEAL, hold_before=True))
    split = asyncio.create_task(process.http.post(f"/v1/segments/{quoted(name)}/split", json={}))
    await held.reached.wait()
    owner = await world.store.get(paths.segment_owner(name))
    assert owner is not None
    await world.store.apply(world.store.batch().replace(owner, owner.value))
    held.go.set()
    assert (await split).status_code == 503 and parent.lost
    assert (await record_of(world, name)).state == "active"


async def test_a_deposed_owner_seals_nothing_although_its_successor_has_no_ledger_yet(
    process: BrokerProcess, world: World
) -> None:
    """Found by the simulation: between sealing the ledgers of the former owner, all of them empty, and listing its own,
    the record of a new owner lists none."""
    (name,) = await process.create("t")
    parent = await process.broker.segment(name)
    held = world.store.fault(Fault(SEAL, hold_before=True, before=StoreUnavailable("gone")))
    split = asyncio.create_task(process.http.post(f"/v1/segments/{quoted(name)}/split", json={}))
    await held.reached.wait()
    owner, stored = await world.store.get(paths.segment_owner(name)), await world.store.get(paths.segment(name))
    assert owner is not None and stored is not None
    taken = SegmentRecord.decode(stored.value).model_copy(update={"ledgers": ()})
    await world.store.apply(world.store.batch().replace(owner, owner.value).replace(stored, taken.encode()))
    held.go.set()
    answer = await split
    assert answer.status_code == 503 and parent.lost, answer.text
    assert await record_of(world, name) == taken


async def test_segments_tell_when_they_were_created_and_sealed(process: BrokerProcess, world: World) -> None:
    """The clock of this world goes on whenever somebody looks at it."""
    (name,) = await process.create("t")
    low, high = await post(process, name, "split")
    answer = await process.http.post(f"/v1/segments/{quoted(low)}/merge", json={"with": high})
    (merged,) = answer.json()["children"]
    found = {each["segment"]: each for each in (await process.http.get("/v1/topics/t")).json()["segments"]}
    told = [found[name]["created_ms"], found[name]["sealed_ms"], found[low]["created_ms"]]
    told += [*sorted(found[each]["sealed_ms"] for each in (low, high)), found[merged]["created_ms"], world.now_ms()]
    assert told == sorted(set(told))
    assert found[low]["created_ms"] == found[high]["created_ms"] and found[merged]["sealed_ms"] is None


async def test_two_splits_at_once_are_one(process: BrokerProcess, world: World) -> None:
    (name,) = await process.create("t")
    assert await asyncio.gather(*(post(process, name, "split") for _ in range(3))) == [CHILDREN] * 3
    await assert_lawful(world)


# -- exactly once ------------------------------------------------------------------------------------------------------


async def test_a_retry_at_the_sealed_segment_is_answered_from_what_it_remembers(
    process: BrokerProcess, world: World
) -> None:
    (name,) = await process.create("t")
    txn = await world.begin()
    for life in range(2):
        parent = await process.broker.segment(name)
        plain = await parent.publish(entry("x", producer="p", sequence=1))
        within = await parent.publish(entry("y", txn, writer="w", sequence=1))
        assert plain[1] == within[1] == bool(life)
        await post(process, name, "split")
        assert await parent.publish(entry("x", producer="p", sequence=1)) == (plain[0], True)
        assert await parent.publish(entry("y", txn, writer="w", sequence=1)) == (within[0], True)
        process = await process.crash()
    await process.stop()


@pytest.mark.parametrize("restarts", [0, 1, 2])
async def test_children_remember_what_their_parents_took(process: BrokerProcess, world: World, restarts: int) -> None:
    (name,) = await process.create("t")
    txn = await world.begin()
    parent = await process.broker.segment(name)
    for sequence in (3, 4, 7):
        await publish(parent, "x", producer="p", sequence=sequence)
        await publish(parent, "x", txn, writer="w", sequence=sequence)
    children = await post(process, name, "split")
    for _ in range(restarts):
        process = await process.crash()
    for child_name in children:
        child = await process.broker.segment(child_name)
        for sequence in (3, 4, 7):
            for retry in (entry("x", producer="p", sequence=sequence), entry("x", txn, writer="w", sequence=sequence)):
                with pytest.raises(AppendedBefore) as before:
                    await child.publish(retry)
                assert before.value.complete and [part.segment for part in before.value.parts] == [name]
        assert not (await child.publish(entry("new", producer="p", sequence=5)))[1]
        assert not (await child.publish(entry("new", txn, writer="w", sequence=5)))[1]
    await ended(process, world, txn, True)
    for segment in process.broker.served.values():
        assert segment.dedup.transactions == [], "the decision ends what is remembered of a transaction"
    await process.stop()


async def test_the_child_of_a_merge_holds_a_sequence_against_the_keys_of_the_parent_that_took_it(
    process: BrokerProcess,
) -> None:
    """Both halves use the sequence of one request. Only one of them took its part: the other part must not be lost."""
    names = await process.create("t", segments=2)
    await publish(await process.broker.segment(names[0]), "low", producer="p", sequence=1)
    (merged,) = await post(process, names[0], "merge", **{"with": names[1]})
    retried = Entry(b"?", PayloadKind.BYTES, 1, producer="p", sequence=1)
    for _ in range(2):
        child = await process.broker.segment(merged)
        with pytest.raises(AppendedBefore) as before:
            await child.publish(retried, lambda: frozenset({5}))
        assert [part.segment for part in before.value.parts] == [names[0]], "the lower half has it"
        scope = Scope(None, None, "p")
        assert not child.dedup.find(scope, 1, frozenset({0x9000}))
        assert not child.dedup.find(scope, 1, None), "nobody knows which half it is of"
        process = await process.crash()
    assert not (await (await process.broker.segment(merged)).publish(retried, lambda: frozenset({0x9000})))[1]
    await process.stop()


async def test_a_request_that_is_sent_again_after_a_split_is_found_message_by_message(process: BrokerProcess) -> None:
    (name,) = await process.create("t")
    body = {"messages": [{"key": key, "value": key} for key in (LOW, HIGH, LOW)], "producer": "p", "sequence": 9}
    first = (await process.http.post("/v1/topics/t/messages", json=body)).json()
    one, other = await post(process, name, "split")
    assert (await process.http.post("/v1/topics/t/messages", json=body)).json() == first
    await post(process, one, "merge", **{"with": other})
    process = await process.crash()
    assert (await process.http.post("/v1/topics/t/messages", json=body)).json() == first
    assert await browse(process) == [LOW, HIGH, LOW]
    await process.stop()


# -- death anywhere ----------------------------------------------------------------------------------------------------


async def written(process: BrokerProcess, world: World, segments: int = 1) -> tuple[list[str], Any]:
    """A topic with a plain message, remembered sequences, and an open transaction."""
    names = await process.create("t", segments=segments)
    txn = await world.begin()
    await send(process, LOW, "plain", sequence=1)
    await send(process, LOW, "in", txn, sequence=1)
    return names, txn


async def assert_whole(process: BrokerProcess, world: World, txn: Any) -> None:
    """Everything is there once, in order, and goes on."""
    while process.broker.not_ready:  # a segment whose record changed while it was being opened is opened again
        await asyncio.wait(process.broker.changes(), return_when=asyncio.FIRST_COMPLETED)
    for sequence, transaction, value in ((1, None, "plain"), (1, txn, "in")):
        await send(process, LOW, value, transaction, sequence)  # a retry
    await send(process, LOW, "later", txn)
    await ended(process, world, txn, True)
    assert await browse(process) == ["plain", "in", "later"]
    for segment in process.broker.served.values():
        await reconcile(segment)
        await reconcile_subscribed(segment)
    assert await world.operations(txn) == []
    await assert_lawful(world)


@pytest.mark.parametrize("survives", range(6))
async def test_a_split_that_dies_anywhere_is_done_again(process: BrokerProcess, world: World, survives: int) -> None:
    (name,), txn = await written(process, world)
    death = Death(world, survives)
    split = asyncio.create_task(process.http.post(f"/v1/segments/{quoted(name)}/split", json={}))
    await either(split, death)
    again = await death.next_life(process)
    await split
    children = await post(again, name, "split")
    assert [(await record_of(world, child)).range for child in children] == [(0, 0x7FFF), (0x8000, 0xFFFF)]
    await assert_whole(again, world, txn)
    await again.stop()
    assert death.writes > survives or survives >= 4, "every number of writes is tried"


@pytest.mark.parametrize("survives", range(9))
async def test_a_merge_that_dies_anywhere_is_finished_by_whoever_comes(
    process: BrokerProcess, world: World, survives: int
) -> None:
    names, txn = await written(process, world, segments=2)
    death = Death(world, survives)
    merge = asyncio.create_task(process.http.post(f"/v1/segments/{quoted(names[0])}/merge", json={"with": names[1]}))
    await either(merge, death)
    again = await death.next_life(process)
    await merge
    claimed = (await record_of(world, names[0])).merge is not None
    await again.broker.reconcile()
    if claimed:
        assert len((await record_of(world, names[0])).children) == 1, "nobody need ask again"
    (child,) = await post(again, names[0], "merge", **{"with": names[1]})
    assert (await record_of(world, child)).range == (0, 0xFFFF)
    await assert_whole(again, world, txn)
    await again.stop()


# -- two owners --------------------------------------------------------------------------------------------------------


async def far_apart(process: BrokerProcess, world: World, tmp_path: Path) -> tuple[BrokerProcess, list[str]]:
    """Two neighbours on two brokers: the second one's storage is another."""
    other = await BrokerProcess(world, world.new_device("other"), "http://other").start()
    names = await process.create("t", segments=2)
    await process.broker.drop(names[1])
    stored = await world.store.get(paths.segment(names[1]))
    assert stored is not None
    record = await record_of(world, names[1])
    moved = record.model_copy(update={"storage": other.storage.storage_id, "ledgers": ()})
    await world.store.apply(world.store.batch().replace(stored, moved.encode()))
    await other.broker.until_opened([names[1]])
    return other, names


@on_local_files
async def test_the_owners_of_two_neighbours_each_seal_their_own(
    process: BrokerProcess, world: World, tmp_path: Path
) -> None:
    other, names = await far_apart(process, world, tmp_path)
    merge = asyncio.create_task(post(process, names[0], "merge", **{"with": names[1]}))
    while (await record_of(world, names[0])).state == "active":
        await asyncio.sleep(0)
    await other.broker.reconcile()
    (child,) = await merge
    await publish(await process.broker.segment(child), "x")
    with pytest.raises(errors.MetatxnError) as error:
        await publish(await other.broker.segment(names[1]), "y")
    assert error.value.code == ErrorCode.SEGMENT_SEALED and error.value.members["children"] == [child]
    await assert_lawful(world)
    await other.stop()


@on_local_files
async def test_a_merge_whose_other_owner_does_not_come_is_given_up_and_keys_have_a_home(
    process: BrokerProcess, world: World, tmp_path: Path
) -> None:
    other, names = await far_apart(process, world, tmp_path)
    merge = asyncio.create_task(process.http.post(f"/v1/segments/{quoted(names[0])}/merge", json={"with": names[1]}))
    while (await record_of(world, names[0])).state == "active":
        await asyncio.sleep(0)
    claim = (await record_of(world, names[0])).merge
    assert claim is not None
    sealed = await process.broker.segment(names[0])
    with pytest.raises(errors.MetatxnError) as error:
        await publish(sealed, "x")
    assert error.value.code == ErrorCode.STORE_UNAVAILABLE, "it is not known yet who takes over"
    for _ in range(CLAIM_PATIENCE_MS):
        world.now_ms()
    await process.broker.reconcile()
    answer = await merge
    assert answer.status_code == 503 and "now has its own child" in answer.json()["action"]
    (child,) = (await record_of(world, names[0])).children
    assert (await record_of(world, child)).range == sealed.record.range
    assert (await record_of(world, names[1])).merge is None
    await publish(await other.broker.segment(names[1]), "still there")
    await assert_lawful(world)
    await other.stop()


@on_local_files
async def test_a_claim_is_given_up_by_a_reconcile_that_has_seen_it_before(
    process: BrokerProcess, world: World, tmp_path: Path
) -> None:
    """The one who began the merge is gone. The record stays the same until it is time, and is looked at all the
    same."""
    other, names = await far_apart(process, world, tmp_path)
    merge = asyncio.create_task(process.http.post(f"/v1/segments/{quoted(names[0])}/merge", json={"with": names[1]}))
    while (await record_of(world, names[0])).state == "active":
        await asyncio.sleep(0)
    merge.cancel()
    await asyncio.wait([merge])
    for _ in range(2):
        await process.broker.reconcile()
        assert (await record_of(world, names[0])).merge is not None
    for _ in range(CLAIM_PATIENCE_MS):
        world.now_ms()
    await process.broker.reconcile()
    assert (await record_of(world, names[0])).children and (await record_of(world, names[1])).merge is None
    await other.stop()


async def test_split_and_merge_of_one_segment_exclude_each_other(process: BrokerProcess, world: World) -> None:
    """The claim comes between the split's look and its apply: the versions decide."""
    names = await process.create("t", segments=2)
    held = world.store.fault(Fault(lambda batch: len(batch.puts) == 4, hold_before=True))
    split = asyncio.create_task(process.http.post(f"/v1/segments/{quoted(names[0])}/split", json={}))
    await held.reached.wait()
    merge = asyncio.create_task(process.http.post(f"/v1/segments/{quoted(names[0])}/merge", json={"with": names[1]}))
    while (await record_of(world, names[0])).merge is None:
        await asyncio.sleep(0)
    held.go.set()
    assert (await split).status_code == 503
    assert (await merge).status_code in (503, 504), "the split took the segment down with it"
    while names[0] not in process.broker.served:
        await process.broker._opened.wait()
    await process.broker.reconcile()
    (child,) = await post(process, names[0], "merge", **{"with": names[1]})
    assert (await record_of(world, child)).parents == tuple(names)
    await assert_lawful(world)

"""Goal: the compacted view of a topic is the latest committed value of each key: never one that is aborted, void or
undecided, none that was deleted, each once, whatever is committed, split, merged or restarted while it is read.

Method: a broker in-process, pages of one message, and a model that is a dictionary. DESIGN §7.
"""

from __future__ import annotations

import random
from typing import Any

import httpx
import pyarrow as pa
import pytest

from metatxn.wire.ids import TxnId
from metatxn.wire.names import _encode
from participants.segment.trimming import trim
from participants.topic import compaction
from tests.extent import usually
from tests.participants.broker.process import BrokerProcess
from tests.participants.broker.stories import HIGH, LOW, post, quoted
from tests.participants.segment.world import World, materialized, released

MESSAGES = "/v1/topics/t/messages"


async def put(process: BrokerProcess, key: str | None, value: Any, txn: TxnId | None = None, **message: Any) -> None:
    body = {"messages": [{"key": key, "value": value} | message]}
    query = {"txn_id": str(txn)} if txn is not None else {}
    answer = await process.http.post(MESSAGES, json=body, params=query)
    assert answer.status_code == 200, answer.text


async def page(process: BrokerProcess, **query: Any) -> dict[str, Any]:
    answer = await process.http.get(MESSAGES, params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def rest(process: BrokerProcess, token: str, **query: Any) -> list[tuple[str | None, Any]]:
    """Everything behind `token`, in its order."""
    seen: list[tuple[str | None, Any]] = []
    while (found := await page(process, after=token, **query))["messages"]:
        seen += [(message["key"], message["value"]) for message in found["messages"]]
        token = found["next"]
    return seen


async def view(process: BrokerProcess, **query: Any) -> list[tuple[str | None, Any]]:
    first = await page(process, compacted="true", **query)
    seen = [(message["key"], message["value"]) for message in first["messages"]]
    return seen + await rest(process, first["next"], **query)


async def decided(process: BrokerProcess, world: World, txn: TxnId, commit: bool) -> None:
    await (world.commit(txn) if commit else world.abort(txn))
    for segment in process.broker.served.values():
        await materialized(segment, txn)


async def test_the_latest_value_of_each_key_in_the_order_of_writing(process: BrokerProcess) -> None:
    await process.create("t")
    for key, value in (("a", 1), ("b", 1), ("a", 2), ("c", 1), ("b", 2), ("a", 3)):
        await put(process, key, value)
    assert await view(process) == [("c", 1), ("b", 2), ("a", 3)]
    assert await view(process, max=1) == [("c", 1), ("b", 2), ("a", 3)]


async def test_a_null_or_an_empty_value_deletes_and_a_later_one_brings_the_key_back(process: BrokerProcess) -> None:
    await process.create("t")
    for key in "abcdef":
        await put(process, key, 1)
    await put(process, "a", None)
    body = {"messages": [{"key": "b", "value_base64": ""}, {"key": "c", "value": ""}, {"key": "d", "value": 0}]}
    assert (await process.http.post(MESSAGES, json=body)).status_code == 200
    await put(process, "e", None)
    await put(process, "e", 2)
    await put(process, "never was", None)
    assert await view(process) == [("f", 1), ("c", ""), ("d", 0), ("e", 2)], "empty text and zero are values"


async def test_messages_without_a_key_are_left_out(process: BrokerProcess) -> None:
    await process.create("t")
    await put(process, None, "nobody's")
    await put(process, "a", 1)
    (segment,) = process.broker.served
    answer = await process.http.post(
        f"/v1/segments/{quoted(segment)}/entries", content=b"raw", headers={"Content-Type": "application/octet-stream"}
    )
    assert answer.status_code == 200
    assert await view(process) == [("a", 1)]


@pytest.mark.parametrize("isolation", ["read_committed", "snapshot"])
async def test_what_is_aborted_replaces_nothing(process: BrokerProcess, world: World, isolation: str) -> None:
    await process.create("t")
    committed, aborted, deleting = await world.begin(), await world.begin(), await world.begin()
    for key in "abc":
        await put(process, key, "old")
    await put(process, "a", "committed", committed)
    await put(process, "b", "aborted", aborted)
    await put(process, "c", None, deleting)
    await decided(process, world, committed, True)
    await decided(process, world, aborted, False)
    await decided(process, world, deleting, False)
    assert await view(process, isolation=isolation) == [("b", "old"), ("c", "old"), ("a", "committed")]
    assert dict(await view(process, isolation="read_uncommitted")) == {"a": "committed", "b": "aborted"}


async def test_what_is_open_replaces_nothing_and_holds_back_what_is_behind_it(
    process: BrokerProcess, world: World
) -> None:
    await process.create("t")
    txn = await world.begin()
    await put(process, "a", "old")
    await put(process, "b", "old")
    await put(process, "a", "open", txn)
    await put(process, "b", "behind it")
    assert await view(process) == [("a", "old"), ("b", "old")]
    assert await view(process, isolation="snapshot") == [("a", "old"), ("b", "behind it")]
    await decided(process, world, txn, True)
    assert await view(process) == [("a", "open"), ("b", "behind it")]


async def test_a_view_under_way_is_one_cut_and_then_goes_on_with_what_came(
    process: BrokerProcess, world: World
) -> None:
    await process.create("t")
    txn = await world.begin()
    for key in "abc":
        await put(process, key, "old")
    first = await page(process, compacted="true", max=1)
    assert [message["key"] for message in first["messages"]] == ["a"]
    await put(process, "b", "new", txn)
    await put(process, "c", None)
    await decided(process, world, txn, True)
    assert await rest(process, first["next"], max=1) == [("b", "old"), ("c", "old"), ("b", "new"), ("c", None)]
    assert await rest(process, first["next"], compacted="true") == await rest(process, first["next"])
    assert await view(process) == [("a", "old"), ("b", "new")]


@pytest.mark.parametrize("forget", [True, False])
async def test_a_view_goes_on_through_split_merge_and_restart(
    process: BrokerProcess, world: World, forget: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `forget` no broker remembers any view, so that each page makes the same one again."""
    if forget:
        monkeypatch.setattr(compaction.CompactedViews, "_remember", lambda *_: None)
    (parent,) = await process.create("t")
    aborted = await world.begin()
    for key in (LOW, HIGH):
        await put(process, key, "replaced")
    await put(process, LOW, "aborted", aborted)
    await decided(process, world, aborted, False)
    one, other = await post(process, parent, "split")
    for key in (LOW, HIGH, "x", "y", "z"):
        await put(process, key, "kept")
    first = await page(process, compacted="true", max=1)
    seen = [(message["key"], message["value"]) for message in first["messages"]]
    await post(process, one, "merge", **{"with": other})
    for key in (LOW, "x"):
        await put(process, key, "later")
    process = await process.crash()
    seen += await rest(process, first["next"], max=2)
    assert sorted(seen[:5]) == sorted((key, "kept") for key in (LOW, HIGH, "x", "y", "z"))
    assert seen[5:] == [(LOW, "later"), ("x", "later")]
    assert dict(await view(process)) == {LOW: "later", "x": "later", HIGH: "kept", "y": "kept", "z": "kept"}
    await process.stop()


async def test_a_key_that_waits_in_a_sealed_parent_is_not_overtaken_by_its_child(
    process: BrokerProcess, world: World
) -> None:
    (parent,) = await process.create("t")
    txn = await world.begin()
    await put(process, LOW, "first")
    await put(process, LOW, "open", txn)
    await post(process, parent, "split")
    await put(process, LOW, "third")
    first = await page(process, compacted="true")
    assert [message["value"] for message in first["messages"]] == ["first"]
    await decided(process, world, txn, True)
    assert await rest(process, first["next"]) == [(LOW, "open"), (LOW, "third")]


async def test_rows_of_tables_have_keys_and_a_row_of_nulls_deletes(process: BrokerProcess) -> None:
    await process.create("t", schema={"fields": [{"name": "id", "type": "int64"}, {"name": "v", "type": "string"}]})
    (segment,) = process.broker.served
    fields: list[pa.Field[Any]] = [pa.field("id", pa.int64()), pa.field("v", pa.string())]
    schema = pa.schema(fields, metadata={"metatxn.key": "id"})
    for ids, texts in (([1, 2, 3], ["a", "b", "c"]), ([1, 2], ["A", None])):
        table = pa.Table.from_pydict({"id": ids, "v": texts}, schema=schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(table)
        answer = await process.http.post(
            f"/v1/segments/{quoted(segment)}/entries",
            content=sink.getvalue().to_pybytes(),
            headers={"Content-Type": "application/vnd.apache.arrow.stream"},
        )
        assert answer.status_code == 200, answer.text
    assert await view(process) == [("3", {"id": 3, "v": "c"}), ("1", {"id": 1, "v": "A"})]


async def test_a_snapshot_view_is_the_cut_of_its_revision(process: BrokerProcess, world: World) -> None:
    await process.create("t", segments=2)
    before, after = await world.begin(), await world.begin()
    for key in (LOW, HIGH):
        await put(process, key, "before", before)
    for key in (LOW, HIGH):
        await put(process, key, "after", after)
    revision = await world.commit(before)
    await world.commit(after)
    for segment in process.broker.served.values():
        await released(segment, before, after)
    seen = await view(process, isolation="snapshot", revision=revision, max=1)
    assert sorted(seen) == sorted([(LOW, "before"), (HIGH, "before")])


async def test_what_is_trimmed_meanwhile_is_told(process: BrokerProcess, world: World) -> None:
    await process.create("t")
    for key in "abc":
        await put(process, key, 1)
    first = await page(process, compacted="true", max=1)
    process = await process.crash()
    (segment,) = process.broker.served.values()
    await trim(segment, world.store, process.storage, segment.buffer.max_read_position.next)
    answer: httpx.Response = await process.http.get(MESSAGES, params={"after": first["next"]})
    assert (answer.status_code, answer.json()["code"]) == (410, "POSITION_TRIMMED")
    assert await view(process) == []
    await process.stop()


async def test_views_are_forgotten_and_made_again(process: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "REMEMBERED_KEYS", 2)
    await process.create("t")
    for key in "abc":
        await put(process, key, 1)
    tokens = []
    for number in range(3):
        tokens.append((await page(process, compacted="true", max=1))["next"])
        await put(process, "d", number)
    for number, token in enumerate(tokens):
        expected = [("b", 1), ("c", 1)] + [("d", number - 1)] * (number > 0)
        assert (await rest(process, token))[: len(expected)] == expected


@pytest.mark.parametrize(
    "parts", [[{"s": ["1:0", 0]}, None, {}], [{"s": ["1:0", 0]}, None, {"s": 1}], [{"s": ["1:0", 0]}, None, {"s": "x"}]]
)
async def test_a_token_that_nobody_gave_is_refused(process: BrokerProcess, parts: list[Any]) -> None:
    await process.create("t")
    answer = await process.http.get(MESSAGES, params={"after": _encode(parts)})
    assert (answer.status_code, answer.json()["field"]) == (422, "after")


@pytest.mark.parametrize("seed", usually(range(2), range(5)))
async def test_any_history_agrees_with_a_dictionary(process: BrokerProcess, world: World, seed: int) -> None:
    """Plain and transactional writes and deletions of few keys in one or two segments; a third is aborted."""
    rng = random.Random(seed)
    await process.create("t", segments=1 + seed % 2)
    model: dict[str, int] = {}
    for value in range(60):
        key = rng.choice("abcdefgh")
        written = None if rng.random() < 0.2 else value
        kind = rng.choice(["plain", "commit", "abort"])
        txn = await world.begin() if kind != "plain" else None
        await put(process, key, written, txn)
        if txn is not None:
            await decided(process, world, txn, kind == "commit")
        if kind != "abort":
            model.pop(key, None)
            if written is not None:
                model[key] = written
    seen = await view(process, max=rng.randint(1, 5))
    assert dict(seen) == model and len(seen) == len(model)
    assert [value for _, value in await view(process, isolation="snapshot")] == [value for _, value in seen]

"""Goal: the schema of a topic changes only as its policy allows, every version that matters is remembered, and what is
published fits.

Method: what may follow is a pure function, drawn types are compared with what Arrow and JSON make of their values; the
rest on a broker in this process, on both storages, or on two. Scenarios 140-143.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metastore.txn import paths
from metastore.txn.records.topics import TopicRecord
from metatxn.wire.arrow_types import type_named
from metatxn.wire.broker import ARROW_MEDIA_TYPE, MESSAGES_MEDIA_TYPE
from metatxn.wire.columns import typed
from metatxn.wire.policies import CompatibilityKind
from participants.messages import schema_versions, schemas
from participants.messages.compatibility import includes, incompatible
from participants.messages.schema_versions import with_schema
from tests.participants.broker.process import BrokerProcess
from tests.participants.segment.faulty_store import Fault, puts
from tests.participants.segment.world import World

TOPIC = "/v1/topics/t"
SCALARS = [
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.timestamp("ms"), pa.timestamp("us"), pa.null()),
    *(pa.timestamp("us", "UTC"), pa.decimal128(5, 2), pa.decimal128(9, 2), pa.decimal128(19, 0), pa.decimal256(40, 3)),
]
NESTED = [
    *(pa.list_(pa.int32()), pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.map_(pa.string(), pa.float32())),
    *(pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int16())]), pa.struct([("b", pa.int16())])),
    *(pa.struct([("a", pa.int8()), ("b", pa.int8())]), pa.map_(pa.string(), pa.float64()), pa.large_list(pa.string())),
]
TYPES: list[Any] = [*SCALARS, *NESTED]


def of(**columns: str) -> pa.Schema:
    return pa.schema([pa.field(name, type_named(kind)) for name, kind in columns.items()])


# -- what may follow -------------------------------------------------------------------------------------------


def test_what_includes_a_type_includes_all_that_this_one_includes() -> None:
    """So the last type of a column says all that is to be known of the earlier ones."""
    held = {(str(kind), str(other)) for kind in TYPES for other in TYPES if includes(kind, other)}
    assert all((str(kind), str(kind)) in held for kind in TYPES)
    assert all((one, three) in held for one, two in held for again, three in held if two == again)
    assert not [pair for pair in held if pair[::-1] in held and pair[0] != pair[1]]
    assert ("int64", "int32") in held and ("double", "int32") in held and ("decimal128(19, 0)", "int64") in held
    assert ("large_list<item: int64>", "list<item: int32>") in held
    for one, other in (
        ("double", "int64"),
        ("int64", "uint64"),
        ("int64", "string"),
        ("timestamp[us]", "timestamp[ms]"),
    ):
        assert (one, other) not in held and (other, one) not in held


INTEGERS = {"int8": (-(2**7), 2**7), "int32": (-(2**31), 2**31), "int64": (-(2**63), 2**63), "uint32": (0, 2**32)}
JSON_OF: dict[str, st.SearchStrategy[Any]] = {
    **{name: st.integers(low, high - 1) for name, (low, high) in INTEGERS.items()},
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "string": st.text(max_size=3),
    "decimal128(5, 2)": st.integers(-99_999, 99_999).map(lambda number: f"{number / 100:.2f}"),
    "list<item: int32>": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=2),
    "struct<a: int8>": st.fixed_dictionaries({"a": st.integers(-128, 127)}),
    "map<string, float>": st.dictionaries(st.text(max_size=1), st.floats(width=16, allow_nan=False), max_size=2),
}


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(JSON_OF)), data=st.data())
def test_what_is_included_can_be_read_as_the_other_type(name: str, data: st.DataObject) -> None:
    """As Arrow's column, there and back; and as JSON, with the same value."""
    kind = type_named(name)
    cells = data.draw(st.lists(JSON_OF[name] | st.none(), max_size=3))
    written = typed(kind, cells)
    for other in TYPES:
        if includes(other, kind):
            assert written.cast(other).cast(kind).equals(written), other
            assert typed(other, cells).equals(written.cast(other)) or pa.types.is_floating(kind), other


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_type_is_known_by_the_name_that_arrow_gives_it(kind: pa.DataType) -> None:
    assert type_named(str(kind)).equals(kind)


@pytest.mark.parametrize(
    "name", ["int", "list<int>", "decimal(9, 2)", "decimal128(99, 2)", "struct<a>", "list<", "a<b>", ""]
)
def test_an_unknown_type_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        type_named(name)


@pytest.mark.parametrize(
    ("mode", "later", "columns"),
    [
        ("full", {"id": "int32", "more": "string"}, []),
        ("full", {"more": "string"}, []),
        ("full", {"id": "int64"}, ["id"]),
        ("full", {"id": "int16"}, ["id"]),
        ("backward", {"id": "int64"}, []),
        ("backward", {"id": "int16"}, ["id"]),
        ("backward", {"name": "int32", "id": "string"}, ["id", "name"]),
        ("forward", {"id": "int16"}, []),
        ("forward", {"id": "int64"}, ["id"]),
        ("none", {"id": "string"}, []),
    ],
)
def test_140_what_may_follow_in_each_mode(mode: CompatibilityKind, later: dict[str, str], columns: list[str]) -> None:
    """Columns may come and go; types may be extended, or narrowed, or neither, or become any."""
    earlier = of(id="int32", name="string")
    assert [each.column for each in incompatible(mode, of(**later), {"version 1": earlier})] == columns


# -- what is remembered ----------------------------------------------------------------------------------------


def test_141_no_type_is_forgotten_however_many_versions_there_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each version drops the column of the one before: only the latest ones are listed, and the record stays small."""
    monkeypatch.setattr(schema_versions, "MAX_FORMER_VERSIONS", 3)
    topic = TopicRecord(name="t", segments=(), next_segment=1, created_ms=0)
    for number in range(10):
        topic = with_schema(topic, of(id="int64", **{f"c{number}": "int8"}), number)
    history = topic.schema_history
    assert history is not None and topic.schema_version == history.version == 10
    assert [each.version for each in history.former] == [7, 8, 9]
    assert [each.created_ms for each in history.former] == [6, 7, 8]
    assert history.forgotten is not None
    assert schemas.decode_schema(history.forgotten).names == [f"c{number}" for number in range(6)]
    again = with_schema(topic, of(id="int64", c0="int8"), 10).schema_history
    assert again is not None and again.forgotten is not None
    assert "c0" not in schemas.decode_schema(again.forgotten).names


def test_the_former_versions_have_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = TopicRecord(name="t", segments=(), next_segment=1, created_ms=0)
    large = with_schema(topic, of(**{f"c{number}": "int64" for number in range(100)}), 0)
    monkeypatch.setattr(schema_versions, "MAX_FORMER_CHARACTERS", len(large.arrow_schema or "") - 1)
    history = with_schema(large, of(c0="int64"), 1).schema_history
    assert history is not None and history.former == ()
    assert history.forgotten is not None and len(schemas.decode_schema(history.forgotten).names) == 99


# -- over REST -------------------------------------------------------------------------------------------------


async def put(process: BrokerProcess, schema: dict[str, str], **more: Any) -> httpx.Response:
    fields = [{"name": name, "type": kind} for name, kind in schema.items()]
    return await process.http.put(f"{TOPIC}/schema", json={"schema": {"fields": fields}, **more})


async def changed(process: BrokerProcess, schema: dict[str, str], **more: Any) -> dict[str, Any]:
    answer = await put(process, schema, **more)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def shown(process: BrokerProcess) -> dict[str, Any]:
    return dict((await process.http.get(f"{TOPIC}/schema")).json())


async def send(process: BrokerProcess, *values: Any) -> httpx.Response:
    return await process.http.post(f"{TOPIC}/messages", json={"messages": [{"value": value} for value in values]})


async def append(process: BrokerProcess, segment: str, table: pa.Table, **query: Any) -> httpx.Response:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    path = f"/v1/segments/{segment.replace('/', '%2F')}/entries"
    headers = {"content-type": ARROW_MEDIA_TYPE}
    return await process.http.post(path, content=sink.getvalue().to_pybytes(), headers=headers, params=query)


def versions(found: dict[str, Any]) -> list[tuple[int, list[tuple[str, str]]]]:
    return [
        (each["version"], [(field["name"], field["type"]) for field in each["schema"]["fields"]])
        for each in found["versions"]
    ]


async def test_140_a_schema_is_set_and_changed_as_the_policy_allows(process: BrokerProcess) -> None:
    await process.create("t")
    assert await shown(process) == {
        "topic": "public/default/t",
        "version": 0,
        "schema": None,
        "schema_compatibility": {"value": "full", "source": "default"},
        "schema_updates": {"value": "producers", "source": "default"},
        "versions": [],
    }
    assert (await changed(process, {"id": "int32", "name": "string"}))["version"] == 1
    again = await changed(process, {"id": "int32", "name": "string"}, expected_version=0)  # its answer was lost
    assert again["version"] == 1
    found = await changed(process, {"id": "int32", "more": "list<item: double>"}, expected_version=1)
    assert versions(found) == [
        (2, [("id", "int32"), ("more", "list<item: double>")]),
        (1, [("id", "int32"), ("name", "string")]),
    ]
    assert (await process.http.get(TOPIC)).json()["schema_version"] == 2

    refused = (await put(process, {"id": "int64", "name": "int8"})).json()
    assert (refused["code"], refused["columns"]) == ("SCHEMA_MISMATCH", ["id", "name"])
    assert "column id is int64, and not every one fits the int32 of version 2" in refused["detail"]
    assert "column name is int8, which cannot hold every string of version 1" in refused["detail"]
    checked = await process.http.post(f"{TOPIC}/schema/check", json={"schema": again["schema"]})
    assert checked.json() == {"compatible": True, "problems": [], "columns": [], "version": 1}
    await process.http.patch(TOPIC, json={"schema_compatibility": "backward"})
    assert (await changed(process, {"id": "int64"}))["version"] == 3
    late = (await put(process, {"id": "int64", "late": "int8"}, expected_version=2)).json()
    assert late["code"] == "SCHEMA_MISMATCH" and "has version 3 of its schema, not 2" in late["detail"]
    assert (await put(process, {"id": "int32"})).status_code == 409
    await process.http.patch("/v1/policies/namespaces/public/default", json={"schema_compatibility": "none"})
    await process.http.patch(TOPIC, json={"schema_compatibility": None})
    found = await changed(process, {"id": "string"})
    assert found["schema_compatibility"] == {"value": "none", "source": "namespace"}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"schema": {}},
        {"schema": {"fields": []}},
        {"schema": {"fields": [{"name": "a", "type": "list<int>"}]}},
        {"schema": {"fields": [{"name": "a", "type": "int8"}, {"name": "a", "type": "int8"}]}},
        {"schema": {"fields": [{"name": "a" * 200_001, "type": "int8"}]}},
        {"schema": {"fields": [{"name": "a", "type": "int8"}]}, "expected_version": -1},
    ],
)
async def test_a_bad_schema_is_refused_and_changes_nothing(process: BrokerProcess, body: dict[str, Any]) -> None:
    await process.create("t")
    for method, path in (("PUT", f"{TOPIC}/schema"), ("POST", f"{TOPIC}/schema/check")):
        answer = await process.http.request(method, path, json=body)
        assert answer.status_code == 422 and answer.json()["field"].partition(".")[0] in ("schema", "expected_version")
    assert (await shown(process))["version"] == 0
    assert (await process.http.put("/v1/topics/none/schema", json={"schema": SCHEMA})).status_code == 404


SCHEMA = {"fields": [{"name": "id", "type": "int64"}]}


async def test_a_topic_of_kafkas_gets_no_schema(process: BrokerProcess) -> None:
    """Neither by its administrator nor by a producer's table, which it refuses."""
    (segment,) = await process.create("t", format="kafka")
    refused = (await process.http.put(f"{TOPIC}/schema", json={"schema": SCHEMA})).json()
    assert (refused["code"], refused["field"]) == ("INVALID_ARGUMENT", "schema")
    assert not (await append(process, segment, pa.table({"id": [1]}))).is_success
    assert (await shown(process))["version"] == 0


async def test_141_producers_add_columns_unless_that_is_left_to_administrators(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    await process.http.patch(TOPIC, json={"schema_updates": "admins"})
    refused = (await append(process, segment, pa.table({"id": [1]}))).json()
    assert refused["code"] == "SCHEMA_MISMATCH" and "has no schema, and its policy" in refused["detail"]
    await changed(process, {"id": "int64"})
    assert (await append(process, segment, pa.table({"id": [1]}))).is_success
    more = pa.table({"id": [2], "more": ["x"]})
    refused = (await append(process, segment, more)).json()
    assert (refused["code"], refused["columns"]) == ("SCHEMA_MISMATCH", ["more"])
    await process.http.patch(TOPIC, json={"schema_updates": None})
    assert (await append(process, segment, more)).is_success
    assert versions(await shown(process))[0] == (2, [("id", "int64"), ("more", "string")])
    await changed(process, {"id": "int64"})
    refused = (await append(process, segment, pa.table({"id": [2], "more": [1]}))).json()
    assert refused["columns"] == ["more"] and "which cannot hold every string of version 2" in refused["detail"]
    twice = pa.Table.from_arrays([pa.array([1])] * 2, ["id", "id"])
    assert (await append(process, segment, twice)).json()["code"] == "INVALID_ARGUMENT"


async def test_141_two_producers_are_the_first_ones_at_once(process: BrokerProcess, world: World) -> None:
    """Either sets the schema, and the other finds it: also if that happens while it looks again for one."""
    first, second = await process.create("t", segments=2)
    await process.broker.topic("public/default/t")
    looks_again = world.store.hold_read(lambda keys: paths.topic("public/default/t") in keys)
    late = asyncio.create_task(append(process, first, pa.table({"id": [1]})))
    await looks_again.reached.wait()
    assert (await append(process, second, pa.table({"id": [2]}))).is_success
    looks_again.go.set()
    assert (await late).is_success
    assert versions(await shown(process)) == [(1, [("id", "int64")])]


async def test_142_a_producer_that_has_not_heard_of_a_version_goes_on(process: BrokerProcess) -> None:
    """With tables and with JSON; unless the topic cannot hold any more what it writes."""
    (segment,) = await process.create("t", schema={"fields": [{"name": "id", "type": "int32"}]})
    old, new = pa.table({"id": pa.array([1], pa.int32())}), pa.table({"id": pa.array([1], pa.int64())})
    await process.http.patch(TOPIC, json={"schema_compatibility": "none"})
    await changed(process, {"id": "int32", "name": "string"})
    await changed(process, {"id": "int64", "more": "int8"})
    assert (await append(process, segment, old)).is_success
    assert (await send(process, {"id": 1, "name": "x"})).is_success
    assert (await send(process, {"id": 1, "name": "x", "more": 1})).json()["columns"] == ["name"]
    assert (await append(process, segment, new)).json()["columns"] == ["more"]
    await changed(process, {"id": "string", "more": "int8"})
    assert (await append(process, segment, old)).json()["columns"] == ["more", "id"]
    assert (await send(process, {"id": 1})).json()["columns"] == ["id"]


async def test_143_a_retry_is_recognized_although_its_rows_fit_no_longer(process: BrokerProcess) -> None:
    """It was appended, and nobody may be told that it was not."""
    (segment,) = await process.create("t", schema=SCHEMA)
    table, query = pa.table({"id": [1]}), {"producer": "p", "sequence": 1}
    first = (await append(process, segment, table, **query)).json()
    await process.http.patch(TOPIC, json={"schema_compatibility": "none"})
    await changed(process, {"id": "string"})
    assert (await append(process, segment, table, **query)).json() == first | {"duplicate": True}
    assert (await append(process, segment, table, producer="p", sequence=2)).json()["code"] == "SCHEMA_MISMATCH"


async def test_bytes_are_no_rows(process: BrokerProcess) -> None:
    (segment,) = await process.create("t", schema=SCHEMA)
    path = f"/v1/segments/{segment.replace('/', '%2F')}/entries"
    assert (await process.http.post(path, content=b"x")).json()["code"] == "SCHEMA_MISMATCH"
    messages = json.dumps([{"value": {"id": 1}}, {"value": {"id": 1.5}}])
    headers = {"content-type": MESSAGES_MEDIA_TYPE}
    refused = (await process.http.post(path, content=messages, headers=headers)).json()
    assert (refused["columns"], refused["message"]) == (["id"], 1)


async def test_of_two_changes_at_once_both_are_judged_by_the_other(process: BrokerProcess, world: World) -> None:
    """The one that comes second is a change of what the first one has made: here it is none any more."""
    await process.create("t")
    fault = Fault(puts(paths.topic("public/default/t")), hold_before=True)
    world.store.fault(fault)
    first = asyncio.create_task(put(process, {"id": "int64"}))
    await fault.reached.wait()
    assert (await put(process, {"id": "string"})).is_success
    fault.go.set()
    refused = (await first).json()
    assert refused["code"] == "SCHEMA_MISMATCH" and refused["columns"] == ["id"]
    assert versions(await shown(process)) == [(1, [("id", "string")])]


async def test_a_change_of_the_policy_meanwhile_counts(process: BrokerProcess, world: World) -> None:
    await process.create("t", schema=SCHEMA)
    await process.http.patch("/v1/policies/cluster", json={"schema_compatibility": "none"})
    fault = Fault(puts(paths.topic("public/default/t")), hold_before=True)
    world.store.fault(fault)
    change = asyncio.create_task(put(process, {"id": "string"}))
    await fault.reached.wait()
    await process.http.patch("/v1/policies/cluster", json={"schema_compatibility": "full"})
    fault.go.set()
    assert (await change).status_code == 409
    assert (await shown(process))["version"] == 1


async def test_another_broker_learns_a_schema_with_its_next_look(process: BrokerProcess) -> None:
    """Its cache has none, so it takes whatever comes until then."""
    await process.create("t")
    assert (await send(process, 1)).is_success
    await process.broker.schemas.replace("public/default/t", of(id="int64"), None, 0)  # as another broker does
    assert (await send(process, 2)).is_success
    await process.broker.reconcile()
    assert (await send(process, 3)).json()["code"] == "SCHEMA_MISMATCH"
    assert (await send(process, {"id": 4})).is_success


async def test_a_topic_that_was_deleted_leaves_no_version_behind(process: BrokerProcess) -> None:
    await process.create("t", schema=SCHEMA)
    await changed(process, {"id": "int64", "more": "int8"})
    assert (await process.http.delete(TOPIC)).status_code == 204
    stored = await process.world.store.get(paths.topic("public/default/t"))
    assert stored is not None and b"schema" not in stored.value
    await process.create("t")
    assert (await shown(process))["version"] == 0

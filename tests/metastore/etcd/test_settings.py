"""Goal: the doctor sees how etcd is set up. Method: a real server with the flags of docs/stores.md, and judgements of
settings that are made up."""

from __future__ import annotations

import asyncio
import base64
import shlex
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from metastore.backends.etcd import EtcdStore
from metastore.backends.etcd_settings import MUCH_HISTORY, EtcdSettings, parsed_metrics, settings_of
from metastore.doctor import examine
from metastore.errors import StoreFull
from tests.metastore.etcd.conftest import SMALL, OpenStore
from tests.metastore.etcd.test_lost_replies import error
from tests.servers import EtcdCluster, EtcdServer

GOOD = EtcdSettings(
    "10.0.0.1:2379", 512, MUCH_HISTORY + 1, False, version="3.5.28", quota_bytes=8 << 30, size_bytes=1 << 30
)


async def test_a_server_with_our_flags_is_in_order(etcd_server: EtcdServer, open_store: OpenStore) -> None:
    store = await open_store(etcd_server)
    (settings,) = [each async for each in settings_of(store)]
    assert settings.silence is None and settings.version is not None and settings.size_bytes
    assert (settings.max_txn_ops, settings.quota_bytes) == (512, 8589934592)
    assert settings.revision >= 1 and settings.member in etcd_server.endpoint
    checked = [each async for each in examine(store)]
    assert {each.check: each.verdict for each in checked} == dict.fromkeys(
        ("etcd --max-txn-ops", "etcd history", "etcd version", "etcd quota"), "ok"
    )


@pytest.mark.parametrize(
    ("changes", "check", "verdict", "words"),
    [
        ({"max_txn_ops": 128}, "etcd --max-txn-ops", "advice", "--max-txn-ops=512"),
        ({"max_txn_ops": 0}, "etcd --max-txn-ops", "problem", "--max-txn-ops=512"),
        ({"never_compacted": True}, "etcd history", "problem", "--auto-compaction-mode"),
        ({"version": "3.5.1"}, "etcd version", "problem", "3.5.28"),
        ({"quota_bytes": 2 << 30}, "etcd quota", "advice", "--quota-backend-bytes"),
        ({"size_bytes": 6 << 30}, "etcd quota", "problem", "defragment"),
        ({"silence": "refused"}, "etcd metrics", "skipped", "etcdctl"),
        ({"silence": "refused", "away": True}, "etcd member", "problem", "Start it"),
        ({"has_leader": False}, "etcd member", "problem", "majority"),
        ({"alarms": ("NOSPACE",)}, "etcd alarm", "problem", "etcdctl alarm disarm"),
        ({"alarms": ("CORRUPT",)}, "etcd alarm", "problem", "delete its data"),
    ],
)
def test_what_is_wrong_is_named_with_its_flag(changes: dict[str, object], check: str, verdict: str, words: str) -> None:
    told = [each for each in replace(GOOD, **changes).examined() if each[2] != "ok"]  # type: ignore[arg-type]
    assert [(name, found) for name, _, found, _, _ in told] == [(check, verdict)]
    assert words in told[0][4]


async def test_an_alarm_is_told_as_long_as_it_is_raised(tmp_path: Path, open_store: OpenStore) -> None:
    """Even if there is room again: nobody can write until it is disarmed."""
    with EtcdServer(tmp_path, flags=SMALL) as server:
        store = await open_store(server)
        batches = [store.batch().create(f"/k/{number}", bytes(500_000)) for number in range(60)]
        answers = await asyncio.gather(*map(store.apply, batches), return_exceptions=True)
        assert any(isinstance(answer, StoreFull) for answer in answers)
        assert "etcd alarm" in {each.check async for each in examine(store) if each.verdict == "problem"}
        server.etcdctl("alarm", "disarm")
        assert "etcd alarm" not in {each.check async for each in examine(store)}


async def test_a_user_who_may_not_see_the_status_is_told_nothing(
    etcd_server: EtcdServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(etcd_server)
    assert await store.size_bytes()

    async def refused(*_: object, **__: object) -> None:
        raise error(grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied")

    monkeypatch.setattr(store.connection.maintenance, "Status", refused)
    assert (await store.size_bytes(), await store.why_full(), await store.alarms()) == (None, None, [])


async def test_a_member_that_is_away_is_a_problem(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as cluster:
        store = await EtcdStore.open(cluster.endpoints, "/settings")
        gone = next(member for member in cluster.members if member is not cluster.leader())
        gone.kill()
        wrong = [each async for each in examine(store) if each.verdict == "problem"]
        assert [(each.check, each.about) for each in wrong] == [("etcd member", f"etcd {gone.endpoint}")]
        await store.close()


def test_a_young_store_need_not_be_compacted() -> None:
    assert all(each[2] == "ok" for each in GOOD.examined())
    assert all(each[2] == "ok" for each in replace(GOOD, never_compacted=True, revision=MUCH_HISTORY).examined())


async def test_the_command_shows_the_record(etcd_server: EtcdServer, open_store: OpenStore) -> None:
    """Below the root of the store, and whatever a shell would make of its key."""
    store = await open_store(etcd_server)
    key = "/a/o'x; $(echo y)"
    await store.apply(store.batch().create(key, b"7"))
    command = shlex.split(store.command_for(key))
    assert command[:2] == ["etcdctl", "get"] and command[2].endswith(key) and command[2] != key
    (found,) = etcd_server.etcdctl(*command[1:])["kvs"]
    assert base64.b64decode(found["value"]) == b"7"


def test_metrics_are_read_by_name() -> None:
    text = '# HELP x\nx_bytes 2.147483648e+09\netcd_server_version{server_version="3.4.23"} 1\nx_bytes{a="b"} 7\n'
    assert parsed_metrics(text) == {"x_bytes": 2147483648.0, "version 3.4.23": 1}

"""Goal: the doctor sees how ZooKeeper is set up. Method: answers of servers as they are and as they might be, and real
ones; `test_security` asks more of these."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from metastore.backends.zookeeper_settings import ZooKeeperSettings, settings_of_servers, told_by
from tests.metastore.zookeeper.conftest import OpenStore
from tests.servers import SHORT_LIVED_JAVA, ZooKeeperServer, free_port

SRVR = "Zookeeper version: 3.8.0-1, built on 2022\nConnections: 1\nMode: follower\nNode count: 5\n"
CONF = "clientPort=2181\ndataDir=/data/version-2\ndataLogSize=67108880\ntickTime=2000\nmaxClientCnxns=0\n"
CONF += "minSessionTimeout=4000\nmaxSessionTimeout=40000\n"
FILE = "tickTime=2000\nautopurge.snapRetainCount=3\nautopurge.purgeInterval=1\n"
SEE = "docs/stores.md has the settings."
REFUSED = "conf is not executed because it is not in the whitelist.\n"

TOLD = told_by("a:2181", 3, SRVR, CONF)


def judged(settings: ZooKeeperSettings) -> dict[str, str]:
    """What is not in order, with what to do."""
    return {check: f"{verdict}: {action}" for check, _, verdict, _, action in settings.examined() if verdict != "ok"}


def test_settings_of_the_docs_are_in_order() -> None:
    settings = replace(told_by("a:2181", 3, SRVR, CONF), file=FILE, takes_large=True)
    assert judged(settings) == {} and len(list(settings.examined())) == 7


@pytest.mark.parametrize(
    ("srvr", "conf", "check", "words"),
    [
        (SRVR.replace("3.8.0", "3.5.9"), CONF, "zookeeper version", "problem: Upgrade"),
        (SRVR.replace("follower", "standalone"), CONF, "zookeeper mode", "problem: Give each its server.N"),
        ("This ZooKeeper instance is not currently serving requests\n", CONF, "zookeeper mode", "problem: It has no"),
        (SRVR, CONF.replace("Cnxns=0", "Cnxns=60"), "zookeeper maxClientCnxns", "advice: Set maxClientCnxns=0"),
        (SRVR, CONF.replace("=4000\n", "=8000\n"), "zookeeper sessions", "advice: Set tickTime=2000"),
        (SRVR, CONF.replace("=67108880", "=67108880000"), "zookeeper log", "problem: Set autopurge.purgeInterval=1"),
        (SRVR, REFUSED, "zookeeper settings", "skipped: Set 4lw.commands.whitelist=srvr,conf"),
        (REFUSED.replace("conf", "srvr"), REFUSED, "zookeeper", "skipped: Set 4lw.commands.whitelist=srvr,conf"),
    ],
)
def test_what_is_wrong_is_named_with_its_setting(srvr: str, conf: str, check: str, words: str) -> None:
    found = judged(replace(told_by("a:2181", 3, srvr, conf), file=FILE))
    assert [*found] == [check] and found[check].startswith(words), found


def test_a_server_that_stands_alone_may() -> None:
    alone = told_by("a:2181", 1, SRVR.replace("follower", "standalone"), CONF)
    assert judged(replace(alone, file=FILE)) == {}


def test_without_an_admin_server_nobody_knows_of_purges() -> None:
    assert [*judged(TOLD)] == ["zookeeper autopurge"]
    assert judged(TOLD)["zookeeper autopurge"].startswith("skipped: Check that its file has autopurge.purgeInterval=1")


@pytest.mark.parametrize(
    ("file", "hours"),
    [
        ("autopurge.purgeInterval=24\n", 24),
        (" autopurge.purgeInterval : 1 \n", 1),
        ("autopurge.purgeInterval=1\nautopurge.purgeInterval=0\n", 0),
        ("#autopurge.purgeInterval=1\n", 0),
        ("", 0),
    ],
)
def test_what_the_file_says_of_purges_counts(file: str, hours: int) -> None:
    found = {check: (verdict, what) for check, _, verdict, what, _ in replace(TOLD, file=file).examined()}
    verdict, what = found["zookeeper autopurge"]
    assert verdict == ("ok" if hours else "advice") and (not hours or what.endswith(f" {hours} h"))


async def test_a_server_that_never_purges_and_takes_small_requests_only_is_told_what_to_do(
    tmp_path: Path, open_store: OpenStore
) -> None:
    """Once that is done, there is nothing to say. The purges are those that its AdminServer tells."""
    admin = free_port()
    settings = {"admin.enableServer": "true", "admin.serverPort": admin, "admin.serverAddress": "127.0.0.1"}
    small = (*SHORT_LIVED_JAVA, "-Djute.maxbuffer=999999")

    async def asked(server: ZooKeeperServer) -> dict[str, str]:
        store = await open_store(server)
        (found,) = [judged(each) async for each in settings_of_servers(store, admin_port=admin)]
        await store.close()
        return found

    with ZooKeeperServer(tmp_path, settings=settings, java_options=small) as server:
        assert await asked(server) == {
            "zookeeper jute.maxbuffer": "problem: Leave its jute.maxbuffer at 1048575, its default: " + SEE,
            "zookeeper autopurge": "advice: Set autopurge.purgeInterval=1, unless zkCleanup.sh runs every day: " + SEE,
        }
    with ZooKeeperServer(tmp_path, settings={**settings, "autopurge.purgeInterval": 1}) as server:
        assert await asked(server) == {}

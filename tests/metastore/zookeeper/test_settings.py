"""Goal: the doctor sees how ZooKeeper is set up. Method: answers of servers as they are and as they might be;
`test_security` asks real ones."""

from __future__ import annotations

import pytest

from metastore.backends.zookeeper_settings import ZooKeeperSettings, told_by

SRVR = "Zookeeper version: 3.8.0-1, built on 2022\nConnections: 1\nMode: follower\nNode count: 5\n"
CONF = "clientPort=2181\ndataDir=/data/version-2\ndataLogSize=67108880\ntickTime=2000\nmaxClientCnxns=0\n"
CONF += "minSessionTimeout=4000\nmaxSessionTimeout=40000\n"
REFUSED = "conf is not executed because it is not in the whitelist.\n"


def judged(settings: ZooKeeperSettings) -> dict[str, str]:
    """What is not in order, with what to do."""
    return {check: f"{verdict}: {action}" for check, _, verdict, _, action in settings.examined() if verdict != "ok"}


def test_settings_of_the_docs_are_in_order() -> None:
    settings = told_by("a:2181", 3, SRVR, CONF)
    assert judged(settings) == {} and len(list(settings.examined())) == 5


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
    found = judged(told_by("a:2181", 3, srvr, conf))
    assert [*found] == [check] and found[check].startswith(words), found


def test_a_server_that_stands_alone_may() -> None:
    assert judged(told_by("a:2181", 1, SRVR.replace("follower", "standalone"), CONF)) == {}

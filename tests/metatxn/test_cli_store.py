"""Goal: `metatxn store dump` and `check` show a store that another process is serving, and say by their exit code
whether it is whole. Method: a development server in a process of its own, real transactions, and damage by hand."""

from __future__ import annotations

import errno
import io
import json
import shutil
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import metatxn
from metastore.backends.sqlite import SqliteStore
from metastore.txn.id_blocks import BLOCK_SIZE
from metastore.txn.store import INDEXES
from metatxn.cli import backup, progress
from metatxn.cli.main import run as run_command
from metatxn.cli.store import EMPTY
from participants.backup.pruning import GRACE_MS
from tests.metatxn.command_line import error_line, logs_as_before, run, run_here
from tests.metatxn.dev_server import DevServer
from tests.metatxn.test_cli_progress import Stream


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "data"


@pytest.fixture(scope="module")
def url(data_dir: Path) -> Iterator[str]:
    """A store that is served while the tests look into it."""
    with DevServer(data_dir) as server:
        with metatxn.connect(server.coordinator_url) as client:
            topics = [client.create_topic(f"t-{number}", 3).name for number in range(2)]
            epoch = client.connect_key("nightly").epoch
            client.begin(60_000, "nightly", epoch, 3).leave_open()
            for ending in ("commit", "abort", "leave_open"):
                txn = client.begin(600_000)
                for topic in topics:
                    client.producer(topic).send({"id": 7}, key=uuid.uuid4().hex, txn=txn)
                getattr(txn, ending)()
        yield store_url(data_dir)


def store_url(data_dir: Path) -> str:
    return f"sqlite:///{data_dir / 'metadata.db'}"


def rows_of(stdout: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stdout.splitlines()]


def test_dump_in_the_order_of_the_keys(url: str) -> None:
    done = run_here("store", "dump", "--store", url)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    keys = [line.partition(" =")[0] for line in lines]
    assert keys == sorted(keys) and len(set(keys)) == len(keys)
    assert any(line.startswith("/txn-key/&nightly = {") for line in lines)
    assert any(line.startswith("/idx/txn-by-deadline/") and line.endswith(" =") for line in lines)


def test_dump_of_a_prefix_as_json(url: str) -> None:
    done = run_here("store", "dump", "--store", url, "--prefix", "/txn/", "--output", "json")
    rows = rows_of(done.stdout)
    assert sorted(row["value"]["state"] for row in rows) == ["ABORTED", "COMMITTED", "OPEN", "OPEN"]
    assert all(row["key"].startswith("/txn/") and row["version"] for row in rows)
    sequence = rows_of(run_here("store", "dump", "-o", "json", "--prefix", "/txn-seq/", METATXN_STORE=url).stdout)
    assert [row["value"] for row in sequence] == [BLOCK_SIZE + 1]
    assert run_here("store", "dump", "--store", url, "--prefix", "/nothing/").stdout == ""


def test_check_of_a_whole_store(url: str) -> None:
    done = run("store", "check", "--store", url)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.startswith("nothing wrong in ")
    done = run_here("store", "check", "--store", url, "-o", "json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_sizes_are_those_of_what_is_dumped(url: str) -> None:
    rows = rows_of(run_here("store", "dump", "--store", url, "-o", "json").stdout)
    found = json.loads(run_here("store", "sizes", "--store", url, "-o", "json").stdout)
    counted = Counter(row["key"].split("/")[1] for row in rows)
    assert {each["prefix"]: each["records"] for each in found} == {f"/{name}/": n for name, n in counted.items()}
    (sequence,) = (each for each in found if each["prefix"] == "/txn-seq/")
    (key, value) = next((row["key"], row["value"]) for row in rows if row["key"].startswith("/txn-seq/"))
    assert sequence["bytes"] == len(key) + len(str(value))
    lines = run_here("store", "sizes", "--store", url).stdout.splitlines()
    assert lines[0].split() == ["KEYS", "BEGIN", "WITH", "RECORDS", "SIZE"] and len(lines) == 1 + len(counted)


async def test_an_empty_store_is_said_to_be_empty(tmp_path: Path) -> None:
    """Perhaps it is another one than was meant. JSON has nothing but the answer."""
    await (await SqliteStore.open(tmp_path / "metadata.db", INDEXES)).close()
    store = store_url(tmp_path)
    checked, dumped, sizes = [run("store", name, "--store", store) for name in ("check", "dump", "sizes")]
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, f"{EMPTY}\n", "")
    assert (dumped.returncode, dumped.stdout, dumped.stderr) == (0, "", f"note: {EMPTY}\n")
    assert sizes.returncode == 0 and sizes.stderr == f"note: {EMPTY}\n"
    as_json = run("store", "check", "--store", store, "-o", "json")
    assert (as_json.returncode, as_json.stdout, as_json.stderr) == (0, "[]\n", f"note: {EMPTY}\n")
    assert run("store", "dump", "--store", store, "--prefix", "/txn/").stderr == "", "nothing has this prefix"


def test_check_of_a_damaged_store(url: str, tmp_path: Path) -> None:
    """A copy as a backup makes it, one index entry is lost, and one value is no text at all."""
    copy = tmp_path / "metadata.db"
    with sqlite3.connect(f"file:{url.removeprefix('sqlite:///')}?mode=ro", uri=True) as served:
        with sqlite3.connect(copy) as target:
            served.backup(target)
            target.execute("DELETE FROM records WHERE key = (SELECT max(key) FROM records WHERE key LIKE ?)", [LOST])
            target.execute("INSERT INTO records VALUES ('/odd', x'ff', 1, 1, 0)")
        target.close()
    served.close()
    damaged = store_url(tmp_path)
    done = run_here("store", "check", "--store", damaged, "-o", "json")
    assert done.returncode == 1
    found = {row["key"]: row for row in json.loads(done.stdout)}
    (lost,) = (row for key, row in found.items() if key.startswith("/txn/"))
    assert "deadline index" in lost["problem"] and "metatxn txn abort" in lost["action"]
    assert set(found) == {lost["key"], "/odd"}
    assert json.loads(done.stderr)["error"].startswith("2 findings in ") and done.stderr.count("\n") == 1
    table = run_here("store", "check", "--store", damaged)
    assert table.returncode == 1
    lines = table.stdout.splitlines()
    assert lines[0].split() == ["KEY", "PROBLEM", "ACTION"] and len(lines) == 3 and lost["key"] in table.stdout
    assert run_here("store", "dump", "--store", damaged, "--prefix", "/odd").stdout == "/odd = b'\\xff'\n"
    (odd,) = rows_of(run_here("store", "dump", "--store", damaged, "--prefix", "/odd", "-o", "json").stdout)
    assert odd == {"key": "/odd", "version": 1, "value_base64": "/w=="}


LOST = "/idx/txn-by-deadline/%"


def test_after_the_server_has_stopped(tmp_path: Path) -> None:
    with DevServer(tmp_path) as server, metatxn.connect(server.coordinator_url) as client:
        client.begin(60_000).commit()
    before = (tmp_path / "metadata.db").read_bytes()
    done = run_here("store", "check", "--store", store_url(tmp_path))
    assert done.returncode == 0 and done.stdout.startswith("nothing wrong in ")
    assert (tmp_path / "metadata.db").read_bytes() == before


@pytest.mark.parametrize(
    ("store", "says"),
    [
        ("sqlite:///nowhere/to/be/found.db", "there is no file"),
        ("sqlite:////tmp", "there is no file"),
        ("etcd://127.0.0.1:1", "does not answer"),
        ("zk://127.0.0.1:1", "does not answer"),
        ("memory://", "another process"),
        ("redis://x", "no kind of store named"),
    ],
)
@pytest.mark.parametrize("command", ["dump", "check"])
def test_a_store_that_cannot_be_opened(command: str, store: str, says: str) -> None:
    assert says in error_line(run_here("store", command, "--store", store))


def test_a_prefix_without_its_slash(url: str) -> None:
    assert "Give /txn/." in error_line(run_here("store", "dump", "--store", url, "--prefix", "txn/"))


def test_recover_a_store_that_was_restored(tmp_path: Path) -> None:
    """The whole way of an operator, from the server that does not start to the one that serves."""
    data, backup = tmp_path / "data", tmp_path / "backup.db"
    with DevServer(data) as server, metatxn.connect(server.coordinator_url) as client:
        client.create_topic("t")
    shutil.copy(data / "metadata.db", backup)
    with DevServer(data) as server, metatxn.connect(server.coordinator_url) as client, client.transaction() as txn:
        client.producer("t").send({"id": 1}, txn=txn)
    shutil.copy(backup, data / "metadata.db")

    refused = run_here("dev", "--data-dir", str(data), "--port", "0", "--broker-port", "0")
    said = refused.stderr.splitlines()[-1]
    assert refused.returncode == 1 and "went back in time" in said and "`metatxn store recover`" in said
    recover = ["store", "recover", "--store", store_url(data), "--data-dir", str(data / "broker")]
    shown = run_here(*recover)
    assert (shown.returncode, shown.stderr) == (0, ""), shown
    assert "unknown ledger" in shown.stdout and "adopted" in shown.stdout and "nothing was changed" in shown.stdout
    assert "--undecided" in error_line(run_here(*recover, "--yes"))
    done = run_here(*recover, "--undecided", "commit", "--yes", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ledgers adopted"] == 1
    with DevServer(data) as server, metatxn.connect(server.coordinator_url) as client:
        assert client.read_table("t").to_pylist() == [{"id": 1}]
        served = run_here(*recover, "--undecided", "abort", "--yes")
        assert "in use" in error_line(served) or "being served" in error_line(served)


def test_a_store_that_is_not_there_is_not_recovered(tmp_path: Path) -> None:
    """A typing error in its path would otherwise recover a new store, while the real one stays as it is."""
    for more in ((), ("--undecided", "abort", "--yes")):
        refused = error_line(run_here("store", "recover", "--store", store_url(tmp_path / "typo"), *more))
        assert f"there is no file {tmp_path / 'typo' / 'metadata.db'}" in refused
        assert not (tmp_path / "typo").exists()


def test_what_was_done_begins_a_line_behind_the_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a backup, a restore and its trial: the line that counts is gone before."""
    monkeypatch.setattr(progress, "FIRST_AFTER_S", 0)
    data, new, to = tmp_path / "data", tmp_path / "new", f"file://{tmp_path / 'backups'}"
    with DevServer(data) as server, metatxn.connect(server.coordinator_url) as client:
        client.create_topic("orders")
        client.producer("orders").send({"id": 7}).result()
    restore = ["restore", "--from", to, "--store", store_url(new), "--data-dir", str(new / "broker")]
    for command in (
        ["backup", "--store", store_url(data), "--data-dir", str(data / "broker"), "--to", to],
        [*restore, "--dry-run"],
        restore,
    ):
        with logs_as_before(), redirect_stderr(Stream(terminal=True)) as shown, redirect_stdout(shown):
            assert run_command(command) == 0
        counted, _, done = shown.getvalue().rpartition("\x1b[K")
        assert " MB " in counted and "ledgers" in done and "ledgers" not in counted


class Full(io.StringIO):
    """On a disk that has no room."""

    def write(self, text: str, /) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_an_output_that_takes_no_more_is_no_fault_of_the_store(url: str) -> None:
    for command in (["dump"], ["dump", "-o", "json"]):
        with logs_as_before(), redirect_stdout(Full()), redirect_stderr(io.StringIO()) as said:
            assert run_command(["store", *command, "--store", url]) == 1
        assert "the output cannot be written: No space left on device." in said.getvalue()


def test_an_interrupted_restore_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(backup, "with_backups", interrupted)
    place = ("--store", store_url(tmp_path), "--data-dir", str(tmp_path / "broker"))
    done = run_here("restore", "--from", f"file://{tmp_path}", *place)
    assert done.returncode == 130 and "The same command begins it again." in error_line(done)


def test_a_cluster_is_backed_up_while_it_serves_and_restored(tmp_path: Path) -> None:
    """Into an empty one, with what was committed; a transaction that was open is aborted."""
    data, new, to = tmp_path / "data", tmp_path / "new", f"file://{tmp_path / 'backups'}"
    backup = ["backup", "--store", store_url(data), "--data-dir", str(data / "broker"), "--to", to]
    with DevServer(data) as server:
        with metatxn.connect(server.coordinator_url) as client:
            client.create_topic("orders")
            client.producer("orders").send({"id": 7}).result()
            txn = client.begin(600_000)
            client.producer("orders").send({"id": 8}, txn=txn).result()
            txn.leave_open()
        first = json.loads(run_here(*backup, "-o", "json").stdout)
        assert first["ledgers"] == 1 and first["copied_bytes"] == first["bytes"] > 0
        assert "copied bytes" in run_here(*backup).stdout
    listed = json.loads(run_here("backup", "list", "--from", to, "-o", "json").stdout)
    assert listed[0]["backup"] == first["backup"] and len(listed) == 2
    assert first["backup"] in run_here("backup", "list", "--from", to).stdout
    assert run_here("backup", "verify", "--from", to).stdout == "nothing wrong in the backup\n"
    restore = ["restore", "--from", to, "--store", store_url(new), "--data-dir", str(new / "broker")]
    tried = run_here(*restore, "--dry-run", "-o", "json", "--storage", f"file://{tmp_path / 'objects'}")
    would = json.loads(tried.stdout)
    assert (would["dry_run"], would["store"], would["storages"], would["problems"]) == (True, "new", 2, 0), tried
    assert would["ledgers"] == 1 and not new.exists() and not (tmp_path / "objects").exists()
    assert json.loads(run_here("store", *restore, "-o", "json").stdout)["transactions_aborted"] == 1
    assert "the store is not empty" in error_line(run_here(*restore))
    assert "the store is not empty" in error_line(run_here(*restore, "--dry-run"))
    elsewhere = [*restore[:4], store_url(tmp_path / "third"), *restore[5:]]
    assert "has ledgers already" in error_line(run_here(*elsewhere, "--dry-run"))
    assert "has ledgers already" in error_line(run_here(*elsewhere)) and not (tmp_path / "third").exists()
    assert run_here("store", "check", "--store", store_url(new)).stdout.startswith("nothing wrong in ")
    with DevServer(new) as server, metatxn.connect(server.coordinator_url) as client:
        assert client.read_table("orders").to_pylist() == [{"id": 7}]
        assert [each.state for each in client.transactions()] == ["ABORTED"]
    next((tmp_path / "backups" / "ledgers").rglob("0-*")).write_bytes(b"damaged")
    damaged = run_here("backup", "verify", "--from", to, "-o", "json")
    assert damaged.returncode == 1 and "is not what was written" in damaged.stdout
    tried = run_here(*restore[:4], store_url(tmp_path / "third"), "--data-dir", str(tmp_path / "third"), "--dry-run")
    assert tried.returncode == 1 and "the backup is damaged: " in tried.stderr and not (tmp_path / "third").exists()
    page = next((tmp_path / "backups" / "backups" / listed[0]["backup"]).glob("records*"))
    page.write_bytes(page.read_bytes()[1:])
    third = ["--store", store_url(tmp_path / "third"), "--data-dir", str(tmp_path / "third")]
    refused = error_line(run_here(*restore[:3], *third, "--backup", listed[0]["backup"]))
    assert "is not what was written" in refused and refused.endswith("Use another backup, and empty places for it.\n")
    assert not (tmp_path / "third").exists()
    newest = tmp_path / "backups" / "backups" / listed[1]["backup"] / "manifest"
    newest.write_bytes(newest.read_bytes().replace(b'"format": 1', b'"format": 2', 1))
    known, newer = json.loads(run_here("backup", "list", "--from", to, "-o", "json").stdout)
    assert known == listed[0] and "has format 2" in newer["problem"]
    assert "has format 2" in run_here("backup", "list", "--from", to).stdout
    assert "Give another place with --to." in error_line(run_here(*backup))
    assert "file:///directory" in error_line(run_here(*backup[:-1], str(tmp_path / "backups")))
    assert "--to" in error_line(run_here("backup")) and "--data-dir" in error_line(run_here(*restore[:5]))
    assert "there is no backup 7 here" in error_line(run_here(*restore, "--backup", "7"))
    typed = tmp_path / "bakups"
    assert "there is no directory" in error_line(run_here("backup", "list", "--from", f"file://{typed}"))
    assert not typed.exists()


def test_old_backups_are_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day later: until then one that is being taken may build upon them."""
    data, to = tmp_path / "data", f"file://{tmp_path / 'backups'}"
    backup = ["backup", "--store", store_url(data), "--data-dir", str(data / "broker"), "--to", to, "-o", "json"]
    prune = ["backup", "prune", "--from", to, "--keep", "1"]
    with DevServer(data) as server, metatxn.connect(server.coordinator_url) as client:
        client.create_topic("orders")
        names = []
        for number in range(3):
            client.producer("orders").send({"id": number}).result()
            names.append(json.loads(run_here(*backup).stdout)["backup"])

    def listed() -> list[str]:
        return [each["backup"] for each in json.loads(run_here("backup", "list", "--from", to, "-o", "json").stdout)]

    early = json.loads(run_here(*prune, "-o", "json").stdout)
    assert early == {"removed": [], "kept": names, "objects": 0, "bytes": 0}
    later = time.time_ns() // 1_000_000 + GRACE_MS
    monkeypatch.setattr("participants.backup.command._now_ms", lambda: later)
    would = json.loads(run_here(*prune, "--dry-run", "-o", "json").stdout)
    assert (would["dry_run"], would["removed"], would["kept"]) == (True, names[:2], names[2:])
    assert listed() == names
    done = run_here(*prune)
    assert ", ".join(names[:2]) in done.stdout and f"{would['objects']}" in done.stdout
    assert [
        each["backup"] for each in json.loads(run_here("backup", "list", "--from", to, "-o", "json").stdout)
    ] == names[2:]
    assert run_here("backup", "verify", "--from", to).stdout == "nothing wrong in the backup\n"
    assert {path.parent.name for path in (tmp_path / "backups" / "backups").glob("*/*")} == {names[2]}
    assert "there is no directory" in error_line(run_here(*prune[:3], f"file://{tmp_path}/typo", "--keep", "1"))
    assert run_here(*prune[:-1], "0").returncode == 2

"""Goal: whatever dies, every input row is exactly once in every topic, no reader ever sees a row of a task attempt that
lost, and no transaction stays open.

Method: one job, from a topic to two topics with the input acknowledged in the same transaction, in a driver process of
its own; points in it where processes wait to be killed; readers who look at everything all the time. Rows that need two
hosts run on a standalone cluster on loopback addresses, the others in Spark's local mode.

Most rows run on SQLite, and some in which something is killed on etcd, each at one place. `make test-all` has more
places, tasks that fail, a driver that is killed, and a cluster with speculative copies, zombies and an executor that is
killed; `test_write_stories.py` always has such attempts, without a Spark, `test_batch_writer.py` and
`test_stream_writer.py` always have tasks that fail, and `tests/test_demo.py` a driver that is killed. `make
spark-matrix` has all rows at all places on both, and once more with a job
that aggregates, and writes inside `foreachBatch`.

Seen to fail, on SQLite and with the sink, when the connector was broken on purpose:

    a commit without its list of writers    tasks that fail, speculation, zombies, a killed executor
    an `abort()` that does nothing          all tasks fail, `stop()`
    the run's id as application id          the driver killed in a task, before the decision, behind the commit
    `txnAppId` ignored                      the deleted checkpoint
    a begin without a version               `commit()` raises, the driver killed behind the decision
    a client that tries only once           the coordinator restarts (on etcd)

and with the writes inside `foreachBatch`:

    a begin without a version               `commit()` raises, the driver killed behind the decision, behind the commit
    writers that are not remembered         tasks that fail, speculation, zombies, a killed executor
    a block that does not abort             all tasks fail, `stop()`
    input that is not acknowledged          `commit()` raises
    a key of its own for every driver       the driver killed in a task, before and behind the decision; the deleted
                                            checkpoint
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import metatxn
from tests.extent import usually
from tests.spark_connector.helpers import FULL, PATIENCE_S, STREAMS_TOPICS, void_entries, wait_until
from tests.spark_connector.matrix.cluster import ATTEMPTS, CLUSTER_CONF, Driver, StandaloneCluster, kill_executor
from tests.spark_connector.matrix.driver import OF_GROUPS, Way
from tests.spark_connector.matrix.points import Points
from tests.spark_connector.matrix.row import ROWS, Input, Row
from tests.spark_connector.matrix.services import PARTS, Services, Store

STORES: list[Store] = ["sqlite", "etcd"]
WAYS: list[Way] = ["sink", "foreach_batch"]

IN_A_TASK = "task 1.0 has sent some of batch 1"
BEFORE_THE_DECISION = "batch 1 is about to be decided"
BEHIND_THE_DECISION = "batch 1 is decided"
BEHIND_COMMIT = "batch 1 is committed"
"""Spark has not noted it yet."""
PLACES = (IN_A_TASK, BEFORE_THE_DECISION, BEHIND_THE_DECISION, BEHIND_COMMIT)
KILLS = [(store, place) for store in STORES for place in PLACES]
SHORT_KILLS = [
    *[("etcd", BEHIND_COMMIT), ("sqlite", IN_A_TASK)],
    *[("etcd", BEFORE_THE_DECISION), ("sqlite", BEHIND_THE_DECISION)],
]
RESTARTS = [
    (store, part, place) for store in STORES for part in PARTS[store] for place in (IN_A_TASK, BEFORE_THE_DECISION)
]
FEW_RESTARTS = [("etcd", "broker", IN_A_TASK), ("etcd", "store", BEFORE_THE_DECISION)]
SHORT_RESTARTS = usually(
    FEW_RESTARTS, [*FEW_RESTARTS, ("sqlite", "dev", IN_A_TASK), ("etcd", "coordinator", BEFORE_THE_DECISION)]
)
MORE = usually(FULL, True)

pytestmark = [
    pytest.mark.timeout(3 * PATIENCE_S),
    pytest.mark.parametrize("way", WAYS if FULL else WAYS[:1]),
]
on_sqlite = pytest.mark.parametrize("store", STORES if FULL else STORES[:1], scope="module")
on_etcd = pytest.mark.parametrize("store", STORES, scope="module")
kills = pytest.mark.parametrize(("store", "place"), KILLS if FULL else SHORT_KILLS, scope="module")
restarts = pytest.mark.parametrize(("store", "part", "place"), RESTARTS if FULL else SHORT_RESTARTS, scope="module")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("matrix")


@pytest.fixture(scope="module")
def points(directory: Path) -> Points:
    return Points(directory / "points")


@pytest.fixture(scope="module")
def services(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with Services(store, tmp_path_factory.mktemp(store)) as services:
        yield services


@pytest.fixture(scope="module")
def given(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Input:
    with metatxn.connect(services.url) as client:
        return Input(client, tmp_path_factory.mktemp("input"), as_topic=STREAMS_TOPICS)


@pytest.fixture(scope="module")
def driver(directory: Path, points: Points) -> Iterator[Driver]:
    with Driver(directory / "driver", points.directory) as driver:
        yield driver


@pytest.fixture
def row(way: Way, services: Services, driver: Driver, points: Points, given: Input, directory: Path) -> Iterator[Row]:
    with Row(way, services, driver, points, given, directory) as row:
        yield row


@pytest.fixture(scope="module")
def cluster_driver(directory: Path, points: Points) -> Iterator[Driver]:
    with (
        StandaloneCluster(directory / "cluster", points.directory) as cluster,
        Driver(directory / "cluster-driver", points.directory, cluster.master, CLUSTER_CONF) as driver,
    ):
        yield driver


@pytest.fixture
def cluster_row(
    way: Way, services: Services, cluster_driver: Driver, points: Points, given: Input, directory: Path
) -> Iterator[Row]:
    with Row(way, services, cluster_driver, points, given, directory) as row:
        yield row


# -- tasks -----------------------------------------------------------------------------------------------------------


if MORE:

    @on_sqlite
    def test_tasks_fail_and_are_retried(row: Row) -> None:
        """Before they have sent anything, in the middle, and when all is durable."""
        failures = ["task 1.0 begins batch 0", "task 1.0 has sent some of batch 1", "task 1.0 has written batch 2"]
        if row.job.way == "foreach_batch":
            failures += [failure + OF_GROUPS for failure in failures]
        row.points.arm("raise", *failures)
        row.run()
        assert all(row.points.reached(failure) for failure in failures)
        row.check()
        assert sum(void_entries(row.client, topic) for topic in row.job.outputs) > 0

    @on_sqlite
    def test_all_tasks_of_a_batch_fail(row: Row) -> None:
        """The driver is told of no transaction, and finds it all the same: readers do not wait for its timeout."""
        row.points.arm(
            "raise", *(f"task {part}.{attempt} has written batch 1" for part in (0, 1) for attempt in range(ATTEMPTS))
        )
        assert "on purpose: task" in row.fail()
        assert not row.open_transactions()
        row.points.clear()
        row.run()
        row.check()


# -- the driver's steps ----------------------------------------------------------------------------------------------


@on_sqlite
def test_commit_raises_after_it_has_committed(row: Row) -> None:
    """Spark then calls abort(), if it was the sink's: what is committed stays."""
    row.points.arm("raise", "batch 1 is committed")
    row.points.arm("note", "batch 1 is aborted")
    assert "on purpose: batch 1 is committed" in row.fail()
    assert row.points.reached("batch 1 is aborted") == (row.job.way == "sink")
    row.points.clear()
    row.run()
    row.check()


@on_sqlite
def test_the_query_is_stopped_in_the_middle_of_a_batch(row: Row) -> None:
    held = [f"task {part}.0 has sent some of batch 1" for part in (0, 1)]
    row.points.arm("hold", *held)
    row.start()
    for point in held:
        row.points.wait(point)
    row.driver.stop_query()
    row.succeed()
    assert not row.open_transactions()
    row.points.clear()
    row.run()
    row.check()


@on_sqlite
def test_a_deleted_checkpoint(row: Row) -> None:
    """With `txnAppId` the query is the same one, and its batches are committed already. Without it, or with another
    one, it is another query: it fails where its input is acknowledged already, else it writes all of it again."""
    row.change(app_id=f"app-{row.job.outputs[0]}")
    row.run()
    shutil.rmtree(row.job.checkpoint)
    row.run()
    row.check()
    row.change(app_id=None)
    if row.job.subscription is not None:
        shutil.rmtree(row.job.checkpoint)
        assert "TXN_CONFLICT" in row.fail()
        row.check()
    shutil.rmtree(row.job.checkpoint)
    row.change(subscription=None)
    row.look_away()
    row.run()
    assert all(row.ids(topic) == sorted(2 * list(range(ROWS))) for topic in row.job.outputs)


if MORE:

    @kills
    def test_the_driver_is_killed(row: Row, place: str) -> None:
        """In a task, inside commit() before and behind the decision, and behind commit() but before Spark's own log."""
        row.points.arm("hold", place)
        row.start()
        row.points.wait(place)
        row.driver.kill()
        row.points.clear()
        row.run()
        row.check()


# -- services --------------------------------------------------------------------------------------------------------


@restarts
def test_a_service_restarts(row: Row, part: str, place: str) -> None:
    """While tasks write, and while the driver commits: it goes on before the service is there again, and waits for it.
    No task needs Spark to run it again."""
    again = [f"task {number}.1 begins batch 1" for number in (0, 1)]
    row.points.arm("hold", place)
    row.points.arm("note", *again)
    row.start()
    row.points.wait(place)
    row.services.parts[part].kill()
    row.points.open(place)
    row.services.parts[part].start()
    row.succeed()
    assert not any(row.points.reached(task) for task in again)
    row.check()


# -- a cluster -------------------------------------------------------------------------------------------------------


def _let_end(row: Row, zombie: str) -> None:
    process = Path("/proc", str(row.points.wait(zombie)["pid"]))
    row.points.open(zombie)
    wait_until(lambda: not process.exists(), "the zombie has ended")


if MORE:

    @on_sqlite
    def test_a_speculative_duplicate_finishes(cluster_row: Row) -> None:
        """Both attempts have written everything; the later one, which waits to be the later one, has won."""
        loser, winner = "task 1.0 has written batch 1", "task 1.1 begins batch 1"
        cluster_row.points.arm("hold", loser, winner)
        cluster_row.start()
        assert cluster_row.points.wait(loser)["rows"] > 0
        cluster_row.points.open(winner)
        cluster_row.succeed()
        cluster_row.check()
        assert void_entries(cluster_row.client, cluster_row.job.outputs[0]) > 0

    @on_sqlite
    def test_zombies_go_on_after_their_batch_is_committed(cluster_row: Row) -> None:
        """One is about to begin, and learns that the batch is committed; another one has sent some, and may not send
        the rest."""
        starts, sends = "task 1.0 begins batch 0", "task 1.0 has sent some of batch 1"
        cluster_row.points.arm("hold", starts, sends)
        cluster_row.start()
        cluster_row.points.wait(sends)  # so batch 0 is committed; its zombie has the core that batch 1 needs now
        _let_end(cluster_row, starts)
        cluster_row.succeed()
        _let_end(cluster_row, sends)
        cluster_row.check()
        assert void_entries(cluster_row.client, cluster_row.job.outputs[0]) > 0

    @on_etcd
    def test_an_executor_is_killed(cluster_row: Row) -> None:
        """All tasks of the batch are held, so that none of them is a duplicate of another one."""
        held = [f"task {part}.0 has sent some of batch 1" for part in (0, 1)]
        cluster_row.points.arm("hold", *held)
        cluster_row.start()
        daemons = [cluster_row.points.wait(point)["parent"] for point in held]
        kill_executor(daemons[1])
        cluster_row.points.open(*held)
        cluster_row.succeed()
        cluster_row.check()

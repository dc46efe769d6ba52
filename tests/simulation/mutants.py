"""Deliberate bugs, one for each rule that must not be broken: the simulation has to find every one of them.

    python -m tests.simulation.mutants              all of them; writes the table of docs/simulation.md
    python -m tests.simulation.mutants NAME …       these, without writing

Each is applied to a copy of the source, in which seeds are run until one fails, at most `SEEDS`. That seed must pass
without the mutant: otherwise it has found a bug of ours, which comes first. A mutant whose text is not found exactly
once is an error: the rule has moved, and the mutant must move with it (`test_mutants.py`). What was found of a mutant
is kept in build/mutants under the digest of that very copy, so that a run which was cut off goes on where it was.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.simulation.record import source_digest
from tests.simulation.run import run_seed

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "simulation.md"
KEPT = ROOT / "build" / "mutants"
SEEDS = 200
_PACKAGES = ("metastore", "service", "coordinator", "participants", "metatxn", "tests")
_KEYS = "coordinator/transaction_keys.py"
_BEGIN, _END = "<!-- mutants -->\n", "<!-- end of mutants -->\n"


class Edit(NamedTuple):
    """`before` becomes `after` in the file at `path`."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """An edit. `rule` is what that breaks, with its place in DESIGN §5.

    `workload` is the one that can show it; the others would only take their turns. `others` are the edits that take
    away what also holds the rule, where two guards are meant to."""

    name: str
    rule: str
    path: str
    before: str
    after: str
    workload: str = "bank"
    others: tuple[Edit, ...] = ()

    @property
    def edits(self) -> tuple[Edit, ...]:
        return Edit(self.path, self.before, self.after), *self.others

    def apply(self, root: Path) -> None:
        """To the source at `root`."""
        for edit in self.edits:
            source = root / edit.path
            text = source.read_text()
            assert text.count(edit.before) == 1, f"{self.name}: {text.count(edit.before)} places in {edit.path}"
            source.write_text(text.replace(edit.before, edit.after))


MUTANTS = (
    Mutant(
        "intent-without-header-guard",
        "5.1: an operation is created only while the header is open",
        "metastore/txn/store.py",
        "    batch.check(FirstVersion(paths.header(txn_id)), Absent(paths.prepared(txn_id)))\n    return batch.create(",
        "    batch.check(Absent(paths.prepared(txn_id)))\n    return batch.create(",
    ),
    Mutant(
        "decision-ignored-by-append",
        "5.5: a publish whose append has not begun is refused once the decision is seen",
        "participants/segment/segment.py",
        "            if transaction.decision is not None:\n                raise refusal(transaction.txn_id, "
        "transaction.decision.header)\n            append =",
        "            append =",
    ),
    Mutant(
        "frames-do-not-pin",
        "5.4: a transaction that is undecided holds readers back below its first frame",
        "participants/txn/buffer.py",
        "            del transaction.intents[intent]\n            self._add_frame(transaction, position, writer)\n",
        "            del transaction.intents[intent]\n        self._add_frame(transaction, position, writer)\n",
    ),
    Mutant(
        "release-without-drain",
        "5.5: appends that were begun are drained before the horizon is released",
        "participants/segment/segment.py",
        "if transaction.decision is None or transaction.unfinished_appends or transaction.released or self.lost:",
        "if transaction.decision is None or transaction.released or self.lost:",
    ),
    Mutant(
        "ops-deleted-before-the-outcome",
        "5.5: the outcome record first, and only then the operations",
        "participants/txn/materializer.py",
        "        if outcome is not None:\n            batch.create(",
        "        if outcome is not None and not records:\n            batch.create(",
    ),
    Mutant(
        "aborted-not-remembered",
        "5.6: what a reader must hide is durable before the operations go",
        "participants/txn/buffer.py",
        "            return Outcome(highest=highest, aborted=True)",
        "            return None",
    ),
    Mutant(
        "unknown-is-aborted",
        "5.6: a transaction that nobody remembers is committed",
        "participants/txn/buffer.py",
        "        if outcome is None:\n            return False",
        "        if outcome is None:\n            return txn_id not in self._tracked",
    ),
    Mutant(
        "void-writers-count",
        "5.12: what the commit does not list is void",
        "participants/txn/buffer.py",
        "        if counted is not None and not transaction.writers <= set(counted):",
        "        if False and counted is not None:",
    ),
    Mutant(
        "gc-without-empty-check",
        "5.7: a header goes only when the store proves that no operation is left",
        "coordinator/gc_sweep.py",
        ".remove(record).check(EmptyRange(operations, prefix_end(operations)))",
        ".remove(record)",
    ),
    Mutant(
        "gc-without-horizon",
        "5.7: the horizon is advanced before headers are deleted",
        "coordinator/gc_sweep.py",
        "        await self._advance_horizon(reached)\n",
        "",
    ),
    Mutant(
        "snapshot-of-collected-decisions",
        "7: a snapshot older than what was collected is refused",
        "participants/segment/segment.py",
        "> revision:\n            raise ServiceError(\n                ErrorCode.INVALID_ARGUMENT,\n"
        '                f"revision: {revision} is too old',
        "> 1 << 60:\n            raise ServiceError(\n                ErrorCode.INVALID_ARGUMENT,\n"
        '                f"revision: {revision} is too old',
    ),
    Mutant(
        "snapshot-without-revision",
        "7: a snapshot shows nothing that was decided later",
        "participants/segment/segment.py",
        "            elif record.first or record.version > revision:",
        "            elif record.first:",
    ),
    Mutant(
        "snapshot-without-catching-up",
        "7: whoever reads a snapshot first closes what was decided before it",
        "participants/segment/segment.py",
        "        while any(t.decision is not None and not t.released for t in self.buffer.tracked()):",
        "        while False:",
    ),
    Mutant(
        "watch-resumes-one-too-late",
        "5.8: the watch goes on right behind the listing",
        "metastore/watches.py",
        "self._store.watch(self.prefix, self.revision + 1)",
        "self._store.watch(self.prefix, self.revision + 2)",
    ),
    Mutant(
        "resync-without-listing",
        "5.8: after a gap the mirror lists again",
        "metastore/watches.py",
        "                    await self._list_until_answered()\n",
        "                    self.revision = item.revision\n",
    ),
    Mutant(
        "dedup-forgotten-by-recovery",
        "5.13: the sequences are recovered from the durable frames",
        "participants/segment/recovery.py",
        "            if header.sequence is not None and (header.txn_id is None or header.txn_id in operations):",
        "            if header.sequence is not None and header.txn_id is None:",
    ),
    Mutant(
        "retry-does-not-join",
        "5.13: a retry joins the publish of its sequence that is in flight",
        "participants/segment/segment.py",
        "            if (in_flight := self.dedup.in_flight(scope, entry.sequence)) is not None:",
        "            if False and (in_flight := self.dedup.in_flight(scope, entry.sequence)) is not None:",
    ),
    Mutant(
        "acknowledged-before-the-sync",
        "5.3: an append is acknowledged when it is durable",
        "participants/ledger/group_commit.py",
        "        disk.fdatasync(fd)\n",
        "        pass\n",
    ),
    Mutant(
        "failed-sync-is-success",
        "5.5: an append with unknown outcome stops the ledger",
        "participants/ledger/group_commit.py",
        '        return GroupOutcome(StorageFailed(f"cannot sync the ledger: {error}"), clock() - began)',
        "        return GroupOutcome(None, clock() - began)",
    ),
    Mutant(
        "recovery-without-headers",
        "5.9: recovery takes the states of transactions from their headers",
        "participants/segment/recovery.py",
        "    headers = await around.mirror.read(undecided)\n",
        "    headers = {txn_id: None for txn_id in undecided}\n",
    ),
    Mutant(
        "recovery-without-pins",
        "5.9: recovery pins what is open at its frames",
        "participants/segment/recovery.py",
        "                segment.buffer.recovered_frame(transaction, header.position, header.writer)\n",
        "                pass\n",
    ),
    Mutant(
        "lost-decision-is-refused",
        "5.11: a decision whose answer was lost is looked up, not denied",
        "coordinator/settling.py",
        "            return await self._resolve(batch, lost)",
        "            from metastore.errors import StoreUnavailable\n\n"
        '            raise StoreUnavailable("no answer") from lost',
    ),
    Mutant(
        "opposite-end-succeeds",
        "5.11: the opposite action is refused",
        "coordinator/ends.py",
        "        if records.header.state is not TxnState.ABORTED:\n            raise",
        "        if False:\n            raise",
    ),
    Mutant(
        "other-writers-succeed",
        "5.12: a commit that is repeated has the same writers",
        "coordinator/ends.py",
        "        return committed(records.header, now_ms, counted)",
        "        return committed(records.header, now_ms, None)",
    ),
    Mutant(
        "deadline-entry-stays",
        "4: the entry of the deadline goes with the decision",
        "metastore/txn/store.py",
        "        batch.delete(paths.deadline_entry(records.deadline_ms, txn_id))\n        for record, key in (",
        "        for record, key in (",
    ),
    Mutant(
        "cursor-after-the-operations",
        "5.10: the cursor is durable before the operations of acknowledgements go",
        "participants/subscription/segment_subscription.py",
        "        self._end(txn_id)\n        await self._cursor_store.persist()\n",
        "        self._end(txn_id)\n",
        "consume",
    ),
    Mutant(
        "aborted-acknowledgements-count",
        "5.10: an abort returns what was acknowledged",
        "participants/subscription/segment_subscription.py",
        "if header is None or header.state is TxnState.COMMITTED:",
        "if True:",
        "consume",
    ),
    Mutant(
        "acknowledged-twice",
        "5.10: what a transaction has acknowledged no other one can",
        "participants/subscription/pending_acks.py",
        "            if holder != txn_id:\n                raise",
        "            if False:\n                raise",
        "consume",
    ),
    Mutant(
        "acknowledged-again",
        "5.10: what is deleted cannot be acknowledged in a transaction",
        "participants/subscription/pending_acks.py",
        "        if txn_id is not None and cursor.overlaps(span):",
        "        if False:",
        "consume",
    ),
    Mutant(
        "epoch-not-compared",
        "5.15: a transaction of a stale epoch does not commit",
        "coordinator/decisions.py",
        "        if final.state is TxnState.COMMITTED and held.epoch != header.epoch and not records.prepared_record:",
        "        if False:",
        "keyed",
        (
            Edit(
                _KEYS,
                "                unprepared = holder if holder and not holder.prepared_record else None\n",
                "                unprepared = None\n",
            ),
            Edit(
                _KEYS,
                "txn_id=str(holder.txn_id) if holder and holder.prepared_record else None,\n            last_version",
                "txn_id=str(holder.txn_id) if holder else None,\n            last_version",
            ),
        ),
    ),
    Mutant(
        "ids-in-use-are-adopted",
        "4: ids are never reused, so what began under a new id is somebody else's",
        "coordinator/settling.py",
        "                taken(unsent)\n                unsent = None\n",
        "                found = (await self.store.get_many([unsent.checks[0].key])).records[unsent.checks[0].key]\n"
        "                return unsent, Applied(found.version)\n",
        others=(
            Edit(
                "coordinator/transactions.py",
                "        return Begun(answers.describe(txn_id, header, revision), created=True)\n",
                "        return Begun(await self.get(txn_id), created=True)\n",
            ),
        ),
    ),
    Mutant(
        "an-id-in-use-is-tried-for-ever",
        "5.15: a begin under a key whose id is in use takes another one, and ends",
        _KEYS,
        "                        self._ids.in_use([txn_id])\n                        txn_id = None\n",
        "                        pass\n",
        "keyed",
        (
            Edit(
                "coordinator/patience.py",
                "        if self.rounds >= LEAST_ROUNDS:\n",
                "        self.rounds += 1\n        return True\n        if self.rounds >= LEAST_ROUNDS:\n",
            ),
        ),
    ),
    Mutant(
        "begin-under-any-epoch",
        "5.15: a stale epoch begins nothing",
        _KEYS,
        "                live = _live_at(held, epoch)\n",
        "                live = held.live or _live_at(held, epoch)\n",
        "keyed",
    ),
    Mutant(
        "key-without-epoch-is-current",
        "5.15: whoever begins under a key has connected, and knows its epoch",
        "coordinator/transactions.py",
        '        raise answers.invalid("epoch", "a begin under a transaction key needs the key\'s epoch", '
        "action=_CONNECT_FIRST)\n",
        "        pass\n",
        "keyed",
        (
            Edit(
                "coordinator/transactions.py",
                "        if request.transaction_key is not None and request.epoch is not None:\n"
                "            return await self.keys.begin(request, request.transaction_key, request.epoch)\n",
                "        if request.transaction_key is not None:\n"
                "            epoch = request.epoch\n"
                "            if epoch is None:\n"
                "                epoch = (await self.keys.get(request.transaction_key, request.owner)).epoch\n"
                "            return await self.keys.begin(request, request.transaction_key, epoch)\n",
            ),
        ),
    ),
    Mutant(
        "version-committed-again",
        "5.15: a version at or below the last one is committed already",
        _KEYS,
        "    return request.version is not None and last is not None and request.version <= last\n",
        "    return request.version is not None and last is not None and request.version < last\n",
        "keyed",
    ),
    Mutant(
        "key-forgets-its-version",
        "5.15: the last version moves in the apply of the commit",
        "coordinator/decisions.py",
        '            update["last_version"] = header.version\n',
        "            pass\n",
        "keyed",
    ),
    Mutant(
        "children-inherit-nothing",
        "5.13: children remember what their parents have taken",
        "participants/segment/dedup_snapshot.py",
        "            if inherited is not None:\n                table.inherit(",
        "            if False:\n                table.inherit(",
        "log",
    ),
    Mutant(
        "opened-by-an-old-record",
        "5.9: a segment is taken as it was read, else a recorded ledger is deleted as planned",
        "participants/segment/recovery.py",
        "around.store.batch().check(AtVersion(segment_key, segment_record.version))",
        "around.store.batch()",
        "bank",
    ),
    Mutant(
        "intent-without-owner-guard",
        "5.2: every apply of a participant checks its own generation",
        "participants/segment/segment.py",
        "        batch = self._store.batch().check(self.ownership.check)\n        put_write_op(",
        "        batch = self._store.batch()\n        put_write_op(",
        "passing",
    ),
    Mutant(
        "ack-without-owner-guard",
        "5.2, 5.7: an acknowledgement is stored only by the owner, for this incarnation",
        "participants/subscription/segment_subscription.py",
        "self._store.batch().check(self.segment.ownership.check, self.definition.check)\n        put_ack_ops(",
        "self._store.batch()\n        put_ack_ops(",
        "passing",
    ),
    Mutant(
        "lost-ack-between-brokers-is-denied",
        "5.10: an acknowledgement whose answer was lost between brokers is unknown",
        "participants/broker/peers.py",
        "    if reads:\n        return _unavailable(what, reason)\n",
        "    if True:\n        return _unavailable(what, reason)\n",
        "consume",
    ),
    Mutant(
        "partial-conflict-is-definite",
        "5.10: a refusal says whether other parts of the request were carried out",
        "participants/partly.py",
        "return final if nothing_done else final.partly()",
        "return final",
        "consume",
    ),
    Mutant(
        "intent-after-prepare",
        "5.1: a prepared transaction takes nothing more",
        "metastore/txn/store.py",
        "    batch.check(FirstVersion(paths.header(txn_id)), Absent(paths.prepared(txn_id)))\n    return batch.create(",
        "    batch.check(FirstVersion(paths.header(txn_id)))\n    return batch.create(",
    ),
    Mutant(
        "gc-horizon-goes-back",
        "5.7: the horizon of collected decisions only moves forward",
        "coordinator/gc_sweep.py",
        "wanted = known.joined(reached) if known else reached",
        "wanted = reached",
    ),
    Mutant(
        "aborted-holder-believed",
        "5.10: an aborted transaction is in nobody's way, also before the mirror has heard of it",
        "participants/subscription/share.py",
        "                if not await refused.part.freed_by_abort(refused.holder):\n                    raise\n",
        "                raise\n",
        "marks",
    ),
    Mutant(
        "remembered-writers-ignored",
        "5.12: a commit without a list counts the writers that were remembered",
        "coordinator/ends.py",
        "        counted = records.remembered_writers if self.writers is None else self.writers",
        "        counted = self.writers",
        "jobs",
    ),
    Mutant(
        "transactions-stay-in-memory",
        "5.5: what is durable and cleaned up is forgotten",
        "participants/segment/segment.py",
        "            self.buffer.forget(transaction)\n            self._headers",
        "            self._headers",
    ),
    Mutant(
        "cumulative-counts-once",
        "5.10: a cumulative acknowledgement covers all before it",
        "participants/subscription/segment_subscription.py",
        "            cumulative=True if ack.cumulative else None,",
        "            cumulative=None,",
        "marks",
    ),
    Mutant(
        "trim-forgets-every-outcome",
        "5.6: outcomes are kept until their entries are trimmed",
        "participants/txn/buffer.py",
        "            if Position.parse(outcome.highest) <= trimmed:",
        "            if trimmed:",
        "marks",
    ),
    Mutant(
        "commit-without-flush",
        "the client: what was sent inside is durable before the commit",
        "metatxn/transaction.py",
        "            await asyncio.gather(*[sender.flush(self._id) for sender in self._senders])\n",
        "",
        "library",
    ),
)


def main() -> int:
    wanted = sys.argv[1:]
    chosen = [mutant for mutant in MUTANTS if not wanted or mutant.name in wanted]
    rows = []
    missed = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, row in zip(chosen, pool.map(caught, chosen), strict=True):
            rows.append(row)
            if row is None:
                missed.append(mutant.name)
            _say(f"{mutant.name}: {f'{row[0]}, seed {row[1]}' if row else 'NOT CAUGHT'}")
    if missed:
        _say(f"not caught within {SEEDS} seeds: {', '.join(missed)}")
        return 1
    if not wanted:
        _write_table([(mutant, *row) for mutant, row in zip(chosen, rows, strict=True) if row])
    return 0


def caught(mutant: Mutant) -> tuple[str, int] | None:
    """The promise that was seen broken, and the seed that showed it; None when all seeds passed."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        copy = Path(place)
        for package in _PACKAGES:
            shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
        mutant.apply(copy)
        kept = KEPT / f"{mutant.name}-{source_digest(copy, SEEDS, mutant.workload)}.json"
        if not kept.exists():
            found = _find_in(copy, 1, SEEDS, mutant.workload)
            if found is not None:
                for edit in mutant.edits:
                    shutil.copy(ROOT / edit.path, copy / edit.path)
                ours = _find_in(copy, found[1], found[1], mutant.workload)
                assert ours is None, f"{mutant.name}: without it, too, this is found: {ours}"
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(found))
    found = json.loads(kept.read_text())
    return None if found is None else (found[0], found[1])


def find(first: int, last: int, workload: str) -> tuple[str, int] | None:
    """The promise that the first of these seeds to fail shows broken, and that seed; None when all pass."""
    for seed in range(first, last + 1):
        if violations := run_seed(seed, workload).violations:
            return violations[0].partition(":")[0], seed
    return None


def _find_in(copy: Path, first: int, last: int, workload: str) -> tuple[str, int] | None:
    """`find` in a copy of the source."""
    asked = f"print(json.dumps(mutants.find({first}, {last}, {workload!r})))"
    run = subprocess.run(
        [sys.executable, "-c", f"import json; from tests.simulation import mutants; {asked}"],
        cwd=copy,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(run.stdout.splitlines()[-1])
    return None if found is None else (found[0], found[1])


def _write_table(rows: list[tuple[Mutant, str, int]]) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    lines = [f"Of the source at {commit}: {len(rows)} mutants, all caught, with at most {SEEDS} seeds each.\n\n"]
    lines += ["| mutant | rule | workload | caught by | seeds |\n", "|---|---|---|---|---:|\n"]
    lines += [
        f"| `{mutant.name}` | {mutant.rule} | {mutant.workload} | {promise} | {seed} |\n"
        for mutant, promise, seed in rows
    ]
    page = PAGE.read_text()
    begin, end = page.index(_BEGIN) + len(_BEGIN), page.index(_END)
    PAGE.write_text(page[:begin] + "".join(lines) + page[end:])


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

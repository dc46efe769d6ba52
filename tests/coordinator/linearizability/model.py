"""What one coordinator that is alone answers to one call after another: the rules of DESIGN §5, without a store.

The object is a *family*: a transaction key with everything that was begun under it, or one transaction without a key.
A request is what the clients write down (see `clients`). An answer is the code of a refusal, or a tuple:

    begin         ("begun", created?, id), ("committed before",)     get, and all verbs of a transaction     `described`
    connect       ("epoch", epoch)                                   key         (epoch, id it holds, last version)
    delete        ("deleted", epoch, last version)
    holds         (epoch, id of the prepared one it holds, last version)         fenced      (is it?,)
    expire        ()

Deadlines are known by their *level*: how many times `LEVEL_MS` they are away from the beginning of the transaction,
rounded down, which is what was asked for as long as no run takes `LEVEL_MS`. Level 0 is due within the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

LEVEL_MS = 1_000_000

Request = Mapping[str, Any]
Answer = str | tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Txn:
    level: int
    epoch: int | None = None
    version: int | None = None
    state: str = "OPEN"
    prepared: bool = False
    remembered: frozenset[str] = frozenset()
    counted: tuple[str, ...] | None = None
    fenced: bool = False
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """`epoch` is -1 while the key was never used. `holds` is the id of its open transaction. What is left of a deleted
    key is its epoch, its last version and who was fenced."""

    txns: frozenset[tuple[str, Txn]] = frozenset()
    epoch: int = -1
    session: str | None = None
    fenced_sessions: frozenset[str] = frozenset()
    holds: str | None = None
    last_version: int | None = None
    deleted: bool = False

    def txn(self, txn_id: str | None) -> Txn | None:
        return dict(self.txns).get(txn_id or "")

    def having(self, txn_id: str, txn: Txn) -> Family:
        return replace(self, txns=frozenset({**dict(self.txns), txn_id: txn}.items()))

    def ended(self, txn_id: str, txn: Txn, **final: Any) -> Family:
        """The transaction is decided, and the key lets go of it."""
        family = self.having(txn_id, replace(txn, prepared=False, **final))
        return replace(family, holds=None) if self.holds == txn_id else family

    @property
    def live(self) -> bool:
        return self.epoch >= 0 and not self.deleted

    def fencing(self, *, prepared: bool = False) -> Family:
        """Whatever the key holds is aborted; one that is prepared only if it says so."""
        held = self.txn(self.holds)
        if self.holds is None or held is None or (held.prepared and not prepared):
            return self
        return self.ended(self.holds, held, state="ABORTED", fenced=True)


Performed = tuple[Family, Answer]


def described(txn_id: str, txn: Txn) -> Answer:
    level = txn.level if txn.state == "OPEN" else None
    overdue = "fencing" if txn.fenced else "timeout" if txn.expired else None
    return (txn_id, txn.state, level, txn.prepared, txn.counted, overdue, txn.epoch, txn.version)


def described_header(header: Mapping[str, Any]) -> Answer:
    """The same, of a header as it was answered."""
    is_open = header["state"] == "OPEN"
    writers = header.get("writers")
    return (
        header["txn_id"],
        header["state"],
        (header["deadline_ms"] - header["created_ms"]) // LEVEL_MS if is_open else None,
        header.get("prepared", False),
        None if writers is None else tuple(writers),
        header.get("expired_by"),
        header.get("epoch"),
        header.get("version"),
    )


# -- transactions -----------------------------------------------------------------------------------------------


def _begin(family: Family, request: Request) -> Performed:
    txn_id, version = request["txn"], request.get("version")
    new = Txn(request["level"])
    if request.get("key") is None:
        return family.having(txn_id, new), ("begun", True, txn_id)
    if request.get("epoch") is None:
        return family, "INVALID_ARGUMENT"
    if not family.live or request["epoch"] != family.epoch:
        return family, "NOT_ALLOWED"
    if version is not None and family.last_version is not None and version <= family.last_version:
        return family, ("committed before",)
    held, epoch = family.txn(family.holds), family.epoch
    if held and version is not None and (held.version, held.epoch) == (version, epoch):
        return family, ("begun", False, family.holds)
    if held and held.prepared:
        return family, "TXN_CONFLICT"
    if txn_id is None:  # It was told of another one.
        return family, ("begun", True, None)
    begun = family.fencing().having(txn_id, replace(new, epoch=epoch, version=version))
    return replace(begun, holds=txn_id), ("begun", True, txn_id)


def _get(family: Family, txn_id: str, txn: Txn, request: Request) -> Performed:
    return family, described(txn_id, txn)


def _commit(family: Family, txn_id: str, txn: Txn, request: Request) -> Performed:
    wanted = None if request["writers"] is None else tuple(sorted(request["writers"]))
    if txn.state == "COMMITTED" and wanted in (None, txn.counted):
        return family, described(txn_id, txn)
    if txn.state != "OPEN":
        return family, _decided(txn)
    counted = (tuple(sorted(txn.remembered)) or None) if wanted is None else wanted
    after = family.ended(txn_id, txn, state="COMMITTED", counted=counted)
    if family.holds == txn_id and txn.version is not None:
        after = replace(after, last_version=txn.version)
    return after, _described_in(after, txn_id)


def _abort(family: Family, txn_id: str, txn: Txn, request: Request) -> Performed:
    if txn.state == "COMMITTED":
        return family, "INVALID_TXN_STATE"
    after = family.ended(txn_id, txn, state="ABORTED") if txn.state == "OPEN" else family
    return after, _described_in(after, txn_id)


def _keep_alive(family: Family, txn_id: str, txn: Txn, request: Request) -> Performed:
    return _changed(family, txn_id, txn, level=request["level"])


def _writers(family: Family, txn_id: str, txn: Txn, request: Request) -> Performed:
    return _changed(family, txn_id, txn, remembered=txn.remembered | set(request["add"]))


def _prepare(family: Family, txn_id: str, txn: Txn, request: Request) -> Performed:
    if txn.prepared:
        return family, described(txn_id, txn)
    return _changed(family, txn_id, txn, prepared=True, level=request["level"])


def _fenced(family: Family, txn_id: str, txn: Txn, request: Request) -> Performed:
    return family, (txn.fenced,)


def _expire(family: Family, txn_id: str, txn: Txn, request: Request) -> Performed:
    if txn.state != "OPEN" or txn.level > 0:
        return family, ()
    return family.ended(txn_id, txn, state="ABORTED", expired=True), ()


def _changed(family: Family, txn_id: str, txn: Txn, **change: Any) -> Performed:
    if txn.state != "OPEN":
        return family, _decided(txn)
    if txn.prepared:
        return family, "TXN_CONFLICT"
    after = family.having(txn_id, replace(txn, **change))
    return after, _described_in(after, txn_id)


def _decided(txn: Txn) -> Answer:
    return "EXPIRED_TRANSACTION" if txn.fenced or txn.expired else "INVALID_TXN_STATE"


def _described_in(family: Family, txn_id: str) -> Answer:
    return described(txn_id, dict(family.txns)[txn_id])


# -- keys -------------------------------------------------------------------------------------------------------


def _connect(family: Family, request: Request) -> Performed:
    epoch, session = request["epoch"], request["session"]
    if epoch == -1 and family.session is not None and session == family.session:
        return family, ("epoch", family.epoch)
    if session in family.fenced_sessions or (epoch != -1 and not (family.live and epoch == family.epoch)):
        return family, "NOT_ALLOWED"
    fenced = family.fenced_sessions | ({family.session} if family.session and family.session != session else set())
    after = replace(family.fencing(), epoch=family.epoch + 1, session=session, fenced_sessions=fenced, deleted=False)
    return after, ("epoch", after.epoch)


def _delete(family: Family, request: Request) -> Performed:
    if family.epoch < 0:
        return family, "NOT_FOUND"
    after = replace(family.fencing(prepared=True), session=None, deleted=True)
    return after, ("deleted", family.epoch, family.last_version)


def _key(family: Family, request: Request) -> Performed:
    return family, (family.epoch, family.holds, family.last_version) if family.live else "NOT_FOUND"


def _holds(family: Family, request: Request) -> Performed:
    held = family.txn(family.holds)
    return family, (family.epoch, family.holds if held and held.prepared else None, family.last_version)


OF_TRANSACTIONS: dict[str, Callable[[Family, str, Txn, Request], Performed]] = {
    "get": _get,
    "commit": _commit,
    "abort": _abort,
    "keep-alive": _keep_alive,
    "writers": _writers,
    "prepare": _prepare,
    "fenced": _fenced,
    "expire": _expire,
}
OTHERS: dict[str, Callable[[Family, Request], Performed]] = {
    "begin": _begin,
    "connect": _connect,
    "delete": _delete,
    "key": _key,
    "holds": _holds,
}
READS = ("get", "fenced", "key", "holds")


# -- the model --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Told:
    """A request, and what was answered; None when nobody knows."""

    request: Request
    answer: Answer | None = None

    @property
    def reads(self) -> bool:
        return self.request["verb"] in READS


class Coordinator:
    """The model of one family."""

    initial = Family()

    def step(self, state: Family, action: Told) -> Sequence[Family]:
        after, answer = perform(state, action.request)
        if action.answer is None:
            return () if after == state else (after,)
        return (after,) if answer == action.answer else ()

    def observes(self, action: Told) -> bool:
        return action.reads or isinstance(action.answer, str)


def perform(family: Family, request: Request) -> Performed:
    """What is then, and the answer."""
    verb = request["verb"]
    if verb in OTHERS:
        return OTHERS[verb](family, request)
    txn = family.txn(request["txn"])
    if txn is None:
        return family, "TXN_NOT_FOUND"
    return OF_TRANSACTIONS[verb](family, request["txn"], txn, request)

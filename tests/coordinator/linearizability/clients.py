"""A client that calls coordinators without pause, each call any one of them, and writes down what it was told.

    action  {"verb": "begin", "call", "level", "timeout_ms", "key", "epoch", "version"}
            {"verb": "get" | "commit" | "abort" | "keep-alive" | "writers" | "prepare", "txn", "key", ...}
            {"verb": "connect", "key", "epoch", "session"} {"verb": "key" | "delete", "key"} {"verb": "list"}
    answer  {"status", "body"}, also of a refusal, which is an observation; otherwise why there is none

`call` is a property of the transaction that is begun, so that it can be told later which one a lost begin has left.
`level` stands for a deadline (see `model`). Connecting with -1 names a session always: without one, a connect whose
reply is lost inside may use up two epochs, as its documentation says, and has no one moment.

A call that could not connect has done nothing. Any other loss of the connection leaves doubt, also giving up: some
calls hardly wait. STORE_UNAVAILABLE says that nothing happened, and is held to it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import httpx

from tests.coordinator.linearizability.model import LEVEL_MS
from tests.histories.calls import Outcome, Recorder

KEYS = 3
KEY_USES = 24
TXNS = 6
HIGHEST_LEVEL = 80
SHORT_MS = (100, 2_000)
PATIENT_S, HASTY_S = 60.0, 0.01
HASTY_CALLS = 0.04
REFUSALS = {
    *("INVALID_ARGUMENT", "TXN_NOT_FOUND", "INVALID_TXN_STATE", "TXN_CONFLICT"),
    *("EXPIRED_TRANSACTION", "NOT_ALLOWED", "NOT_FOUND"),
}

_KEYS_PATH = "/admin/v2/transactions/transaction-keys"


@dataclass
class Key:
    """What somebody knows of a transaction key; it may be outdated."""

    name: str
    uses: int = 0
    epoch: int | None = None
    version: int = 0


@dataclass
class Known:
    """What the clients tell each other, so that they meet: transactions with their keys, and keys."""

    txns: deque[tuple[str, str | None]] = field(default_factory=lambda: deque(maxlen=TXNS))
    keys: list[Key] = field(default_factory=list)
    names: itertools.count[int] = field(default_factory=itertools.count)

    def key(self, dice: random.Random) -> Key:
        """Each is used for a while only, because a long history of one is hard to judge."""
        self.keys = [key for key in self.keys if key.uses < KEY_USES]
        while len(self.keys) < KEYS:
            self.keys.append(Key(f"key-{next(self.names)}"))
        key = dice.choice(self.keys)
        key.uses += 1
        return key


class Client:
    """Calls the coordinators at `urls`, which may change any time and is never empty."""

    def __init__(
        self, name: str, http: httpx.AsyncClient, urls: Sequence[str], known: Known, recorder: Recorder
    ) -> None:
        self._name = name
        self._http = http
        self._urls = urls
        self._known = known
        self._recorder = recorder
        self._dice = random.Random(name)
        self._made = itertools.count()

    async def run(self, stop: asyncio.Event) -> None:
        steps: dict[Callable[[], Awaitable[object]], int] = {
            self._begin: 3,
            self._begin_under_key: 4,
            self._connect: 3,
            self._look_at_key: 2,
            self._delete_key: 1,
            self._batch: 2,
            lambda: self._of_some_transaction("get"): 6,
            lambda: self._of_some_transaction("commit", writers=self._some_writers()): 3,
            lambda: self._of_some_transaction("abort"): 2,
            lambda: self._of_some_transaction("keep-alive", level=self._level()): 3,
            lambda: self._of_some_transaction("writers", add=[self._writer()]): 3,
            lambda: self._of_some_transaction("prepare", level=self._level()): 1,
        }
        while not stop.is_set():
            (step,) = self._dice.choices(list(steps), list(steps.values()))
            await step()

    # -- transactions -------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        action = self._new_begin()
        self._begun(await self._call(action, "POST", "/v1/txns", _body(action)))

    async def _begin_under_key(self) -> None:
        """With an epoch, and a version or none; both may be outdated, and the version one that is begun already.
        Now and then without an epoch, as somebody who has not connected."""
        key = self._known.key(self._dice)
        action = self._new_begin() | {"key": key.name, "level": 1, "timeout_ms": LEVEL_MS}
        if self._dice.random() < 0.9:
            action["epoch"] = 0 if key.epoch is None else key.epoch
        if self._dice.random() < 0.6:
            action["version"] = key.version + self._dice.randrange(-1, 2)
            action["version"] = key.version = max(action["version"], 0)
        self._begun(await self._call(action, "POST", "/v1/txns", _body(action)))

    def _new_begin(self) -> dict[str, Any]:
        action: dict[str, Any] = {"verb": "begin", "call": f"{self._name}.{next(self._made)}", "key": None}
        if self._dice.random() < 0.15:
            return action | {"level": 0, "timeout_ms": self._dice.randrange(*SHORT_MS)}
        return action | {"level": 1, "timeout_ms": LEVEL_MS}

    def _begun(self, header: Any) -> None:
        if header is not None and "txn_id" in header:
            self._known.txns.append((header["txn_id"], header.get("transaction_key")))

    async def _of_some_transaction(self, verb: str, **options: Any) -> None:
        if not self._known.txns:
            return
        txn_id, key = self._dice.choice(self._known.txns)
        action = {"verb": verb, "txn": txn_id, "key": key, **options}
        path = f"/v1/txns/{txn_id}"
        if verb == "get":
            await self._call(action, "GET", path)
        else:
            await self._call(action, "POST", f"{path}/{verb}", _body(action))

    async def _batch(self) -> None:
        """Begins and ends of different transactions, each a call by itself."""
        actions = [self._new_begin() for _ in range(self._dice.randrange(3))]
        for txn_id, key in {*self._dice.sample(sorted(self._known.txns, key=str), min(2, len(self._known.txns)))}:
            verb = self._dice.choice(["commit", "abort"])
            extra = {"writers": self._some_writers()} if verb == "commit" else {}
            actions.append({"verb": verb, "txn": txn_id, "key": key, **extra})
        calls = [self._recorder.invoke(self._name, action) for action in actions]
        items = [_item(action) for action in actions]
        outcome, told = await self._ask("POST", "/v1/txns/batch", {"items": items})
        for number, call in enumerate(calls):
            if outcome is not Outcome.OK:
                self._recorder.answer(call, self._name, outcome, told)
                continue
            item = told["body"]["items"][number]
            self._recorder.answer(call, self._name, *_told(item["status"], item.get("txn") or item["problem"]))
            if actions[number]["verb"] == "begin":
                self._begun(item.get("txn"))

    def _level(self) -> int:
        return self._dice.randrange(1, HIGHEST_LEVEL)

    def _writer(self) -> str:
        return f"writer-{self._dice.randrange(4)}"

    def _some_writers(self) -> list[str] | None:
        return self._dice.choice([None, None, None, [], [self._writer()]])

    # -- keys ---------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        """Now and then under a session that this client has used before, and that others may have taken over from."""
        key = self._known.key(self._dice)
        action: dict[str, Any] = {"verb": "connect", "key": key.name, "epoch": -1, "session": None}
        if key.epoch is not None and self._dice.random() < 0.3:
            action["epoch"] = key.epoch
        else:
            action["session"] = f"{self._name}-{self._dice.randrange(4)}"
        path = f"/v1/transaction-keys/{key.name}/connect"
        if answer := await self._call(action, "POST", path, _body(action)):
            key.epoch = answer["epoch"]

    async def _look_at_key(self) -> None:
        await self.look_at_key(self._known.key(self._dice).name)

    async def look_at_key(self, key: str) -> None:
        await self._call({"verb": "key", "key": key}, "GET", f"{_KEYS_PATH}/{key}")

    async def _delete_key(self) -> None:
        key = self._known.key(self._dice).name
        await self._call({"verb": "delete", "key": key}, "DELETE", f"{_KEYS_PATH}/{key}")

    # -- calls --------------------------------------------------------------------------------------------------

    async def list_all(self) -> None:
        """Every transaction there is, page by page; a page that is not answered is asked for again."""
        token: str | None = None
        while True:
            query = urlencode({"limit": 500} | ({"page_token": token} if token else {}))
            page = await self._call({"verb": "list"}, "GET", f"/v1/txns?{query}")
            if page is not None and (token := page["next_page_token"]) is None:
                return

    async def _call(self, action: Any, method: str, path: str, body: Any = None) -> Any:
        """What was answered; None for a refusal, and when there was no answer."""
        call = self._recorder.invoke(self._name, action)
        outcome, told = await self._ask(method, path, body)
        self._recorder.answer(call, self._name, outcome, told)
        return told["body"] if outcome is Outcome.OK and told["status"] < 300 else None

    async def _ask(self, method: str, path: str, body: Any) -> tuple[Outcome, Any]:
        timeout_s = HASTY_S if self._dice.random() < HASTY_CALLS else PATIENT_S
        url = self._dice.choice(self._urls) + path
        try:
            response = await self._http.request(method, url, json=body, timeout=timeout_s)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            return Outcome.FAILED, repr(error)
        except httpx.TransportError as error:
            return Outcome.UNKNOWN, repr(error)
        return _told(response.status_code, response.json())


def _told(status: int, body: Any) -> tuple[Outcome, Any]:
    if status < 300 or body["code"] in REFUSALS:
        return Outcome.OK, {"status": status, "body": body}
    assert body["code"] in ("STORE_UNAVAILABLE", "OUTCOME_UNKNOWN"), body
    return Outcome.FAILED if body["definite"] else Outcome.UNKNOWN, body


def _body(action: dict[str, Any]) -> dict[str, Any]:
    """The request that an action stands for."""
    match action["verb"]:
        case "begin":
            body = {"transaction_key": action["key"], "epoch": action.get("epoch"), "version": action.get("version")}
            body |= {"timeout_ms": action["timeout_ms"], "properties": {"call": action["call"]}}
        case "keep-alive":
            body = {"timeout_ms": action["level"] * LEVEL_MS}
        case "prepare":
            body = {"prepared_timeout_ms": action["level"] * LEVEL_MS}
        case _:
            body = {name: action.get(name) for name in ("writers", "add", "epoch", "session")}
    return {name: value for name, value in body.items() if value is not None}


def _item(action: dict[str, Any]) -> dict[str, Any]:
    return {"op": action["verb"], **_body(action)} | ({"txn_id": action["txn"]} if "txn" in action else {})

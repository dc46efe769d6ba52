"""Transactions, as Pulsar's clients begin and end them.

Clients see one transaction coordinator, number 0, at every broker: it keeps nothing, so any of them can answer. What a
transaction writes and acknowledges tells the brokers itself, so nothing has to be registered.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from metatxn.wire.coordinator import MAX_TIMEOUT_MS, BeginRequest
from metatxn_gateways.pulsar.brokers import fields_of
from metatxn_gateways.pulsar.codes import PulsarCode, PulsarError, txn_code_of
from metatxn_gateways.pulsar.commands import command
from metatxn_gateways.pulsar.names import COORDINATOR, txn_id_of
from metatxn_gateways.pulsar.session import PulsarSession

COMMIT = 0


class Coordinators:
    """The requests of one connection."""

    def __init__(self, session: PulsarSession) -> None:
        self._session = session

    def watch(self, request: Any) -> None:
        """Watch the coordinators. There is never another one, so nothing has to be sent later."""
        assignment = {"tc_id": COORDINATOR, **fields_of("broker_url", self._session.context.brokers.own())}
        self._session.send(
            command(
                "watch_tc_assignments_update",
                watch_id=request.watch_id,
                snapshot={"parallelism": 1, "assignments": [assignment]},
            )
        )

    def unwatch(self, request: Any) -> None:
        pass

    def connect(self, request: Any) -> None:
        fields = {} if request.tc_id == COORDINATOR else _error(PulsarCode.COORDINATOR_NOT_FOUND, "there is only one")
        self._session.send(command("tc_client_connect_response", request_id=request.request_id, **fields))

    def begin(self, request: Any) -> None:
        self._session.answer(self._begun(request), partial(_refused, "new_txn_response", request), txn_code_of)

    async def _begun(self, request: Any) -> bytes:
        if not 1 <= request.txn_ttl_millis <= MAX_TIMEOUT_MS:
            message = f"a transaction lasts between 1 and {MAX_TIMEOUT_MS} ms, not {request.txn_ttl_millis} ms"
            raise PulsarError(PulsarCode.NOT_ALLOWED, message)
        begun = await self._session.context.transactions.begin(
            BeginRequest(timeout_ms=request.txn_ttl_millis), caller=self._session.principal
        )
        txn_id = begun.txn_id
        return command(
            "new_txn_response",
            request_id=request.request_id,
            txnid_most_bits=txn_id.coordinator,
            txnid_least_bits=txn_id.sequence,
        )

    def add_partition(self, request: Any) -> None:
        self._session.send(command("add_partition_to_txn_response", **_about(request)))

    def add_subscription(self, request: Any) -> None:
        self._session.send(command("add_subscription_to_txn_response", **_about(request)))

    def end(self, request: Any) -> None:
        self._session.answer(self._ended(request), partial(_refused, "end_txn_response", request), txn_code_of)

    async def _ended(self, request: Any) -> bytes:
        txn_id = txn_id_of(request.txnid_most_bits, request.txnid_least_bits)
        if txn_id is None:
            raise PulsarError(PulsarCode.TRANSACTION_NOT_FOUND, "no transaction of this cluster has this id")
        transactions = self._session.context.transactions
        decide = transactions.commit if request.txn_action == COMMIT else transactions.abort
        await decide(txn_id, caller=self._session.principal)
        return command("end_txn_response", **_about(request))


def _about(request: Any) -> dict[str, int]:
    return {name: getattr(request, name) for name in ("request_id", "txnid_least_bits", "txnid_most_bits")}


def _error(code: PulsarCode, message: str) -> dict[str, Any]:
    return {"error": int(code), "message": message}


def _refused(name: str, request: Any, code: PulsarCode, message: str) -> bytes:
    """A refusal. A client of a new transaction finds its handler by the number of its coordinator, also after a
    failure."""
    about = {"request_id": request.request_id} if name == "new_txn_response" else _about(request)
    return command(name, **({"txnid_most_bits": COORDINATOR} | about), **_error(code, message))

"""What this broker knows about a transaction. Everything that matters about it is for the coordinator to say."""

from __future__ import annotations

from fastapi import APIRouter

from metatxn.service.http import Caller, TxnIdPath, problems
from metatxn.wire.broker import TransactionWork, WorkOnSegment
from participants.api.rights import check_transaction
from participants.broker.broker import Broker


def add_transaction_routes(api: APIRouter, broker: Broker) -> None:
    @api.get("/v1/txns/{txn_id}/work", tags=["messages"], responses=problems(404, 422, 503))
    async def get_work(txn_id: TxnIdPath, caller: Caller) -> TransactionWork:
        """What a transaction has written and acknowledged at this broker lately, and since when readers see it."""
        await check_transaction(broker, txn_id, caller)
        return TransactionWork(
            segments=[
                WorkOnSegment(
                    segment=segment,
                    entries=work.entries,
                    messages=work.messages,
                    size_bytes=work.size_bytes,
                    first_ms=work.first_ms,
                    last_ms=work.last_ms,
                    effective_ms=work.effective_ms,
                    acks=work.acks,
                    acks_effective_ms=work.acks_effective_ms,
                )
                for segment, work in broker.metrics.work.of(txn_id).items()
            ]
        )

"""Short ways to write and read ledgers in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from metastore import keys
from metatxn.wire.frames import Entry, Frame, PayloadKind, decode_frame
from participants.ledger.storage import Append, OpenLedger, ReadableLedger

SEGMENT = "segment://public/default/orders/0000-ffff-1"


def append(ledger: OpenLedger, payload: bytes) -> Append:
    return ledger.append(Entry(payload, PayloadKind.BYTES, 1), 1_700_000_000_000)


async def append_all(ledger: OpenLedger, payloads: Iterable[bytes]) -> list[Append]:
    appends = [append(ledger, payload) for payload in payloads]
    await asyncio.gather(*(begun.durable for begun in appends))
    return appends


async def read_frames(ledger: ReadableLedger, max_bytes: int = 1 << 20) -> list[Frame]:
    """All frames, in as many reads as it takes."""
    found: list[Frame] = []
    while chunk := await ledger.read(len(found), max_bytes):
        found += [decode_frame(frame.data)[0] for frame in chunk]
    return found


async def payloads(ledger: ReadableLedger) -> list[bytes]:
    return [bytes(frame.payload) for frame in await read_frames(ledger)]


def ledger_file(data_dir: Path, ledger: int, segment: str = SEGMENT) -> Path:
    return data_dir / "ledgers" / keys.escape(segment) / f"{keys.number(ledger)}.ledger"


def mark_file(data_dir: Path, ledger: int, segment: str = SEGMENT) -> Path:
    return ledger_file(data_dir, ledger, segment).with_suffix(".sealed")

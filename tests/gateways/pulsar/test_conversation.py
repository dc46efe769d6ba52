"""Goal: the gateway answers Pulsar's own client as it did when that was last there.

Method: the client's side of a recorded conversation is said again, byte for byte, and the answers are compared.
`METATXN_RECORD=FILE make pulsar-test` records the program of docs/pulsar.md anew.
"""

from __future__ import annotations

from pathlib import Path

from tests.gateways.pulsar.conftest import PulsarGateway
from tests.gateways.pulsar.conversation import play, read

RECORDED = Path(__file__).parent / "payments.conversation"


async def test_the_program_of_the_documentation_is_answered_as_before(gateway: PulsarGateway) -> None:
    await gateway.create("payments", 2)
    then, now = await play(gateway.listener.url, read(RECORDED))
    assert now == then
    assert [each["key"] for each in await gateway.browse("payments")] == ["anna", "anna"]

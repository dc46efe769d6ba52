"""A relay leaves no connection open, whenever it is cut."""

from __future__ import annotations

import asyncio

from tests.metastore.storms.relay import Relay


async def test_a_connection_that_is_cut_before_it_is_carried_ends() -> None:
    """The task that carries it has not begun yet when it is cancelled, so nothing inside it can end the connection."""
    taken = asyncio.get_running_loop().create_future()

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay.accept(reader, writer)
        relay.cut()
        taken.set_result(None)

    relay = Relay(0)
    async with await asyncio.start_server(take, "127.0.0.1", 0) as door:
        reader, writer = await asyncio.open_connection(*door.sockets[0].getsockname())
        await taken
        try:
            assert await asyncio.wait_for(reader.read(), 10) == b""
        except ConnectionResetError:
            pass  # an end as well
        finally:
            writer.close()
            await relay.close()

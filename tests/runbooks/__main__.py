"""`python -m tests.runbooks`: write into the runbooks what their commands answer now. Read the difference."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.runbooks.pages import ETCDCTL_PAGE, ZOOKEEPER_PAGE, etcdctl_page, zookeeper_page


def rewrite(page: Path, answered: Callable[[str, Path], Awaitable[str]]) -> None:
    async def now(directory: str) -> str:
        return await answered(page.read_text(), Path(directory))

    with tempfile.TemporaryDirectory() as directory:
        page.write_text(asyncio.run(now(directory)))


if __name__ == "__main__":
    rewrite(ETCDCTL_PAGE, etcdctl_page)
    rewrite(ZOOKEEPER_PAGE, zookeeper_page)

"""A small disk that can be filled up: a tmpfs that shrinks to what is in it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


class Disk:
    """`mounted` is false where mounting is not permitted: then it is a plain directory, and cannot be full."""

    def __init__(self, path: Path, size: str) -> None:
        self.path = path
        self._size = size
        path.mkdir(parents=True)
        self.mounted = self._mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs")

    def _mount(self, *arguments: str) -> bool:
        try:
            return not subprocess.run(["mount", *arguments, self.path], check=False, capture_output=True).returncode
        except FileNotFoundError:
            return False

    def fill(self) -> None:
        """From now on there is no space for another page."""
        used = os.statvfs(self.path)
        self._mount("-o", f"remount,size={max(1, used.f_blocks - used.f_bfree) * used.f_frsize}")

    def free(self) -> None:
        self._mount("-o", f"remount,size={self._size}")

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", self.path], check=True)

"""The CRC-32 of frames and files: `crc32(data, value=0)`, number for number the one of zlib.

Everything that is written gets one, and everything that is read is checked before it is served, so this is what moving
bytes costs most. Intel's library takes 1 MiB some ten times as fast as zlib and, without the interpreter's lock, leaves
the other threads alone meanwhile.
"""

from isal.isal_zlib import crc32

__all__ = ["crc32"]

"""The CRC-32 of frames and files: `crc32(data, value=0)`, with the same results as zlib's.

Everything that is written gets a CRC, and everything that is read is checked before it is served, so the CRC is the
largest cost of moving bytes. Intel's library is some ten times as fast as zlib for 1 MiB, and it releases the
interpreter's lock, so other threads run meanwhile.
"""

from isal.isal_zlib import crc32

__all__ = ["crc32"]

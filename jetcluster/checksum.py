"""`crc32`: the checksum of the journal and of all stored records, of compiled code where the processor has instructions
for it: the same numbers."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from jetcluster import native

crc32: Callable[..., int] = native.crc32 or zlib.crc32
"""Return the CRC-32 of some bytes, begun with the value of those before them (default 0)."""

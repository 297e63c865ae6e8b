"""Keys of encryption at rest that are the same in every process of a test."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from jetcluster.clock import Rng, SystemRng
from jetcluster.sealing.ciphers import AES
from jetcluster.sealing.keyring import Keyring
from jetcluster.sealing.names import HiddenNames
from jetcluster.sealing.segments import Segments
from jetcluster.sealing.values import Values
from jetcluster.store.seal import StoreSeal
from jetcluster.stream.ports import NAMED_TABLES
from testkit.twins.time import SeededRng


@functools.cache
def keyring(cipher: str) -> Keyring:
    """Return a keyring whose file is gone already."""
    with tempfile.TemporaryDirectory() as folder:
        return Keyring.make(Path(folder), "a test's key", cipher, rng=SeededRng(99))


def store_seal(cipher: str = AES, rng: Rng | None = None) -> StoreSeal:
    """Return the seal of a data store."""
    return seal_of(keyring(cipher), rng or SystemRng())


def seal_of(ring: Keyring, rng: Rng) -> StoreSeal:
    return StoreSeal(Values(ring, rng), HiddenNames(ring.names), NAMED_TABLES)


def segment_keys(cipher: str, rng: Rng) -> Segments:
    """Return the keys of a journal. `rng` draws the segments' salts."""
    return Segments(keyring(cipher), rng)

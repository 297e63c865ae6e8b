"""`StoreSeal`: what of the data store's pairs is sealed at rest, and how (docs/security/encryption.md).

Values are, but for INFO and POSTING, which have numbers only. Names in keys are: the subject of a posting, and what
clients chose in keys of some side tables. A hidden name keeps its place in the key, so all keys of one subject are
neighbours, in the order of their sequences; but subjects are not in order any more, nor rows of such a table.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from jetcluster.sealing.api import SealError
from jetcluster.sealing.names import MORE_BYTES, HiddenNames
from jetcluster.sealing.values import Values
from jetcluster.store import keys
from jetcluster.store.kv import KeyValue, KvDamagedError

_PLAIN: Final = frozenset(bytes([kind]) for kind in (keys.INFO, keys.POSTING, keys.INSTALLING))
"""Kinds whose values are not sealed."""
UNORDERED: Final = frozenset((keys.POSTING, keys.SIDE))
"""Kinds whose stored order is not that of their keys."""
_SIZE: Final = struct.Struct(">H")
_SIZE_AT: Final = keys.STREAM_PREFIX
_SUBJECT_AT: Final = _SIZE_AT + _SIZE.size
HIGHEST: Final = b"\xff" * 9
"""Above all that follows a subject in a key."""


class StoreSeal:
    """The seal of one store. `named`: the side tables whose keys have a name -> the bytes of the key before it."""

    def __init__(self, values: Values, names: HiddenNames, named: Mapping[int, int]) -> None:
        self._values = values
        self._names = names
        self.named = dict(named)

    def key(self, key: bytes) -> bytes:
        """Return the stored form of a key, or of a bound with a whole subject or none."""
        kind = key[0] if key else 0
        if kind == keys.POSTING:
            if len(key) <= _SUBJECT_AT:
                return key
            end = _SUBJECT_AT + _SIZE.unpack_from(key, _SIZE_AT)[0]
            assert len(key) >= end, "a part of a subject has no place in the stored order"
            return key[:_SUBJECT_AT] + self._names.hide(key[:_SIZE_AT], key[_SUBJECT_AT:end]) + key[end:]
        if kind == keys.SIDE:
            at = self._name_at(key)
            return key if at is None else key[:at] + self._names.hide(key[: keys.SIDE_PREFIX], key[at:])
        return key

    def shown(self, stored: bytes) -> bytes:
        """Return the key of a stored pair. Raises KvDamagedError."""
        kind = stored[0] if stored else 0
        try:
            if kind == keys.POSTING:
                end = self.head_end(stored)
                return (
                    stored[:_SUBJECT_AT] + self._names.show(stored[:_SIZE_AT], stored[_SUBJECT_AT:end]) + stored[end:]
                )
            if kind == keys.SIDE:
                at = self._name_at(stored)
                return stored if at is None else stored[:at] + self._names.show(stored[: keys.SIDE_PREFIX], stored[at:])
        except SealError as error:
            raise KvDamagedError(str(error)) from error
        return stored

    @staticmethod
    def head_end(stored: bytes) -> int:
        """Return the end of the subject in a stored posting."""
        size: int = _SIZE.unpack_from(stored, _SIZE_AT)[0]
        return _SUBJECT_AT + size + (MORE_BYTES if size else 0)

    def _name_at(self, key: bytes) -> int | None:
        if len(key) < keys.SIDE_PREFIX:
            return None
        before = self.named.get(key[keys.SIDE_PREFIX - 1])
        return None if before is None else keys.SIDE_PREFIX + before

    def value(self, stored: bytes, value: bytes) -> bytes:
        """Return the stored form of the value of the pair whose stored key is `stored`."""
        return self._values.seal(stored, value) if value and stored[:1] not in _PLAIN else value

    def opened(self, stored: bytes, value: bytes) -> bytes:
        """Return the value of a stored pair. Raises KvDamagedError."""
        if not value or stored[:1] in _PLAIN:
            return value
        try:
            return self._values.open(stored, value)
        except SealError as error:
            raise KvDamagedError(str(error)) from error

    def sealed(self, key: bytes, value: bytes) -> KeyValue:
        """Return the stored form of a pair."""
        stored = self.key(key)
        return stored, self.value(stored, value)

    def pair(self, stored: KeyValue) -> KeyValue:
        """Return the pair of a stored one. Raises KvDamagedError."""
        return self.shown(stored[0]), self.opened(*stored)

"""`Seals`: the bodies of a journal's records, sealed with their segment's cipher (`sealing.segments`)."""

from __future__ import annotations

from jetcluster.raft.journal.records import FormatError, Record, bound_to
from jetcluster.sealing.api import TAG_BYTES, SealError, SegmentCipher, SegmentKeys


class Seals:
    """The ciphers of the segments that are there. An empty body is not sealed: it says nothing."""

    def __init__(self, keys: SegmentKeys) -> None:
        self._keys = keys
        self._ciphers: dict[int, SegmentCipher] = {}
        self._newest: SegmentCipher
        self.plain: set[int] = set()
        """Segments of before the encryption, and those that do not tell."""

    def begin(self, number: int) -> bytes:
        """Begin a segment; returns `SegmentHead.seal` for it."""
        self._newest = self._ciphers[number] = self._keys.fresh(number)
        return self._newest.head

    def learn(self, number: int, seal: bytes) -> None:
        """Note how an older segment is sealed. Raises KeyringError for an unknown key."""
        if not seal:
            self.plain.add(number)
        elif number not in self._ciphers:
            self._ciphers[number] = self._keys.known(number, seal)

    def forget(self, number: int) -> None:
        self._ciphers.pop(number, None)
        self.plain.discard(number)

    def more(self, segment: int) -> int:
        """Return the bytes by which a body there is longer on the disk."""
        return TAG_BYTES if segment in self._ciphers else 0

    def seal(
        self, offset: int, kind: int, entry_type: int, gid: int, gseq: int, index: int, term: int, body: bytes
    ) -> bytes:
        """Return the bytes for the disk of a body at `offset` of the newest segment."""
        if not body:
            return body
        bound = bound_to(kind, entry_type, gid, gseq, index, term, len(body) + TAG_BYTES)
        return self._newest.seal(offset, bound, body)

    def opened(self, segment: int, record: Record, offset: int) -> Record:
        """Return the record of `segment`, whose body is at `offset` there, with its body plain. Raises SealError."""
        cipher = self._ciphers.get(segment)
        if cipher is None or not record.body:
            return record
        kind, entry_type, gid, gseq, index, term, body, _ = record
        bound = bound_to(kind, entry_type, gid, gseq, index, term, len(body))
        return record._replace(body=cipher.open(offset, bound, body))

    def readable(self, segment: int, record: Record | None, offset: int) -> Record | None:
        """Return `opened`; None for no record, and for one that does not open."""
        try:
            return self.opened(segment, record, offset) if record is not None else None
        except SealError:
            return None


def refuse(number: int) -> None:
    """Raise FormatError for a sealed segment where there is no key."""
    raise FormatError(f"segment {number} of the journal is encrypted, and jetstream has no key")

"""Raft frames as bytes: fixed little-endian structs, versioned, decoded strictly.

pysyncobj pickles its messages and its log, so any client that reaches its port can run code in it
(docs/reference/pysyncobj.md, D14). Here only the layouts below are understood: a frame that is too short, too long, of
another version or out of bounds raises `CodecError`, which `RaftNode.on_frame` counts.

Every group frame begins `version u8, kind u8, term u64`. Indexes of entries are not sent: they follow from
`prev_index`, so a batch cannot have gaps.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from jetcluster.errors import PeerError
from jetcluster.raft.membership import Config, MembersError, decode_config, encode_config
from jetcluster.records import NamedTuple

VERSION = 3
MAX_ENTRY_BYTES = 80 << 20
"""Hard cap of one command: the largest message that can be configured (64 MiB), and its framing. A node's proposals are
bounded by `RaftConfig.max_entry`, its input by the mesh's frames."""
MAX_ENTRIES = 65_536
"""Hard cap of entries in one frame."""
MAX_NUMBER = (1 << 62) - 1
"""Hard cap of indexes and times: no log gets there, and a forged number must not overflow stored ones."""
MAX_TERM = (1 << 48) - 1
"""Hard cap of terms: a frame with a higher one is refused, and no replica campaigns beyond it. A candidate waits at
least 0.3 s per term: 2.6 million years of elections, or a million times `RaftConfig.max_term_leap`."""

REGULAR, NOOP, CONFIG = 0, 1, 2
"""Entry types."""

Entry = tuple[bytes, int, int, int]
"""(command, index, term, entry type)"""

APPEND, ACK, REJECT, PRE_VOTE, PRE_VOTE_REPLY, VOTE, VOTE_REPLY, TIMEOUT_NOW, SNAP_OFFER, SNAP_REQUEST = range(1, 11)
RESIGN, REJOIN, REJOIN_REPLY = 11, 12, 13
LEASE_REQUEST, LEASE_GRANT, LEASE_RELEASED = 14, 15, 16
HEARTBEAT, DIGEST = 32, 33

NO_REPLY = 0xFFFF_FFFF
"""Context of an append that only carries a commit index: success needs no answer, and a Reject confirms no read."""


class CodecError(PeerError, ValueError):
    """Bytes that are no valid frame."""


class Append(NamedTuple):
    """AppendEntries: entries after `prev_index`, or none. `commit` is the leader's commit index, `context` the number
    of a read round that the answer confirms (0 for none)."""

    term: int
    prev_index: int
    prev_term: int
    commit: int
    context: int
    entries: list[Entry]


class Ack(NamedTuple):
    """The answer to an Append that fits."""

    term: int
    match: int
    """Index up to which the log equals the leader's and is durable."""
    context: int
    recovering: bool
    """The sender's journal was damaged: it must not count yet (see `Rejoin`)."""
    life: int = 0
    """Serial number of the sender's log of this group (`GroupLog.life`)."""


class Reject(NamedTuple):
    """The answer to an Append whose `prev_index` and `prev_term` the log does not have."""

    term: int
    prev_index: int
    """The refused `prev_index`."""
    hint: int
    """Index to go on from: the first one of the conflicting term, or the end of the log + 1."""
    context: int
    recovering: bool
    life: int = 0


class PreVote(NamedTuple):
    """The question whether the receiver would vote in `term`; it raises no term (Raft dissertation, section 9.6)."""

    term: int
    last_index: int
    last_term: int
    decisive: bool = False
    """The sender was part of every possible quorum (`membership.decisive`): see `snapshots.Rejoin`."""

    @property
    def end(self) -> tuple[int, int]:
        """The log's end; the greater one is the more advanced."""
        return self.last_term, self.last_index


class PreVoteReply(NamedTuple):
    """The answer to a PreVote; `term` is the sender's own."""

    term: int
    asked: int
    """The term of the PreVote."""
    granted: bool


class Vote(NamedTuple):
    """RequestVote: the sender campaigns in `term`, with a log that ends at `last_index` of `last_term`."""

    term: int
    last_index: int
    last_term: int
    decisive: bool = False
    """See PreVote."""


class VoteReply(NamedTuple):
    """The answer to a Vote. A granted vote is sent once it is durable."""

    term: int
    granted: bool


class TimeoutNow(NamedTuple):
    """The leader of `term` asks the receiver to campaign at once (Raft dissertation, section 3.10)."""

    term: int


class SnapOffer(NamedTuple):
    """The leader no longer has the entries that the receiver lacks, which must fetch the state of `snap_index`. The
    owner transfers the state itself."""

    term: int
    snap_index: int
    snap_term: int
    config: Config


class SnapRequest(NamedTuple):
    """A replica whose state cannot be continued asks its leader for a SnapOffer."""

    term: int


class Resign(NamedTuple):
    """The sender led `term` and leads no more, though its node still sends heartbeats."""

    term: int


class Rejoin(NamedTuple):
    """A damaged replica asks its leader to get itself confirmed (`snapshots.Rejoin`); the answer echoes `context`."""

    term: int
    context: int


class RejoinReply(NamedTuple):
    """The answer to a Rejoin, sent once enough peers other than the asker have confirmed the leader."""

    term: int
    context: int
    last_index: int
    """The leader's last index at that time."""


class LeaseRequest(NamedTuple):
    """The leader of `term` asks the receiver to elect nobody else for a while (`lease.Lease`)."""

    term: int
    number: int
    """Ascending within the term, from 1."""
    microseconds: int


class LeaseGrant(NamedTuple):
    """The promise that LeaseRequest `number` asks for."""

    term: int
    number: int


class LeaseReleased(NamedTuple):
    """The leader of `term` reads by no lease up to `number` any more. Its successor repeats it to the other voters."""

    term: int
    number: int


class Heartbeat(NamedTuple):
    """Node-level frame (gid 0): the sender's event loop runs."""

    sequence: int
    wall_ns: int = 0
    """The sender's wall clock, nanoseconds since the Unix epoch; 0 if not sent."""
    trusted_ns: int = 0
    """The sender's time as confirmed by a majority (`health.cluster_clock`), in the same unit; 0 while unconfirmed."""
    well: bool = True
    """The sender may lead (`health.node_health`)."""
    level: int = 0
    """Level of the commands that the sender's state machines understand."""


class Digest(NamedTuple):
    """Node-level frame (gid 0): the groups that the sender leads with the receiver, as (gid, term, commit)."""

    groups: list[tuple[int, int, int]]


Leases = LeaseRequest | LeaseGrant | LeaseReleased
Numbers = (
    Reject
    | PreVote
    | PreVoteReply
    | Vote
    | VoteReply
    | TimeoutNow
    | SnapRequest
    | Resign
    | Rejoin
    | RejoinReply
    | Leases
)
"""Messages of numbers and flags only."""
Message = Append | Ack | SnapOffer | Numbers
Control = Heartbeat | Digest

_APPEND = struct.Struct("<BBQQQQII")  # version, kind, term, prev index, prev term, commit, context, count
_ENTRY = struct.Struct("<QBI")  # term, type, length
_ACK = struct.Struct("<BBQQIBI")
_VOTE = struct.Struct("<BBQQQB")
_TERM_ONLY = struct.Struct("<BBQ")
_SNAP_OFFER = struct.Struct("<BBQQQ")
_HEARTBEAT = struct.Struct("<BBQQQBB")
_DIGEST = struct.Struct("<BBI")
_LED = struct.Struct("<IQQ")


def encode_append(
    term: int, prev_index: int, prev_term: int, commit: int, context: int, entries: list[tuple[bytes, int, int]]
) -> bytes:
    """Encode an Append. `entries` are (command, term, type) from `prev_index` + 1 on."""
    parts = [_APPEND.pack(VERSION, APPEND, term, prev_index, prev_term, commit, context, len(entries))]
    pack = _ENTRY.pack
    for command, entry_term, kind in entries:
        parts.append(pack(entry_term, kind, len(command)))
        parts.append(command)
    return b"".join(parts)


def encode_ack(term: int, index: int, context: int, recovering: bool, life: int = 0) -> bytes:
    return _ACK.pack(VERSION, ACK, term, index, context, recovering, life)


_NUMBERS: dict[type[Numbers], tuple[int, struct.Struct]] = {
    Reject: (REJECT, struct.Struct("<BBQQQIBI")),
    PreVote: (PRE_VOTE, _VOTE),
    PreVoteReply: (PRE_VOTE_REPLY, struct.Struct("<BBQQB")),
    Vote: (VOTE, _VOTE),
    VoteReply: (VOTE_REPLY, struct.Struct("<BBQB")),
    TimeoutNow: (TIMEOUT_NOW, _TERM_ONLY),
    SnapRequest: (SNAP_REQUEST, _TERM_ONLY),
    Resign: (RESIGN, _TERM_ONLY),
    Rejoin: (REJOIN, struct.Struct("<BBQI")),
    RejoinReply: (REJOIN_REPLY, struct.Struct("<BBQIQ")),
    LeaseRequest: (LEASE_REQUEST, struct.Struct("<BBQII")),
    LeaseGrant: (LEASE_GRANT, struct.Struct("<BBQI")),
    LeaseReleased: (LEASE_RELEASED, struct.Struct("<BBQI")),
}
"""Kind and layout: version, kind, then the message's fields in order."""


def encode(message: Numbers) -> bytes:
    kind, layout = _NUMBERS[type(message)]
    return layout.pack(VERSION, kind, *message)


def encode_snap_offer(term: int, index: int, index_term: int, config: Config) -> bytes:
    return _SNAP_OFFER.pack(VERSION, SNAP_OFFER, term, index, index_term) + encode_config(config)


def encode_heartbeat(sequence: int, wall_ns: int, trusted_ns: int, well: bool, level: int = 0) -> bytes:
    """Encode a Heartbeat. Times before 1970 and after 2116 are sent as 0."""
    times = (ns if 0 < ns <= MAX_NUMBER else 0 for ns in (wall_ns, trusted_ns))
    return _HEARTBEAT.pack(VERSION, HEARTBEAT, sequence, *times, well, level)


def encode_digest(groups: list[tuple[int, int, int]]) -> bytes:
    return _DIGEST.pack(VERSION, DIGEST, len(groups)) + b"".join(_LED.pack(*g) for g in groups)


def _exactly(layout: struct.Struct, frame: bytes) -> tuple[int, ...]:
    if len(frame) != layout.size:
        raise CodecError(f"kind {frame[1]}: {len(frame)} bytes, expected {layout.size}")
    return _termed(layout.unpack(frame))


def _bounded(numbers: tuple[int, ...]) -> tuple[int, ...]:
    if max(numbers) > MAX_NUMBER:
        raise CodecError(f"{max(numbers)} is no term and no index")
    return numbers


def _termed(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Check the numbers of a group frame, whose third field is its term."""
    if max(numbers) > MAX_NUMBER:
        raise CodecError(f"{max(numbers)} is no term and no index")
    if numbers[2] > MAX_TERM:
        raise CodecError(f"{numbers[2]} is no term")
    return numbers


def _bounded_group(group: tuple[int, int, int]) -> tuple[int, int, int]:
    if group[1] > MAX_TERM or group[2] > MAX_NUMBER:
        raise CodecError("digest: no term, or no index")
    return group


def _candidate(frame: bytes) -> tuple[int, int, int, bool]:
    """Return (term, last index, last term, decisive)."""
    _, _, term, last_index, last_term, decisive = _exactly(_VOTE, frame)
    if last_term > term:
        raise CodecError("vote: an entry from the future")
    return term, last_index, last_term, _flag(decisive)


def _flag(value: int) -> bool:
    if value > 1:
        raise CodecError(f"flag {value}")
    return value == 1


def _decode_append(frame: bytes) -> Append:
    size = len(frame)
    if size < _APPEND.size:
        raise CodecError("append: truncated")
    _, _, term, prev_index, prev_term, commit, context, count = _APPEND.unpack_from(frame)
    if term > MAX_TERM or prev_index > MAX_NUMBER or commit > MAX_NUMBER:
        raise CodecError(f"append: {term} is no term, or {prev_index} or {commit} no index")
    if count > MAX_ENTRIES:
        raise CodecError(f"append: {count} entries")
    if prev_term > term:
        raise CodecError("append: an entry from the future")
    entries: list[Entry] = []
    at = _APPEND.size
    index = prev_index
    newest = prev_term
    overhead = _ENTRY.size
    for _ in range(count):
        if at + overhead > size:
            raise CodecError("append: truncated")
        entry_term, kind, length = _ENTRY.unpack_from(frame, at)
        at += overhead
        if kind > CONFIG or length > MAX_ENTRY_BYTES or at + length > size:
            raise CodecError("append: bad entry")
        if entry_term < newest or entry_term > term:
            raise CodecError("append: terms out of order")
        newest = entry_term
        index += 1
        command = frame[at : at + length]
        if kind == CONFIG:
            _config(command)  # `GroupLog.append` decodes it again, and must not fail then
        entries.append((command, index, entry_term, kind))
        at += length
    if at != size:
        raise CodecError("append: bytes follow the entries")
    return Append(term, prev_index, prev_term, commit, context, entries)


def _config(data: bytes) -> Config:
    try:
        return decode_config(data)
    except MembersError as e:
        raise CodecError(f"configuration: {e}") from e


def decode(frame: bytes) -> Message:
    """Decode one group frame. Raises CodecError."""
    if len(frame) < _TERM_ONLY.size:
        raise CodecError("truncated")
    if frame[0] != VERSION:
        raise CodecError(f"version {frame[0]}")
    decoder = _DECODERS.get(frame[1])
    if decoder is None:
        raise CodecError(f"unknown kind {frame[1]}")
    return decoder(frame)


def _decode_ack(frame: bytes) -> Ack:
    if len(frame) != _ACK.size:
        raise CodecError(f"ack: {len(frame)} bytes, expected {_ACK.size}")
    _, _, term, index, context, recovering, life = _ACK.unpack(frame)
    if term > MAX_TERM or index > MAX_NUMBER or recovering > 1:
        raise CodecError(f"ack: {term} is no term, {index} no index, or {recovering} no flag")
    return Ack(term, index, context, recovering == 1, life)


def _decoder(message: type[Numbers], layout: struct.Struct) -> Callable[[bytes], Numbers]:
    flags = [at for at, name in enumerate(message._fields) if message.__annotations__[name] == "bool"]

    def decode_numbers(frame: bytes) -> Numbers:
        _, _, *numbers = _exactly(layout, frame)
        for at in flags:
            numbers[at] = _flag(numbers[at])
        return message._make(numbers)

    return decode_numbers


def _decode_snap_offer(frame: bytes) -> SnapOffer:
    if len(frame) < _SNAP_OFFER.size:
        raise CodecError("offer: truncated")
    _, _, term, index, index_term = _termed(_SNAP_OFFER.unpack_from(frame))
    return SnapOffer(term, index, index_term, _config(frame[_SNAP_OFFER.size :]))


_DECODERS: dict[int, Callable[[bytes], Message]] = {
    **{kind: _decoder(message, layout) for message, (kind, layout) in _NUMBERS.items()},
    APPEND: _decode_append,
    ACK: _decode_ack,
    PRE_VOTE: lambda frame: PreVote(*_candidate(frame)),
    VOTE: lambda frame: Vote(*_candidate(frame)),
    SNAP_OFFER: _decode_snap_offer,
}


BY_HEAD = {bytes((VERSION, kind)): decoder for kind, decoder in _DECODERS.items()}
"""Decoders of group frames by their first two bytes."""


def decode_control(frame: bytes) -> Control:
    """Decode one node-level frame (gid 0). Raises CodecError."""
    if len(frame) < 2:
        raise CodecError("truncated")
    if frame[0] != VERSION:
        raise CodecError(f"version {frame[0]}")
    if frame[1] == HEARTBEAT:
        if len(frame) != _HEARTBEAT.size:
            raise CodecError("heartbeat: wrong length")
        _, _, sequence, wall_ns, trusted_ns, well, level = _bounded(_HEARTBEAT.unpack(frame))
        return Heartbeat(sequence, wall_ns, trusted_ns, _flag(well), level)
    if frame[1] == DIGEST:
        if len(frame) < _DIGEST.size:
            raise CodecError("digest: truncated")
        count = _DIGEST.unpack_from(frame)[2]
        if len(frame) != _DIGEST.size + count * _LED.size:
            raise CodecError("digest: wrong length")
        return Digest([_bounded_group(group) for group in _LED.iter_unpack(frame[_DIGEST.size :])])
    raise CodecError(f"unknown kind {frame[1]}")

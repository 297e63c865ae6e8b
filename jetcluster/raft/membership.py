"""`Config`: the members of a group as one value, written whole into the log at every change.

pysyncobj logs a change as a difference ("add X") and replays or reverses it; its configuration after a restart is the
constructor's list, and nothing prevents several changes at once (docs/reference/pysyncobj.md: D5, D13). Here every
configuration entry carries the complete new configuration, so the configuration of a log is that of its newest such
entry, and a truncation falls back to the previous one.

Voters change through a *joint* configuration (Raft paper, section 6; etcd-io/raft's `JointConfig`) of the old and the
new voters, in which every decision needs a majority of each. So no step of a change needs more servers than its
beginning and its end, and no configuration can be left without a majority of its voters: `decisive` and
`Config.vouches` depend on that. All majorities are counted in this file.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from jetcluster.errors import PeerError
from jetcluster.records import NamedTuple, dataclass

_INDEX = struct.Struct("<Q")
_COUNTS = struct.Struct("<BBB")
_RESCUE = struct.Struct("<IB")
_OUTGOING = struct.Struct("<B")
_WIDE_COUNTS = struct.Struct("<BHHIHH")
_VERSION, _RESCUED, _JOINT, _WIDE = 1, 2, 3, 4
"""Versions of the format. A configuration has the lowest one that can express it."""
MAX_MEMBERS = 1024
NARROW_MEMBERS = 255
"""Highest count of members that the versions before `_WIDE` can express."""
MAX_PEER_BYTES = 255


class MembersError(PeerError, ValueError):
    """Bytes that are no configuration."""


@dataclass(slots=True, frozen=True)
class Config:
    """The members of a group. Voters decide and count; learners only receive. Ids are unique over both.

    With `outgoing` the configuration is joint: a change from these to `voters`, decided by a majority of each."""

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()
    rescue: int = 0
    """Number of rescues of the group from a lost majority so far (`rescue.py`)."""
    fenced: tuple[str, ...] = ()
    """Members that rescues have left out. They may come back as voters of the old configuration: their frames are
    ignored until they are members again."""
    outgoing: tuple[str, ...] = ()
    """The old voters, while the configuration is joint."""

    def __post_init__(self) -> None:
        for members in (self.voters + self.learners, self.outgoing + self.learners):
            if len(set(members)) != len(members):
                raise MembersError(f"a peer is named twice: {members}")
        if max(len(self.electorate) + len(self.learners), len(self.fenced)) > MAX_MEMBERS:
            raise MembersError(f"more than {MAX_MEMBERS} members")

    @property
    def electorate(self) -> tuple[str, ...]:
        """All voters, old ones included."""
        if not self.outgoing:
            return self.voters
        return self.voters + tuple(p for p in self.outgoing if p not in self.voters)

    @property
    def members(self) -> tuple[str, ...]:
        return self.electorate + self.learners

    def has_vote(self, peer: str) -> bool:
        return peer in self.voters or peer in self.outgoing

    def is_only(self, peer: str) -> bool:
        """True when `peer` decides alone."""
        return self.voters == (peer,) and self.outgoing in ((), self.voters)

    def is_quorum(self, agreeing: Collection[str]) -> bool:
        return is_quorum(self.voters, agreeing) and (not self.outgoing or is_quorum(self.outgoing, agreeing))

    def quorum_index(self, reached: Mapping[str, int]) -> int:
        """Return the highest index that a quorum has reached; a voter missing in `reached` has reached 0."""
        ascending = sorted([reached.get(p, 0) for p in self.voters])
        index = ascending[(len(ascending) - 1) // 2] if ascending else 0
        if self.outgoing:
            index = min(index, replace(self, voters=self.outgoing, outgoing=()).quorum_index(reached))
        return index

    def vouches(self, agreeing: Collection[str], peer: str) -> bool:
        """True when the agreeing peers, without `peer`, share a member with every quorum that `peer` can have been part
        of: the other voters and `peer` are no quorum. Of an odd number of voters that takes a majority, of an even
        number one less. A joint configuration may have been left by its new voters alone, so these must agree too."""
        if self.outgoing and not self.left().vouches(agreeing, peer):
            return False
        if not self.has_vote(peer):
            return self.is_quorum(agreeing)
        return not self.is_quorum([p for p in self.electorate if p == peer or p not in agreeing])

    def others(self, me: str) -> tuple[str, ...]:
        return tuple(p for p in self.members if p != me)

    def with_learner(self, peer: str) -> Config:
        fenced = tuple(p for p in self.fenced if p != peer)
        return replace(self, learners=(*self.learners, peer), fenced=fenced)

    def without(self, peer: str) -> Config:
        voters, learners = (tuple(p for p in peers if p != peer) for peers in (self.voters, self.learners))
        return replace(self, voters=voters, learners=learners)

    def joint(self, voters: tuple[str, ...]) -> Config:
        """Return the joint configuration from this one to `voters`, which are learners no more."""
        learners = tuple(p for p in self.learners if p not in voters)
        return replace(self, voters=voters, learners=learners, outgoing=self.voters)

    def left(self) -> Config:
        """Return the configuration to which this joint one leads."""
        return replace(self, outgoing=())

    def rescued(self, voters: tuple[str, ...], learners: tuple[str, ...], number: int = 0) -> Config:
        """Return the configuration after a rescue: all other members are fenced. `number`: that of the rescue, if more
        rescues are known than this configuration counts."""
        left = {*voters, *learners}
        lost = [p for p in (*self.fenced, *self.members) if p not in left]
        fenced = tuple(dict.fromkeys(lost))[-MAX_MEMBERS:]
        return Config(voters, learners, max(self.rescue + 1, number), fenced)


class Members(NamedTuple):
    """The configuration that a state machine stores with its state: the one in force at the state's index."""

    state_index: int
    """Index of the state when the configuration was stored. Later states keep it until the configuration changes; a
    fetched state comes with its own."""
    config: Config


def encode_members(members: Members) -> bytes:
    return _INDEX.pack(members.state_index) + encode_config(members.config)


def decode_members(data: bytes) -> Members:
    """Decode what `encode_members` returned. Raises MembersError."""
    if len(data) < _INDEX.size:
        raise MembersError("truncated")
    return Members(_INDEX.unpack_from(data)[0], decode_config(data[_INDEX.size :]))


def encode_config(config: Config) -> bytes:
    parts = config.voters, config.learners, config.fenced, config.outgoing
    if max(map(len, parts)) > NARROW_MEMBERS:
        voters, learners, fenced, outgoing = map(len, parts)
        head = _WIDE_COUNTS.pack(_WIDE, voters, learners, config.rescue, fenced, outgoing)
        return head + _encode(config.voters + config.learners + config.fenced + config.outgoing)
    version = _JOINT if config.outgoing else _RESCUED if config.rescue or config.fenced else _VERSION
    head = _COUNTS.pack(version, len(config.voters), len(config.learners))
    if version != _VERSION:
        head += _RESCUE.pack(config.rescue, len(config.fenced))
    if version == _JOINT:
        head += _OUTGOING.pack(len(config.outgoing))
    return head + _encode(config.voters + config.learners + config.fenced + config.outgoing)


def _encode(peers: tuple[str, ...]) -> bytes:
    parts = []
    for peer in peers:
        raw = peer.encode()
        assert 0 < len(raw) <= MAX_PEER_BYTES, f"peer id {peer!r}"
        parts.append(bytes((len(raw),)) + raw)
    return b"".join(parts)


def decode_config(data: bytes) -> Config:
    """Decode a configuration. Raises MembersError unless `data` is exactly one."""
    if len(data) < _COUNTS.size:
        raise MembersError("truncated")
    try:
        at, voters, learners, rescue, fenced, outgoing = _counts(data)
    except struct.error as e:
        raise MembersError("truncated") from e
    names: list[str] = []
    members = voters + learners
    known = members + fenced
    for _ in range(known + outgoing):
        if at >= len(data):
            raise MembersError("truncated")
        length = data[at]
        raw = data[at + 1 : at + 1 + length]
        if length == 0 or len(raw) != length:
            raise MembersError("truncated")
        try:
            names.append(raw.decode())
        except UnicodeDecodeError as e:
            raise MembersError("a peer id is not UTF-8") from e
        at += 1 + length
    if at != len(data):
        raise MembersError("bytes follow the configuration")
    parts = names[:voters], names[voters:members], names[members:known], names[known:]
    first, learning, left_out, before = map(tuple, parts)
    return Config(first, learning, rescue, left_out, before)


def _counts(data: bytes) -> tuple[int, int, int, int, int, int]:
    """Return (offset of the names, voters, learners, rescue, fenced, outgoing). Raises MembersError, struct.error."""
    if data[0] == _WIDE:
        _, voters, learners, rescue, fenced, outgoing = _WIDE_COUNTS.unpack_from(data)
        if max(voters, learners, fenced, outgoing) <= NARROW_MEMBERS:
            raise MembersError("an earlier version can express it")
        return _WIDE_COUNTS.size, voters, learners, rescue, fenced, outgoing
    version, voters, learners = _COUNTS.unpack_from(data)
    at, rescue, fenced, outgoing = _COUNTS.size, 0, 0, 0
    if version not in (_VERSION, _RESCUED, _JOINT):
        raise MembersError(f"version {version}")
    if version != _VERSION:
        rescue, fenced = _RESCUE.unpack_from(data, at)
        at += _RESCUE.size
    if version == _JOINT:
        (outgoing,) = _OUTGOING.unpack_from(data, at)
        at += _OUTGOING.size
    if (version == _JOINT) != bool(outgoing):
        raise MembersError("joint with nobody")
    return at, voters, learners, rescue, fenced, outgoing


def decisive(configs: Iterable[Config], peer: str) -> bool:
    """True when `peer` is part of every quorum of these configurations, and of those that may have followed them.

    `configs`: those that may be in force by the log of `peer`, from the newest committed one on. A later configuration
    needs a quorum of the previous one, so `peer` has it in its log; but a committed joint one may have been left by its
    new voters alone, so `peer` must be one of these."""
    return all(
        peer in config.voters and not is_quorum(config.voters, [p for p in config.voters if p != peer])
        for config in configs
    )


def is_quorum(voters: tuple[str, ...], agreeing: Collection[str]) -> bool:
    return 2 * sum(1 for p in voters if p in agreeing) > len(voters)

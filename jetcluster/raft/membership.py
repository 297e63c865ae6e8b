"""`Config`: the members of a group as one value, written whole into the log at every change.

pysyncobj logs a change as a difference ("add X") and replays or reverses it; its configuration after a restart is the
constructor's list, and nothing stops several changes at once (docs/reference/pysyncobj.md: D5, D13). Here every
configuration entry carries the complete new configuration, so the configuration of a log is simply that of its newest
such entry, and a truncation falls back to the one before.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import NamedTuple

from jetcluster.errors import PeerError
from jetcluster.records import dataclass

_INDEX = struct.Struct("<Q")
_COUNTS = struct.Struct("<BBB")
_RESCUE = struct.Struct("<IB")
_VERSION, _RESCUED = 1, 2
"""A configuration that no rescue came before is written as in the first version."""
MAX_MEMBERS = 255
MAX_PEER_BYTES = 255


class MembersError(PeerError, ValueError):
    """Bytes that are no configuration."""


@dataclass(slots=True, frozen=True)
class Config:
    """Voters decide and count; learners only receive. Ids are unique over both."""

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()
    rescue: int = 0
    """Rescues of the group from a lost majority (`rescue.py`) up to here."""
    fenced: tuple[str, ...] = ()
    """The voters that the last rescue left out. They may come back as voters of the configuration of before: nothing of
    them counts, until they are members again."""

    def __post_init__(self) -> None:
        members = self.voters + self.learners
        if len(set(members)) != len(members):
            raise MembersError(f"a peer is named twice: {members}")
        if max(len(members), len(self.fenced)) > MAX_MEMBERS:
            raise MembersError(f"more than {MAX_MEMBERS} members")

    def others(self, me: str) -> tuple[str, ...]:
        return tuple(p for p in self.voters + self.learners if p != me)

    def with_learner(self, peer: str) -> Config:
        fenced = tuple(p for p in self.fenced if p != peer)
        return replace(self, learners=(*self.learners, peer), fenced=fenced)

    def promoted(self, peer: str) -> Config:
        learners = tuple(p for p in self.learners if p != peer)
        return replace(self, voters=(*self.voters, peer), learners=learners)

    def without(self, peer: str) -> Config:
        voters, learners = (tuple(p for p in peers if p != peer) for peers in (self.voters, self.learners))
        return replace(self, voters=voters, learners=learners)

    def rescued(self, voters: tuple[str, ...], learners: tuple[str, ...], number: int = 0) -> Config:
        """The configuration that is left of this one: all other members are fenced off. `number`: that of the rescue,
        where more of them are known than this configuration tells of."""
        left = {*voters, *learners}
        lost = [p for p in (*self.fenced, *self.voters, *self.learners) if p not in left]
        fenced = tuple(dict.fromkeys(lost))[-MAX_MEMBERS:]
        return Config(voters, learners, max(self.rescue + 1, number), fenced)


class Members(NamedTuple):
    """The configuration that a state machine keeps with its state: the one in force at the state's index."""

    state_index: int
    """Index of the state when it was written down. A state that goes on by the log keeps it until there is another one;
    one that was fetched comes with its own."""
    config: Config


def encode_members(members: Members) -> bytes:
    return _INDEX.pack(members.state_index) + encode_config(members.config)


def decode_members(data: bytes) -> Members:
    """Raises MembersError."""
    if len(data) < _INDEX.size:
        raise MembersError("truncated")
    return Members(_INDEX.unpack_from(data)[0], decode_config(data[_INDEX.size :]))


def encode_config(config: Config) -> bytes:
    if not config.rescue and not config.fenced:
        return _COUNTS.pack(_VERSION, len(config.voters), len(config.learners)) + _encode(
            config.voters + config.learners
        )
    head = _COUNTS.pack(_RESCUED, len(config.voters), len(config.learners))
    rescue = _RESCUE.pack(config.rescue, len(config.fenced))
    return head + rescue + _encode(config.voters + config.learners + config.fenced)


def _encode(peers: tuple[str, ...]) -> bytes:
    parts = []
    for peer in peers:
        raw = peer.encode()
        assert 0 < len(raw) <= MAX_PEER_BYTES, f"peer id {peer!r}"
        parts.append(bytes((len(raw),)) + raw)
    return b"".join(parts)


def decode_config(data: bytes) -> Config:
    """Raises MembersError unless `data` is exactly one configuration."""
    if len(data) < _COUNTS.size:
        raise MembersError("truncated")
    version, voters, learners = _COUNTS.unpack_from(data)
    at, rescue, fenced = _COUNTS.size, 0, 0
    if version == _RESCUED and len(data) >= at + _RESCUE.size:
        rescue, fenced = _RESCUE.unpack_from(data, at)
        at += _RESCUE.size
    elif version != _VERSION:
        raise MembersError(f"version {version}")
    names: list[str] = []
    members = voters + learners
    for _ in range(members + fenced):
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
    return Config(tuple(names[:voters]), tuple(names[voters:members]), rescue, tuple(names[members:]))


def quorum_index(voters: tuple[str, ...], reached: dict[str, int]) -> int:
    """The highest index that a majority of `voters` has reached; a voter missing in `reached` has reached 0."""
    if not voters:
        return 0
    ascending = sorted(reached.get(p, 0) for p in voters)
    return ascending[(len(voters) - 1) // 2]


def is_quorum(voters: tuple[str, ...], agreeing: set[str]) -> bool:
    return 2 * sum(1 for p in voters if p in agreeing) > len(voters)

"""Who belongs to a group: one value, written whole into the log at every change.

pysyncobj logs a change as a difference ("add X") and replays or reverses it; its configuration after a restart is the
constructor's list, and nothing stops several changes at once (raft-engine.md D5, D13). Here every configuration entry
carries the complete new configuration, so the configuration of a log is simply that of its newest such entry, and a
truncation falls back to the one before.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_COUNTS = struct.Struct("<BBB")
_VERSION = 1
MAX_MEMBERS = 255
MAX_PEER_BYTES = 255


class ConfigError(ValueError):
    """Bytes that are no configuration."""


@dataclass(slots=True, frozen=True)
class Config:
    """Voters decide and count; learners only receive. Ids are unique over both."""

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        members = self.voters + self.learners
        if len(set(members)) != len(members):
            raise ConfigError(f"a peer is named twice: {members}")
        if len(members) > MAX_MEMBERS:
            raise ConfigError(f"more than {MAX_MEMBERS} members")

    def others(self, me: str) -> tuple[str, ...]:
        return tuple(p for p in self.voters + self.learners if p != me)

    def with_learner(self, peer: str) -> Config:
        return Config(self.voters, (*self.learners, peer))

    def promoted(self, peer: str) -> Config:
        return Config((*self.voters, peer), tuple(p for p in self.learners if p != peer))

    def without(self, peer: str) -> Config:
        return Config(tuple(p for p in self.voters if p != peer), tuple(p for p in self.learners if p != peer))


def encode_config(config: Config) -> bytes:
    parts = [_COUNTS.pack(_VERSION, len(config.voters), len(config.learners))]
    for peer in config.voters + config.learners:
        raw = peer.encode()
        assert 0 < len(raw) <= MAX_PEER_BYTES, f"peer id {peer!r}"
        parts.append(bytes((len(raw),)) + raw)
    return b"".join(parts)


def decode_config(data: bytes) -> Config:
    """Raises ConfigError unless `data` is exactly one configuration."""
    if len(data) < _COUNTS.size:
        raise ConfigError("truncated")
    version, voters, learners = _COUNTS.unpack_from(data)
    if version != _VERSION:
        raise ConfigError(f"version {version}")
    names: list[str] = []
    at = _COUNTS.size
    for _ in range(voters + learners):
        if at >= len(data):
            raise ConfigError("truncated")
        length = data[at]
        raw = data[at + 1 : at + 1 + length]
        if length == 0 or len(raw) != length:
            raise ConfigError("truncated")
        try:
            names.append(raw.decode())
        except UnicodeDecodeError as e:
            raise ConfigError("a peer id is not UTF-8") from e
        at += 1 + length
    if at != len(data):
        raise ConfigError("bytes follow the configuration")
    return Config(tuple(names[:voters]), tuple(names[voters:]))


def quorum_index(voters: tuple[str, ...], reached: dict[str, int]) -> int:
    """The highest index that a majority of `voters` has reached; a voter missing in `reached` has reached 0."""
    if not voters:
        return 0
    ascending = sorted(reached.get(p, 0) for p in voters)
    return ascending[(len(voters) - 1) // 2]


def is_quorum(voters: tuple[str, ...], agreeing: set[str]) -> bool:
    return 2 * sum(1 for p in voters if p in agreeing) > len(voters)

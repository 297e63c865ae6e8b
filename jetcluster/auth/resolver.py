"""Where the JWTs of accounts are kept: in memory, as the configuration has them, or in a directory.

A file is `<account>.jwt`; a deleted account's is `<account>.jwt.deleted`. That is nats-server's layout: a directory of
one can be taken over by the other. Source: shared/reference/core-and-consumers.md section 2.2.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from jetcluster.config.claims.token import MAX_BYTES, ClaimsError, Token, decode
from jetcluster.config.nkeys import is_key
from jetcluster.config.operator_options import CACHE, ResolverOptions

_SUFFIX = ".jwt"


class StoreError(Exception):
    """A JWT cannot be kept. The text is nats-server's."""


class Resolver(Protocol):
    def all(self) -> Iterator[tuple[str, str]]:
        """(account, JWT) of all that are here. Raises OSError."""
        ...

    def fetch(self, account: str) -> str | None:
        """Raises OSError."""
        ...


class MemoryResolver:
    def __init__(self, tokens: dict[str, str]) -> None:
        self._tokens = tokens

    def all(self) -> Iterator[tuple[str, str]]:
        yield from self._tokens.items()

    def fetch(self, account: str) -> str | None:
        return self._tokens.get(account)


class DirectoryResolver:
    """A directory of this server alone. What is kept is in `hashes` as long as the process lives, so that a directory
    too large to walk is walked once."""

    def __init__(self, options: ResolverOptions) -> None:
        """Raises OSError."""
        self.options = options
        self._directory = Path(options.directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._hashes: dict[str, bytes] = {}
        """By account, the least recently used first."""
        for path in sorted(self._directory.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime):
            if is_key("A", path.stem):
                self._hashes[path.stem] = hashlib.sha256(path.read_bytes()).digest()

    @property
    def directory(self) -> Path:
        return self._directory

    @property
    def digest(self) -> bytes:
        """Of all that is kept: equal on servers that keep the same."""
        whole = 0
        for one in self._hashes.values():
            whole ^= int.from_bytes(one, "big")
        return whole.to_bytes(32, "big")

    def accounts(self) -> list[str]:
        return sorted(self._hashes)

    def all(self) -> Iterator[tuple[str, str]]:
        for account in self.accounts():
            text = self.fetch(account)
            if text:
                yield account, text

    def fetch(self, account: str) -> str | None:
        if account not in self._hashes:
            return None
        try:
            with self._path(account).open(encoding="ascii") as file:
                text = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            del self._hashes[account]
            return None
        except UnicodeDecodeError:
            return None
        self._hashes[account] = self._hashes.pop(account)
        return text

    def save(self, account: str, text: str) -> bool:
        """False when it is there already. Raises StoreError and OSError."""
        if not is_key("A", account):
            raise StoreError("invalid public key")
        found = hashlib.sha256(text.encode()).digest()
        if self._hashes.get(account) == found:
            return False
        if account not in self._hashes:
            self._make_room()
        path = self._path(account)
        beside = path.with_suffix(".tmp")
        try:
            with beside.open("w", encoding="ascii") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise
        self._hashes.pop(account, None)
        self._hashes[account] = found
        return True

    def save_if_newer(self, account: str, text: str) -> bool:
        """False when what is there is the same or younger. Raises ClaimsError, StoreError and OSError."""
        token = decode(text, "account")
        if token.subject != account:
            raise ClaimsError("jwt subject nkey and provided nkey do not match")
        existing = self._token(account)
        if existing is not None and (existing.id == token.id or existing.issued_at > token.issued_at):
            return False
        return self.save(account, text)

    def delete(self, account: str) -> bool:
        """False when it is not there. Raises OSError."""
        if self._hashes.pop(account, None) is None:
            return False
        path = self._path(account)
        with contextlib.suppress(FileNotFoundError):
            if self.options.hard_delete or self.options.kind == CACHE:
                path.unlink()
            else:
                path.replace(path.with_suffix(f"{_SUFFIX}.deleted"))
        return True

    def _make_room(self) -> None:
        limit = self.options.limit
        if limit <= 0 or len(self._hashes) < limit:
            return
        if self.options.kind != CACHE:
            raise StoreError("jwt store is full")
        self.delete(next(iter(self._hashes)))

    def _token(self, account: str) -> Token | None:
        text = self.fetch(account)
        try:
            return decode(text, "account") if text else None
        except ClaimsError:
            return None

    def _path(self, account: str) -> Path:
        return self._directory / f"{account}{_SUFFIX}"


def _contracts(memory: MemoryResolver, directory: DirectoryResolver) -> tuple[Resolver, Resolver]:
    """For the type checker."""
    return memory, directory

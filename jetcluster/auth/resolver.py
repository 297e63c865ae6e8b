"""The resolvers of accounts' JWTs: in the configuration, in a directory, or at a web server.

A directory has nats-server's layout, so either server can use the other's: `<account>.jwt`, and `<account>.jwt.deleted`
for a deleted account.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from jetcluster.config.claims.token import MAX_TOKEN_BYTES, ClaimsError, Token, decode
from jetcluster.config.nkeys import is_key
from jetcluster.config.options import CACHE, FULL, ResolverOptions
from jetcluster.config.tls_options import TlsOptions
from jetcluster.errors import OperatorError
from jetcluster.file_modes import private
from jetcluster.files import make_folder

_SUFFIX = ".jwt"


class AccountStoreError(OperatorError):
    """A JWT that cannot be stored. The text is nats-server's."""


class Resolver(Protocol):
    """A source of account JWTs."""

    def all(self) -> Iterator[tuple[str, str]]:
        """Yields (account, JWT) of all accounts that this server has. Raises OSError."""


class MemoryResolver:
    """The JWTs of the configuration."""

    def __init__(self, tokens: dict[str, str]) -> None:
        self._tokens = tokens

    def all(self) -> Iterator[tuple[str, str]]:
        yield from self._tokens.items()


class Store:
    """JWTs by account, which can be added and deleted. Servers compare their stores by `digest`."""

    def __init__(self, options: ResolverOptions) -> None:
        self.options = options
        self._writing = threading.RLock()
        """Held for a whole write, because writes run in threads."""
        self._lock = threading.Lock()
        """Guards `_hashes`; held only briefly, because the event loop reads them."""
        self._hashes: dict[str, bytes] = {}
        """SHA-256 of the JWT by account, the least recently used first."""

    @property
    def digest(self) -> bytes:
        """A digest of all JWTs, equal on servers with the same ones."""
        whole = 0
        with self._lock:
            for one in self._hashes.values():
                whole ^= int.from_bytes(one, "big")
        return whole.to_bytes(32, "big")

    def accounts(self) -> list[str]:
        with self._lock:
            return sorted(self._hashes)

    def all(self) -> Iterator[tuple[str, str]]:
        for account in self.accounts():
            text = self.fetch(account)
            if text:
                yield account, text

    def fetch(self, account: str) -> str | None:
        """Returns the account's JWT, or None. Raises OSError."""
        raise NotImplementedError

    def _write(self, account: str, text: str) -> None:
        """Raises OSError."""
        raise NotImplementedError

    def _erase(self, account: str) -> None:
        """Raises OSError."""
        raise NotImplementedError

    def save(self, account: str, text: str) -> bool:
        """Stores a JWT; returns False when it was stored already. Raises AccountStoreError and OSError."""
        if not is_key("A", account):
            raise AccountStoreError("invalid public key")
        found = hashlib.sha256(text.encode()).digest()
        with self._writing:
            if self._hashes.get(account) == found:
                return False
            if account not in self._hashes:
                self._make_room()
            self._write(account, text)
            self._touch(account, found)
        return True

    def save_if_newer(self, account: str, text: str) -> bool:
        """Does `save` unless the stored JWT is the same or newer, and then returns False. Also raises ClaimsError."""
        token = decode(text, "account")
        if token.subject != account:
            raise ClaimsError("jwt subject nkey and provided nkey do not match")
        with self._writing:
            existing = self._token(account)
            if existing is not None and (existing.id == token.id or existing.issued_at > token.issued_at):
                return False
            return self.save(account, text)

    def drop_old(self, now: float) -> None:
        """Deletes the JWTs that were stored longer than `ttl` ago; they are requested again when needed. `now`: seconds
        since the epoch. Raises OSError."""

    def delete(self, account: str) -> bool:
        """Deletes a JWT; returns False when there is none. Raises OSError."""
        with self._writing:
            if not self._forget(account):
                return False
            self._erase(account)
        return True

    def _touch(self, account: str, found: bytes, *, looked: bool = False) -> None:
        """Makes the account the most recently used one; after a look without `_writing` only if `found` still holds."""
        with self._lock:
            if not looked or self._hashes.get(account) is found:
                self._hashes.pop(account, None)
                self._hashes[account] = found

    def _forget(self, account: str, found: bytes | None = None) -> bool:
        """Drops the account; after a look without `_writing` only if `found` still holds."""
        with self._lock:
            return found in (None, self._hashes.get(account)) and self._hashes.pop(account, None) is not None

    def _make_room(self) -> None:
        limit = self.options.limit
        if limit <= 0 or len(self._hashes) < limit:
            return
        if self.options.kind == FULL:
            raise AccountStoreError("jwt store is full")
        self.delete(next(iter(self._hashes)))

    def _token(self, account: str) -> Token | None:
        text = self.fetch(account)
        try:
            return decode(text, "account") if text else None
        except ClaimsError:
            return None


class DirectoryStore(Store):
    """JWTs in a directory that only this server uses."""

    def __init__(self, options: ResolverOptions) -> None:
        """Raises OSError."""
        super().__init__(options)
        self.directory = Path(options.directory)
        make_folder(self.directory)
        self.scan()

    def scan(self) -> None:
        """Reads the directory, where an operator may have put files; other files are ignored. Raises OSError."""
        found: list[tuple[float, str, bytes]] = []
        for path in self.directory.glob(f"*{_SUFFIX}"):
            if not is_key("A", path.stem) or not path.is_file():  # reading a pipe could block
                continue
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                text = file.read(MAX_TOKEN_BYTES + 1)
                if len(text) <= MAX_TOKEN_BYTES:
                    found.append((os.fstat(file.fileno()).st_mtime, path.stem, hashlib.sha256(text).digest()))
        with self._lock:
            self._hashes = {account: digest for _, account, digest in sorted(found)}

    def fetch(self, account: str) -> str | None:
        found = self._hashes.get(account)
        if found is None:
            return None
        try:
            with self._path(account).open(encoding="ascii") as file:
                text = file.read(MAX_TOKEN_BYTES + 1)
        except FileNotFoundError:
            self._forget(account, found)
            return None
        except UnicodeDecodeError:
            return None
        self._touch(account, found, looked=True)
        return text

    def drop_old(self, now: float) -> None:
        for account in self.accounts() if self.options.ttl else ():
            with contextlib.suppress(FileNotFoundError):
                if now - self._path(account).stat().st_mtime > self.options.ttl:
                    self.delete(account)

    def _write(self, account: str, text: str) -> None:
        path = self._path(account)
        beside = path.with_suffix(".tmp")
        try:
            with open(beside, "w", encoding="ascii", opener=private) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
            self._sync()
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise

    def _erase(self, account: str) -> None:
        path = self._path(account)
        with contextlib.suppress(FileNotFoundError):
            if self.options.hard_delete or self.options.kind == CACHE:
                path.unlink()
            else:
                path.replace(path.with_suffix(f"{_SUFFIX}.deleted"))
            self._sync()

    def _sync(self) -> None:
        """Syncs the directory: a deleted or replaced JWT must not come back after a power failure."""
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _path(self, account: str) -> Path:
        return self.directory / f"{account}{_SUFFIX}"


class UrlStore(Store):
    """JWTs of a web server; the requested ones are kept in memory."""

    def __init__(self, options: ResolverOptions, tls: TlsOptions | None = None) -> None:
        super().__init__(options)
        self.tls = tls
        """TLS of the next requests; None: the system's authorities check https."""
        self._tokens: dict[str, str] = {}

    def fetch(self, account: str) -> str | None:
        return self._tokens.get(account)

    def _write(self, account: str, text: str) -> None:
        self._tokens[account] = text

    def _erase(self, account: str) -> None:
        del self._tokens[account]

    def ask(self, account: str) -> str:
        """Requests a JWT. Must run in a thread, as it may block for `timeout`; an account of "" only probes the server.
        Raises OSError, and ConfigError when the files of `resolver_tls` are unusable."""
        from http.client import HTTPException
        from urllib.request import Request, urlopen

        from jetcluster.config.tls import client_context

        url, login = _split_login(self.options.url + account)
        request = Request(url, headers={"Authorization": f"Basic {login}"} if login else {})  # noqa: S310 - as configured
        context = None if self.tls is None else client_context(self.tls)
        try:
            with urlopen(request, timeout=self.options.timeout, context=context) as answer:  # noqa: S310
                text: bytes = answer.read(MAX_TOKEN_BYTES + 1)
        except (OSError, HTTPException, ValueError) as error:
            raise OSError(f'could not fetch <"{url}">: {error}') from None
        return text.decode("ascii", "replace")


def _split_login(url: str) -> tuple[str, str]:
    """Returns (URL without user and password, these encoded for HTTP basic authentication)."""
    scheme, mark, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    login, _, host = place.rpartition("@")
    return f"{scheme}{mark}{host}{slash}{path}", base64.b64encode(unquote(login).encode()).decode()


def _contracts(memory: MemoryResolver, store: Store) -> tuple[Resolver, Resolver]:
    """For the type checker."""
    return memory, store

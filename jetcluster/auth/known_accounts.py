"""The accounts whose JWTs this server has believed, for the authenticator of operator mode."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from jetcluster.config.claims.account import AccountClaims
from jetcluster.config.claims.rights import Rights


@dataclass(slots=True)
class KnownAccount:
    claims: AccountClaims
    updated_ns: int
    """When these claims were taken over, nanoseconds since the epoch."""
    expired: bool = False
    """Its time is over, or it was removed. Nobody logs in any more."""
    removed: bool = False

    def signers(self, strict_keys: Collection[str]) -> Mapping[str, Rights | None]:
        """Keys that sign users, with the template of those that have one."""
        if self.claims.token.issuer in strict_keys:
            return self.claims.scopes
        return {**self.claims.scopes, self.claims.key: None}


class KnownAccounts:
    """By public key."""

    def __init__(self) -> None:
        self.by_key: dict[str, KnownAccount] = {}

    def find(self, key: str) -> KnownAccount | None:
        return self.by_key.get(key)

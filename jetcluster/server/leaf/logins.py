"""`LeafLogins`: who a leaf node is that connects here: by the users of the `leafnodes` block where it has some, else by
the rules for clients."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from jetcluster.auth.authenticator import AuthResult
from jetcluster.auth.secrets import PasswordChecker, SlowPart, is_signed
from jetcluster.config.nkeys import decode_user_key
from jetcluster.config.options import LeafUserOptions
from jetcluster.server.client.clients import ServerParts
from jetcluster.server.leaf.state import LeafState

if TYPE_CHECKING:
    from jetcluster.auth.certificates import PeerCertificate

log = logging.getLogger("jetcluster.server")


class LeafLogins:
    """One per server."""

    def __init__(self, parts: ServerParts, state: LeafState) -> None:
        self._parts = parts
        self._state = state
        self._passwords = PasswordChecker(parts.state.rng)

    def slow_part(self, connect: dict[str, Any]) -> SlowPart | None:
        """The part of `log_in` that computes for longer than an event loop can wait: see `auth.secrets`."""
        users = self._state.options.users
        if not users:
            return self._parts.state.authenticator.slow_part(connect)
        found = next((user for user in users if user.user and user.user == connect.get("user")), None)
        return None if found is None else self._passwords.slow_part(found.password, str(connect.get("pass") or ""))

    def log_in(
        self, connect: dict[str, Any], nonce: bytes, address: str, certificate: PeerCertificate | None = None
    ) -> AuthResult | None:
        """The user that a leaf connects as; None when it may not. `certificate`: what it has shown, which decides when
        the port has verify_and_map."""
        tls = self._state.options.tls
        if self._state.options.users and tls is not None and tls.verify_and_map:
            return self._named(certificate, str(connect.get("pass") or ""))
        if self._state.options.users:
            for user in self._state.options.users:
                if self._is(user, connect, nonce):
                    return AuthResult(user.account, user.user or user.nkey, None)
            return None
        try:
            return self.identify(connect, nonce, address, certificate)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in there, the answer is no
            work = self._parts.look_up(error)
            if work is not None:
                self._parts.spawn(work)  # the leaf comes again
            log.info("leafnode refused: %s", error)
            return None

    def identify(
        self, connect: dict[str, Any], nonce: bytes, address: str, certificate: PeerCertificate | None
    ) -> AuthResult:
        """By the rules for clients. Raises AuthError."""
        tls = self._state.options.tls
        return self._parts.state.authenticator.check(
            connect, nonce, address, "LEAFNODE",
            certificate=certificate, by_certificate=tls is not None and tls.verify_and_map,
        )  # fmt: skip

    def _named(self, certificate: PeerCertificate | None, password: str) -> AuthResult | None:
        from jetcluster.auth.certificates import user_of

        users = {user.user: user for user in self._state.options.users}
        name = user_of(certificate, users) if certificate is not None else None
        if name is None or not self._passwords.matches(users[name].password, password):
            return None
        return AuthResult(users[name].account, name, None)

    def _is(self, user: LeafUserOptions, connect: dict[str, Any], nonce: bytes) -> bool:
        if user.nkey:
            signature = str(connect.get("sig") or "")
            return connect.get("nkey") == user.nkey and is_signed(decode_user_key(user.nkey), nonce, signature)
        password = str(connect.get("pass") or "")
        return connect.get("user") == user.user and self._passwords.matches(user.password, password)

"""Nodes whose accounts share: servers on manual time, linked as a mesh links them, but at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from jetcluster.auth.authenticator import AuthResult
from jetcluster.config.account_options import (
    AccountOptions,
    ExportOptions,
    ImportOptions,
    MappingDestination,
    MappingOptions,
)
from jetcluster.protocol.bus import Outgoing, Valve
from testkit.server_rig import QUIET, FakeAuthenticator, Peer, ServerRig


class ByAccountName(FakeAuthenticator):
    """A client that says `user: A` is of account A."""

    def check(self, connect: dict[str, Any], *_: Any, **__: Any) -> AuthResult:
        return AuthResult(connect.get("user", "$G"), "u", None)


class Link:
    """`there`'s end of a link, as `here` has it."""

    pending = 0

    def __init__(self, peer_id: str) -> None:
        self.peer_id = peer_id
        self.valve = Valve()
        self.far: ServerRig
        self.back: Link

    def send_msg(
        self, account: str, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes
    ) -> None:
        self.far.server.accounts.deliver_from_peer(self.back, account, subject, reply, queues, headers, payload)

    def send_run(self, account: str, messages: list[Outgoing], size: int) -> None:
        self.far.server.accounts.deliver_each_from_peer(self.back, account, messages, pytest.fail)

    def send_many(self, account: str, target: bytes, queues: list[bytes], messages: Sequence[Outgoing]) -> None:
        self.far.server.accounts.deliver_many_from_peer(self.back, account, target, queues, messages)

    def ask_backlog(self, account: str, target: bytes, mark: int) -> None:
        pass


class Nodes:
    """`count` nodes with the same accounts."""

    def __init__(self, count: int, *accounts: AccountOptions, of_global: list[MappingOptions] | None = None) -> None:
        self.rigs = [ServerRig(ByAccountName(), server_name=f"n{at}", cluster_name="C") for at in range(count)]
        self.links: dict[tuple[int, int], Link] = {}
        for here in range(count):
            for there in range(count):
                if here != there:
                    self.links[here, there] = Link(f"n{there}")
        for (here, there), link in self.links.items():
            link.far, link.back = self.rigs[there], self.links[there, here]
        for at in range(count):
            self.rigs[at].server.accounts.listen(self._listener(at))
        self.share(*accounts, of_global=of_global)

    def _listener(self, here: int) -> Any:
        def changed(account: str, subject: bytes, queue: bytes | None, count: int) -> None:
            for there in range(len(self.rigs)):
                if there != here:
                    known = self.links[there, here]
                    self.rigs[there].server.accounts.set_remote_interest(known, account, subject, queue, count)

        return changed

    def share(self, *accounts: AccountOptions, of_global: list[MappingOptions] | None = None) -> None:
        for rig in self.rigs:
            rig.server.share({account.name: account for account in accounts}, of_global or [], "$SYS")

    def client(self, account: str, *lines: bytes, at: int = 0) -> Peer:
        connect = QUIET.replace(b"{", b'{"user":"%b",' % account.encode())
        return self.rigs[at].client(*lines, connect=connect)

    def advance(self, seconds: float) -> None:
        for rig in self.rigs:
            rig.time.advance(seconds)

    def pending(self, account: str, at: int = 0) -> int:
        sharing = self.rigs[at].server.sharing
        return 0 if sharing is None else len(sharing.responses.awaited_in(account))


def account(name: str, *shared: ExportOptions | ImportOptions, **mappings: str) -> AccountOptions:
    found = AccountOptions(name)
    found.exports = [entry for entry in shared if isinstance(entry, ExportOptions)]
    found.imports = [entry for entry in shared if isinstance(entry, ImportOptions)]
    found.mappings = [MappingOptions(source, [MappingDestination(to)]) for source, to in mappings.items()]
    return found


def reply_of(frame: bytes) -> bytes:
    """The reply subject of the first message in what a client read."""
    return frame.split(b"\r\n", 1)[0].split()[3]

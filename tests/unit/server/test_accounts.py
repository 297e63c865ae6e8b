"""Accounts of a node, and the end of an owner of very many subscriptions: nothing reaches them any more, routes leave
them out, and the loop goes on.
"""

from __future__ import annotations

import pytest

from jetcluster.server.accounts import accounts, remote_peers
from jetcluster.server.accounts.accounts import Accounts
from jetcluster.server.accounts.router import Router
from jetcluster.server.accounts.subscription import RemoteInterest
from testkit.twins.memory import held
from testkit.twins.time import SeededRng


class Peer:
    peer_id = "AAAAAAAA"


def wants(router: Router, peer: Peer) -> dict[tuple[bytes, bytes | None], int]:
    """Members by subject and queue that a peer wants."""
    found = [entry for entry in router.index if isinstance(entry, RemoteInterest) and entry.peer is peer]
    return {(entry.subject, entry.queue): entry.count for entry in found}


def test_names_that_a_peer_makes_up_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "MAX_ACCOUNTS", 10)
    own, peer = Accounts(SeededRng(1)), Peer()
    genuine = own["$G"]
    for number in range(100):
        name = f"made-up-{number}"
        own.deliver_from_peer(peer, name, b"s", b"", [], b"", b"")  # type: ignore[arg-type]
        own.deliver_many_from_peer(peer, name, b"s", [], [])  # type: ignore[arg-type]
        own.valve_told(peer, name, b"s", True)  # type: ignore[arg-type]
        own.backlog_told(peer, name, b"s", 1, 1)  # type: ignore[arg-type]
        assert own.backlog_here(name, b"s") == 0
        own.set_remote_interest(peer, name, b"s", None, 0)  # type: ignore[arg-type]
    assert list(own) == [genuine], "only interest makes an account known"
    for number in range(100):
        own.set_remote_interest(peer, f"made-up-{number}", b"s", None, 1)  # type: ignore[arg-type]
    assert list(own) == [genuine], "what is not in use here has no router"
    assert len(own._heard) == 9
    own.set_remote_interest(peer, "$G", b"s", None, 1)  # type: ignore[arg-type]
    assert genuine.peers.wanted_by(peer) == 1, "what is known goes on"  # type: ignore[arg-type]
    assert own["configured"] in list(own), "this node's own accounts have no bound"


def test_the_interest_of_one_peer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_peers, "MAX_WANTED_SUBJECTS", 5)
    own, peer = Accounts(SeededRng(1)), Peer()
    for number in range(20):
        own.set_remote_interest(peer, "$G", b"s.%d" % number, None, 1)  # type: ignore[arg-type]
    assert len(wants(own["$G"], peer)) == 5
    own.set_remote_interest(peer, "$G", b"s.0", None, 0)  # type: ignore[arg-type]
    own.set_remote_interest(peer, "$G", b"s.30", None, 1)  # type: ignore[arg-type]
    assert (b"s.30", None) in wants(own["$G"], peer)


def test_interest_in_an_account_counts_from_the_moment_it_is_in_use_here() -> None:
    own, peer, other = Accounts(SeededRng(1)), Peer(), Peer()
    for who, subject in ((peer, b"kept"), (peer, b"ended"), (other, b"kept"), (other, b"gone")):
        own.set_remote_interest(who, "later", subject, None, 2)  # type: ignore[arg-type]
    own.set_remote_interest(peer, "later", b"ended", None, 0)  # type: ignore[arg-type]
    own.drop_peer(other)  # type: ignore[arg-type]
    made = own["later"]
    assert wants(made, peer) == {(b"kept", None): 2}
    assert not wants(made, other)
    own.set_remote_interest(peer, "later", b"kept", None, 0)  # type: ignore[arg-type]
    assert not wants(made, peer)


def test_what_is_heard_of_an_account_leaves_nothing_behind() -> None:
    own, peer, other = Accounts(SeededRng(1)), Peer(), Peer()
    empty = held(own)
    for number in range(20):
        own.set_remote_interest(peer, f"one-{number}", b"s", None, 1)  # type: ignore[arg-type]
        own.set_remote_interest(other, f"two-{number}", b"s", None, 1)  # type: ignore[arg-type]
        own.set_remote_interest(other, f"two-{number}", b"s", None, 0)  # type: ignore[arg-type]
    own.drop_peer(peer)  # type: ignore[arg-type]
    assert held(own) == empty


def test_an_account_that_peers_want_much_of_is_made_bit_by_bit() -> None:
    own, peer = Accounts(SeededRng(1)), Peer()
    for number in range(accounts.MAX_KEPT_INTERESTS + 5):
        own.set_remote_interest(peer, "much", b"s.%d" % number, None, 1)  # type: ignore[arg-type]
    router = own.known("much")
    assert router is not None
    assert router.peers.wanted_by(peer) == accounts.MAX_KEPT_INTERESTS + 5  # type: ignore[arg-type]


def test_subjects_of_very_many_tokens_are_nothing_that_a_peer_wants() -> None:
    own, peer = Accounts(SeededRng(1)), Peer()
    used = own["$G"]
    longest = b".".join([b"*"] * accounts.MAX_WANTED_TOKENS)
    for account in ("$G", "other"):
        for subject in (longest, longest + b".*", b"a." * 32_000 + b"a"):
            own.set_remote_interest(peer, account, subject, None, 1)  # type: ignore[arg-type]
    assert list(wants(used, peer)) == [(longest, None)]
    assert list(wants(own["other"], peer)) == [(longest, None)]

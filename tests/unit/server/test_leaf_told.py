"""What the other end of a leaf link is told that is wanted here."""

from __future__ import annotations

import json

import pytest

from jetcluster import budget
from jetcluster.server import leaf_link, leaf_told
from testkit.server_rig import FakePeer, RealTime

from .leaf_site import HELLO, Site, mark_of


def wanted_by(lines: bytes) -> dict[bytes, bytes]:
    """What an end wants, by what it has told: weights, or b"" for plain interest."""
    found: dict[bytes, bytes] = {}
    for line in lines.split(b"\r\n"):
        words = line.split(b" ")
        if words[0] == b"LS+":
            found[b" ".join(words[1:3])] = b" ".join(words[3:])
        elif words[0] == b"LS-":
            found.pop(b" ".join(words[1:3]), None)
    return found


async def test_very_much_that_is_wanted_is_told_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaf_told, "AT_ONCE", 999)
    site = Site(bench=RealTime())
    client = site.bench.client()
    for number in range(2000):
        client.send(b"SUB a.%d %d" % (number, number), b"SUB w.%d q m%d" % (number, number))
    monkeypatch.setattr(budget, "SLICE", 0.0)
    monkeypatch.setattr(budget, "QUANTUM", 0.0)  # one step a turn
    end = site.open()
    end.send(b"CONNECT " + json.dumps(HELLO).encode() + b"\r\n")
    told = end.read()
    assert end.link.joined and b"LS+" not in told, "it is being noted"
    other = site.bench.client(b"SUB w.5 q 1", b"SUB new.1 2")
    client.send(b"UNSUB 1999", b"UNSUB m1998", b"UNSUB 1")
    turns = 0
    while b"LS+ " not in told:
        told += end.read()
        turns += 1
    client.send(b"UNSUB 2", b"UNSUB 1997", b"UNSUB m3", b"SUB a.3 again")
    other.send(b"SUB w.6 q 3", b"SUB new.2 4")
    for _ in range(40):
        told += (piece := end.read())
        turns += bool(piece)
        assert piece.count(b"LS+") <= leaf_told.IN_STEP + 10
    assert turns > 4000 // leaf_told.IN_STEP
    expected = {b"a.%d" % n: b"" for n in range(2000) if n not in (1, 2, 1997, 1999)}
    expected |= {b"w.%d q" % n: b"2" if n in (5, 6) else b"1" for n in range(2000) if n not in (3, 1998)}
    expected |= {b"new.1": b"", b"new.2": b"", mark_of(site): b""}
    assert wanted_by(told) == expected
    client.send(b"UNSUB 7", b"UNSUB again", b"UNSUB 3")
    assert wanted_by(told + end.read()).keys() == expected.keys() - {b"a.7", b"a.3"}
    end.link.connection_lost(None)
    assert not site.router.leaf_links


async def test_a_link_that_ends_before_it_has_told_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaf_told, "AT_ONCE", 999)
    site = Site()
    client = site.bench.client(*[b"SUB a.%d %d" % (number, number) for number in range(2000)])
    monkeypatch.setattr(budget, "SLICE", 0.0)
    monkeypatch.setattr(budget, "QUANTUM", 0.0)
    end = site.leaf()
    end.link.connection_lost(None)
    client.send(b"UNSUB 1500")
    for _ in range(20):
        end.read()
    assert not site.router.leaf_links and not site.bench.server.budget.jobs
    site.bench.server.budget.jobs, most = budget.MAX_JOBS, budget.MAX_JOBS  # and where too much waits
    end = site.leaf()
    assert not end.read()
    site.bench.server.budget.jobs -= most
    told = b""
    for _ in range(20):
        site.bench.time.advance(leaf_link.RETRY)
        told += end.read()
    assert len(wanted_by(told)) == 2000


async def test_a_link_that_ends_while_another_one_is_told_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What passes from one link to the other is judged as it was when the other one joined."""
    monkeypatch.setattr(leaf_told, "AT_ONCE", 99)
    site = Site(bench=RealTime())
    there, peer = [b"a.%d" % number for number in range(3 * leaf_told.IN_STEP)], FakePeer("P")
    for subject in there:
        site.router.peers.set_interest(peer, subject, None, 1)
    gone = site.leaf(server_id="N1", name="1", cluster="same")
    gone.send(*[b"LS+ g.%d\r\n" % number for number in range(200)])
    monkeypatch.setattr(budget, "SLICE", 0.0)
    monkeypatch.setattr(budget, "QUANTUM", 0.0)
    end = site.open()
    end.send(b"CONNECT " + json.dumps(HELLO | {"server_id": "N2", "name": "2", "cluster": "same"}).encode() + b"\r\n")
    gone.link.connection_lost(None)
    assert gone.link not in site.router.leaf_links and not end.link.close_reason
    told = b"".join(end.read() for _ in range(30))
    assert wanted_by(told).keys() == {mark_of(site), *there}
    end.link.connection_lost(None)


async def test_a_link_that_ends_does_not_disturb_what_is_being_told() -> None:
    site = Site(max_pending=1000)
    told: list[tuple[bytes, int]] = []
    site.bench.server.accounts.listener = lambda account, subject, queue, count: told.append((subject, count))
    slow, other = site.leaf(), site.leaf(server_id="N2", cluster="M")
    slow.send(b"LS+ %b q 1\r\n" % (b"w" * 500))
    slow.transport.jammed = True
    other.read()
    told.clear()
    site.bench.client(*[b"SUB %b q %d" % (b"w" * 500, at) for at in range(4)])
    site.bench.time.advance(0)
    assert slow.link.close_reason == "Slow Consumer (Pending Bytes)"
    # The slow one's own member goes last, and the others hear of the members that are left.
    assert [count for _, count in told] == [2, 3, 4, 5, 4]
    assert other.read().endswith(b"LS+ %b q 4\r\n" % (b"w" * 500))
    assert other.link.joined

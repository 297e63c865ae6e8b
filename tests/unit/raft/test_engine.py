from __future__ import annotations

from pathlib import Path

import pytest
from pysyncobj import syncobj

from jetcluster.raft.core.engine import Engine, Peer, check_source
from tests.unit.raft.loopback import Loopback, led, running


def test_the_reviewed_source_is_installed() -> None:
    check_source(Path(syncobj.__file__))


def test_another_source_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "syncobj.py"
    other.write_bytes(Path(syncobj.__file__).read_bytes() + b"\n")
    with pytest.raises(ImportError, match=r"pysyncobj==0\.3\.17"):
        check_source(other)


def test_private_names_are_used_in_one_file_only() -> None:
    package = Path(__file__).parents[3] / "jetcluster"
    users = {p.name for p in package.rglob("*.py") if "_SyncObj__" in p.read_text()}
    assert users == {"engine.py"}


def test_every_private_name_exists_in_the_base() -> None:
    import re

    text = Path(__file__).parents[3].joinpath("jetcluster/raft/core/engine.py").read_text()
    source = Path(syncobj.__file__).read_text()
    for name in set(re.findall(r"_SyncObj__(\w+)", text)):
        assert f"__{name}" in source, name


def test_cryptography_is_not_loaded_for_a_transport_nobody_uses() -> None:
    import subprocess
    import sys

    code = "import jetcluster.raft.core.engine, sys; print('cryptography' in sys.modules or 'ctypes' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_hash_of_a_peer_is_the_same_in_every_process() -> None:
    assert hash(Peer("nodeA")) == 3588904060
    assert Peer("nodeA") == Peer("nodeA")


def test_the_base_commits_nothing_by_itself() -> None:
    """Its rule counts the leader before the leader's disk has anything."""
    group = led("A")[1]
    engine: Engine = group.engine
    before = engine.commit
    for _ in range(3):
        group.log.append(0, group.term, b"x")
    engine.tick()
    assert engine.commit == before
    assert engine.commit_to(before + 2)
    engine.tick()
    assert engine.commit == before + 2
    assert not engine.commit_to(before + 1), "nothing is taken back"
    assert engine.commit == before + 2


def test_what_comes_of_the_leader_that_is_followed_goes_into_the_log_with_its_commit() -> None:
    net = running()
    follower = net["B"].group()
    engine, log = follower.engine, follower.log
    end, term = log.last_index, follower.term
    engine.receive_append("A", term, end + 9, end, log.last_term, [(b"x", end + 1, term, 0), (b"y", end + 2, term, 0)])
    assert [log.entry(index) for index in (end + 1, end + 2)] == [(term, 0, b"x"), (term, 0, b"y")]
    assert engine.commit == end + 2, "no more than there is"
    engine.receive_leader("A", term, end)
    assert engine.commit == end + 2


def test_entries_of_older_terms_are_not_committed_by_counting(net: Loopback) -> None:
    """Raft figure 8."""
    for name in "ABC":
        net[name].create(1, ("A", "B", "C"))
    group = net["A"].group()
    group.log.set_term(3, None)
    engine = group.engine
    engine.step_down(3)
    group.log.append(0, 2, b"old")
    group.log.append(0, 2, b"old")
    engine.campaign()
    engine.receive_vote("B", 4)
    assert engine.leading
    assert engine.noop_index() == 3
    engine.receive_match("B", 2)
    assert not engine.commit_to(2)
    assert engine.commit == 0
    engine.receive_match("B", 3)
    assert engine.commit_to(3)
    assert engine.commit == 3


@pytest.mark.parametrize("call", ["_applyCommand", "_SyncObj__doApplyCommand"])
def test_closed_paths_fail_loudly(call: str) -> None:
    group = led("A")[1]
    arguments = (b"x", None) if call == "_applyCommand" else (b"x",)
    with pytest.raises(AssertionError):
        getattr(group.engine, call)(*arguments)


def test_the_base_searches_no_names_when_a_group_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a tenth of the time in which a stream is created."""
    net = Loopback("A")
    looked: list[str] = []
    get = Engine.__getattribute__

    def spy(engine: Engine, name: str) -> object:
        looked.append(name)
        return get(engine, name)

    monkeypatch.setattr(Engine, "__getattribute__", spy)
    net["A"].create(1, ("A",))
    assert looked and {"isReady", "getStatus", "destroy"}.isdisjoint(looked)

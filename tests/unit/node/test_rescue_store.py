from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jetcluster import faults
from jetcluster.cli.rescue import report
from jetcluster.cluster import rescue_record
from jetcluster.mesh.identity import RESCUES_NAME, mark_left_out
from jetcluster.node.rescue_store import Choice, RescueRefusedError, carry_out, choose, describe, what_may_be_lost
from jetcluster.node.rescue_survey import StoreView, StreamView, opened, survey
from jetcluster.raft.journal.inspection import read_journal
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.membership import Config
from jetcluster.raft.rescue import TERM_STEP
from testkit.twins.time import SeededRng
from tests.unit.node.stopped import Stopped, hurt, in_journal

NOW = 1_800_000_000 * 10**9
TOP = Path(__file__).resolve().parents[3]


def view_of(stores: list[StoreView], stream: str = "S") -> StreamView:
    (view,) = survey(stores, f"A/{stream}")
    return view


def chosen(stopped: Stopped, kept: str, *names: str, stream: str = "S") -> Choice:
    """Everything that is looked at is closed again, as the tool does before it writes."""
    with opened(stopped.folders(*(names or (kept,)))) as stores:
        store = next(store for store in stores if store.identity.name == kept)
        return choose(view_of(stores, stream), store)


def refusal(stopped: Stopped, kept: str, *names: str, stream: str = "S") -> str:
    with pytest.raises(RescueRefusedError) as caught:
        chosen(stopped, kept, *names, stream=stream)
    return str(caught.value)


def rescue(stopped: Stopped, kept: str, *names: str) -> Choice:
    choice = chosen(stopped, kept, *names)
    carry_out(choice, "ops@host", NOW, SeededRng(9))
    return choice


def group(stopped: Stopped, name: str):  # type: ignore[no-untyped-def]
    return read_journal(stopped.folder(name) / "journal").groups[stopped.gids["S"]]


def test_one_replica_becomes_the_stream(stopped: Stopped) -> None:
    stopped.fill("n1", {"S": (40, 12)})
    choice = rescue(stopped, "n1")
    assert choice.number == 1 and len(choice.lost) == 1 and "only n2, n3 may have had it" in choice.lost[0]
    log = group(stopped, "n1")
    assert log.config == Config((stopped.peer("n1"),), (), 1, (stopped.peer("n2"), stopped.peer("n3")))
    assert (log.found.last_index, log.last_term, log.found.term) == (41, 1 + TERM_STEP, 1 + TERM_STEP)
    assert log.found.voted_for == stopped.peer("n1") and not log.found.damaged
    # The others of the journal are as they were.
    assert read_journal(stopped.folder("n1") / "journal").groups[1].config.voters == tuple(stopped.peers())
    (record,) = rescue_record.read(stopped.folder("n1"))
    assert (record.account, record.stream, record.number, record.server) == ("A", "S", 1, "n1")
    assert record.by == "ops@host" and record.before == ("n1", "n2", "n3") and record.lost == choice.lost
    assert (
        record.state == describe(choice.kept) and "76 messages" in record.state and "sequences 1 to 76" in record.state
    )
    assert "was rescued here already (rescue 1)" in refusal(stopped, "n1")


def test_the_most_advanced_of_damaged_ones_and_what_the_others_lose(stopped: Stopped) -> None:
    for name, harmed in (("n1", 20), ("n2", 30), ("n3", 25)):
        stopped.fill(name, {"S": (40, 12)})
        hurt(stopped.folder(name), stopped.gids["S"], harmed)
    with opened(stopped.folders()) as stores:
        view = view_of(stores)
        assert view.best is not None and view.best.name == "n2"
        worse = next(r for r in view.replicas if r.name == "n1")
        lost = what_may_be_lost(view, worse)
        assert "what n2 has and n1 does not: log entries up to 28 (term 1), messages 33 to 52" in lost
        assert any(text.startswith("what n3 has") for text in lost)
        assert what_may_be_lost(view, view.best) == ["on n2: its journal is damaged: it does not vote"]
    rescue(stopped, "n2", "n1", "n2", "n3")
    kept, others = group(stopped, "n2"), [group(stopped, name) for name in ("n1", "n3")]
    assert not kept.found.damaged and kept.config.voters == (stopped.peer("n2"),) and kept.found.last_index == 29
    assert all(other.found.damaged and other.config.rescue == 0 for other in others)


def test_the_whole_one_of_a_damaged_and_a_missing_one(stopped: Stopped) -> None:
    """It has everything that the damaged one still has; what was only on the disk that is gone nobody can say."""
    for name in ("n1", "n2"):
        stopped.fill(name, {"S": (40, 12)})
    hurt(stopped.folder("n2"), stopped.gids["S"], 20)
    with opened(stopped.folders("n1", "n2")) as stores:
        view = view_of(stores)
        assert view.best is not None and view.best.name == "n1" and not view.majority
    choice = rescue(stopped, "n1", "n1", "n2")
    assert [r.name for r in choice.others] == ["n2"]
    assert len(choice.lost) == 1 and "only n3 may have had it" in choice.lost[0]
    assert group(stopped, "n1").config.voters == (stopped.peer("n1"),) and group(stopped, "n2").found.damaged


def test_a_sound_survivor_does_not_vote_any_more(tmp_path: Path) -> None:
    """Two of five are left: the other one must not help those that come back with an old log."""
    stopped = Stopped(tmp_path, 5)
    stopped.stream("S", "n1", "n2", "n3", "n4", "n5")
    stopped.fill("n1", {"S": (40, 12)})
    stopped.fill("n2", {"S": (38, 12)})
    choice = rescue(stopped, "n1", "n1", "n2")
    assert [other.name for other in choice.others] == ["n2"]
    other = group(stopped, "n2")
    assert other.found.damaged and other.found.last_index == 38 and other.config.rescue == 0
    assert not (stopped.folder("n2") / RESCUES_NAME).exists()


def test_a_state_ahead_of_its_log_is_what_counts(stopped: Stopped) -> None:
    stopped.fill("n1", {"S": (40, 35)})
    hurt(stopped.folder("n1"), stopped.gids["S"], 20)
    rescue(stopped, "n1")
    log = group(stopped, "n1")
    assert (log.found.base_index, log.found.base_term, log.found.last_index) == (35, 1, 36)
    assert not log.found.damaged and log.config.voters == (stopped.peer("n1"),)


def test_a_replica_without_a_log(stopped: Stopped) -> None:
    stopped.fill("n1", {"S": (40, 35)})

    def forget(journal: Journal) -> Iterator[None]:
        journal.remove(stopped.gids["S"])
        yield

    in_journal(stopped.folder("n1"), forget)
    choice = rescue(stopped, "n1")
    assert "its log is gone" in choice.kept.problems
    log = group(stopped, "n1")
    assert (log.found.base_index, log.found.last_index, log.config.rescue) == (35, 36, 1)


def test_a_second_rescue_counts_on(stopped: Stopped) -> None:
    """After it was registered, grew again, and lost its majority once more."""
    stopped.fill("n1", {"S": (40, 12)})
    rescue(stopped, "n1")

    def grown(journal: Journal) -> Iterator[None]:
        from jetcluster.raft.codec import CONFIG
        from jetcluster.raft.membership import encode_config

        log = journal.groups[stopped.gids["S"]]
        for peer in (stopped.peer("n2"), stopped.peer("n3")):
            log.append(CONFIG, log.term, encode_config(log.config.joint((*log.config.voters, peer)).left()))
        yield
        meta = journal.groups[1]
        body = {"kind": "stream_rescue", "request": "x", "account": "A", "name": "S", "gid": stopped.gids["S"]}
        command = {**body, "number": 1, "kept": stopped.peer("n1"), "peers": [stopped.peer("n2"), stopped.peer("n3")]}
        meta.append(0, 1, json.dumps(command).encode())
        yield

    in_journal(stopped.folder("n1"), grown)
    choice = rescue(stopped, "n1")
    assert choice.number == 2
    assert group(stopped, "n1").config == Config((stopped.peer("n1"),), (), 2, (stopped.peer("n2"), stopped.peer("n3")))
    assert [record.number for record in rescue_record.read(stopped.folder("n1"))] == [1, 2]


def test_refusals(stopped: Stopped) -> None:
    stopped.fill("n1", {"S": (40, 12)})
    stopped.fill("n2", {"S": (40, 12)})
    stopped.fill("n3", {"S": (10, 10), "ONE": (10, 10)})
    assert "a majority of the replicas of A/S is whole (n1, n2): start the servers" in refusal(
        stopped, "n1", "n1", "n2"
    )
    assert "holds nothing of A/ONE" in refusal(stopped, "n1", stream="ONE")
    assert "a majority of the replicas of A/ONE is whole (n3)" in refusal(stopped, "n3", stream="ONE")
    mark_left_out(stopped.folder("n1"), "rescued without n1")
    assert "the cluster goes on without this store: rescued without n1" in refusal(stopped, "n1")


def test_a_lone_replica_is_kept_where_its_server_would_wait_for_others(stopped: Stopped) -> None:
    """The rule is the server's: while nothing is lost it goes on by itself, after damage by the word of all others."""
    stopped.fill("n3", {"ONE": (10, 10)})
    hurt(stopped.folder("n3"), stopped.gids["ONE"], 5)
    with opened(stopped.folders("n3")) as stores:
        lines = report(view_of(stores, "ONE"))
    assert any("once all other servers have said that they have nothing of the stream" in line for line in lines)
    assert any(f"keep n3: {stopped.folder('n3')}" in line for line in lines)
    assert not any("needs no rescue" in line for line in lines)
    carry_out(chosen(stopped, "n3", stream="ONE"), "ops@host", NOW, SeededRng(9))
    found = read_journal(stopped.folder("n3") / "journal").groups[stopped.gids["ONE"]]
    assert not found.found.damaged
    assert (found.config.voters, found.config.rescue) == ((stopped.peer("n3"),), 1)
    assert "was rescued here already" in refusal(stopped, "n3", stream="ONE")


def test_an_unusable_replica_is_not_kept(stopped: Stopped) -> None:
    stopped.fill("n1", {"S": (40, 12)}, after=lambda journal: stopped.compact(journal, "S", 20))
    assert "the replica of n1 cannot be used: its log begins after 20" in refusal(stopped, "n1")


def journal_files(stopped: Stopped, name: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (stopped.folder(name) / "journal").iterdir()}


def five(tmp_path: Path, *filled: str) -> Stopped:
    stopped = Stopped(tmp_path, 5)
    stopped.stream("S", "n1", "n2", "n3", "n4", "n5")
    for name in filled:
        stopped.fill(name, {"S": (40, 12)})
    return stopped


def full_at(*hits: int) -> Callable[[], None]:
    """A disk that has no room for those of the writes of journals, counted from 1."""
    count = 0

    def write() -> None:
        nonlocal count
        count += 1
        if count in hits:
            raise OSError(errno.ENOSPC, "no room")

    return write


def test_a_store_without_room_is_reported_and_the_next_run_finishes(tmp_path: Path) -> None:
    """The stores that can be marked are, and what a further store brings to light is added to the record."""
    stopped = five(tmp_path, "n1", "n2", "n3")
    for name in ("n1", "n3"):
        hurt(stopped.folder(name), stopped.gids["S"], 30)
    stopped.fill("n4", {"S": (38, 12)})
    stores = ("n1", "n2", "n4")
    choice = chosen(stopped, "n1", *stores)
    with faults.armed("journal.write", full_at(2)), pytest.raises(OSError, match="No space left on device"):
        carry_out(choice, "ops@host", NOW, SeededRng(9))
    assert group(stopped, "n1").config.rescue == 1
    assert not group(stopped, "n2").found.damaged and group(stopped, "n4").found.damaged
    (first,) = rescue_record.read(stopped.folder("n1"))
    assert len(first.lost) == 4 and "only n3, n5 may have had it" in first.lost[2]

    with opened(stopped.folders(*stores)) as views:
        advice = "\n".join(report(view_of(views)))
    assert "n1 was made the whole stream (rescue 1), and n2 may still vote: run the" in advice
    assert f"--keep {stopped.folder('n1')}" in advice
    rescue_record.add(stopped.folder("n1"), replace(first, told=True))
    stopped.fill("n5", {"S": (39, 12)})
    with faults.armed("journal.write", full_at(1)), pytest.raises(OSError, match="No space left on device"):
        rescue(stopped, "n1", *stores, "n5")
    assert not group(stopped, "n2").found.damaged and group(stopped, "n5").found.damaged
    assert [other.name for other in rescue(stopped, "n1", *stores, "n5").others] == ["n2"]
    assert group(stopped, "n2").found.damaged
    (second,) = rescue_record.read(stopped.folder("n1"))
    assert second == replace(first, lost=second.lost, told=False) and second.lost[:4] == first.lost
    assert any(text.startswith("what n5 has and n1 does not: log entries up to 39") for text in second.lost)
    assert "was rescued here already (rescue 1)" in refusal(stopped, "n1", *stores, "n5")


def test_a_rescue_that_the_servers_do_not_use_is_not_finished(tmp_path: Path) -> None:
    """A majority of before turns up after all: nobody takes its votes away."""
    stopped = five(tmp_path, "n1", "n2", "n3", "n4")
    rescue(stopped, "n1")
    why = refusal(stopped, "n1", "n1", "n2", "n3", "n4")
    assert "a majority of the replicas of A/S is whole (n2, n3, n4): start the servers" in why
    with opened(stopped.folders("n1", "n2", "n3", "n4")) as stores:
        assert "it needs no rescue: start the servers" in "\n".join(report(view_of(stores)))
    assert [other.name for other in rescue(stopped, "n1", "n1", "n2", "n3").others] == ["n2", "n3"]


def test_of_two_that_were_rescued_neither_is_marked(tmp_path: Path) -> None:
    """The first that is registered counts (`cluster.stream_rescue`)."""
    stopped = five(tmp_path, "n1", "n2")
    rescue(stopped, "n1")
    rescue(stopped, "n2")
    for kept in ("n1", "n2"):
        assert "was rescued here already (rescue 1)" in refusal(stopped, kept, "n1", "n2")


def left_out_later(stopped: Stopped, *names: str) -> None:
    """Leaves `names` out of the meta group, as the journals filled from now on know it."""
    lost = {stopped.peer(name): name for name in names}
    kept = {stopped.peer(name): name for name in stopped.ids if name not in names}
    rescue = {"number": 1, "at_ns": NOW, "by": "ops", "survivors": kept, "lost": lost}
    stopped.meta.append(json.dumps({"kind": "rescue", "request": "meta", "rescue": rescue}).encode())


def test_left_out_replicas_are_no_part_of_a_majority(tmp_path: Path) -> None:
    """Left-out replicas are those whose store says so, and those that have not met a survivor yet. They are shown; one
    with the most is not advised, and one that starts no more is not written to."""
    stopped = Stopped(tmp_path, 5)
    stopped.stream("S", "n1", "n2", "n3")
    stopped.fill("n2", {"S": (40, 12)})
    for number in range(20):  # they have gone on, without knowing
        stopped.meta.append(
            json.dumps({"kind": "node_drain", "request": f"d{number}", "peer": "x", "draining": True}).encode()
        )
    stopped.fill("n3", {"S": (40, 12)})
    del stopped.meta[-20:]
    left_out_later(stopped, "n2", "n3")
    stopped.fill("n1", {"S": (38, 12)})
    mark_left_out(stopped.folder("n2"), "the meta group was rescued without n2")
    with opened(stopped.folders("n1", "n2", "n3")) as stores:
        view = view_of(stores)
        assert not view.majority and view.best is not None and view.best.name == "n1"
        text = "\n".join(report(view))
    assert "needs no rescue" not in text and "a majority is missing, damaged or left out. Keep n1" in text
    assert "  n2: whole; log to entry 40" in text and "  n3: whole; log to entry 40" in text
    assert "the cluster goes on without this store: the meta group was rescued without n2\n" in text
    assert "the cluster goes on without this store: the meta group was rescued without n3 at 2027-" in text
    assert "- what n2 has and n1 does not: log entries up to 40" in text
    for name in ("n2", "n3"):
        assert "the cluster goes on without this store" in refusal(stopped, name, "n1", "n2", "n3")
    choice = rescue(stopped, "n1", "n1", "n2", "n3")
    assert [other.name for other in choice.others] == ["n3"] and group(stopped, "n3").found.damaged
    assert not group(stopped, "n2").found.damaged, "what only it has can still be saved from it"
    assert "was rescued here already" in refusal(stopped, "n1", "n1", "n2", "n3")


def test_left_out_with_all_replicas(tmp_path: Path) -> None:
    stopped = Stopped(tmp_path, 3)
    stopped.stream("S", "n1", "n2", "n3")
    stopped.stream("ONE", "n3")
    left_out_later(stopped, "n2", "n3")
    stopped.fill("n3", {"S": (38, 12), "ONE": (10, 10)})
    with opened(stopped.folders("n3")) as stores:
        assert "no replica of it here can be used" in report(view_of(stores))[-1]
        text = "\n".join(report(view_of(stores, "ONE")))
    assert "needs no rescue" not in text and "its only replica is of a server that the cluster goes on without" in text


KILLED = """
import os, sys
limit = int(sys.argv[1])
calls = 0

def dying(name):
    real = getattr(os, name)
    def call(*args, **kwargs):
        global calls
        if armed:
            calls += 1
            if calls == limit:
                os._exit(9)
        return real(*args, **kwargs)
    setattr(os, name, call)

armed = False
for name in ("open", "write", "pwritev", "pwrite", "fsync", "fdatasync", "rename", "replace", "ftruncate", "unlink",
             "posix_fallocate"):
    dying(name)

from pathlib import Path
from testkit.twins.time import SeededRng
from jetcluster.node.rescue_store import carry_out, choose
from jetcluster.node.rescue_survey import opened, survey
folders = [Path(word) for word in sys.argv[2:]]
with opened(folders) as stores:
    (view,) = survey(stores, "A/S")
    choice = choose(view, stores[0])
armed = True
carry_out(choice, "ops@host", 5, SeededRng(9))
armed = False
print("calls", calls)
"""


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_killed_at_any_step_the_old_state_is_left_or_the_new_one(tmp_path: Path) -> None:
    stopped = Stopped(tmp_path / "site", 5)
    stopped.stream("S", "n1", "n2", "n3", "n4", "n5")
    stopped.fill("n1", {"S": (40, 12)})
    stopped.fill("n2", {"S": (38, 12)})

    def run(limit: int) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", KILLED, str(limit), *map(str, stopped.folders("n1", "n2"))]
        env = {**os.environ, "PYTHONPATH": str(TOP)}
        return subprocess.run(words, capture_output=True, text=True, env=env, check=False)

    shutil.copytree(stopped.root, tmp_path / "before")

    def again() -> None:
        shutil.rmtree(stopped.root)
        shutil.copytree(tmp_path / "before", stopped.root)

    done = run(0)
    assert done.returncode == 0, done.stderr
    steps = int(done.stdout.split()[-1])
    assert steps > 10 and group(stopped, "n1").config.rescue == 1 and group(stopped, "n2").found.damaged
    seen = set()
    for limit in range(1 + steps % 2, steps + 1, 2):  # each costs most of a second
        again()
        killed = run(limit)
        assert killed.returncode == 9, killed.stderr
        log, other = group(stopped, "n1"), group(stopped, "n2")
        carried_out = log.config.rescue == 1
        recorded = (stopped.folder("n1") / RESCUES_NAME).exists()
        if carried_out:
            assert log.config.voters == (stopped.peer("n1"),) and log.found.last_index == 41 and recorded
        else:
            assert log.config.voters == tuple(stopped.peers()) and log.found.last_index == 40
            assert log.found.term == 1
        assert not log.found.damaged and other.config.rescue == 0 and other.found.last_index == 38
        assert carried_out or not other.found.damaged, "it is marked last of all, only its journal is closed then"
        assert read_journal(stopped.folder("n1") / "journal").damage == []
        if recorded:
            (record,) = rescue_record.read(stopped.folder("n1"))
            assert record.number == 1
        seen.add((recorded, carried_out))
        if other.found.damaged:
            assert "was rescued here already (rescue 1)" in refusal(stopped, "n1", "n1", "n2"), "nothing was left to do"
            continue
        # The next attempt goes through, and does only what is left.
        written = journal_files(stopped, "n1")
        choice = rescue(stopped, "n1", "n1", "n2")
        assert choice.from_start is not carried_out and (journal_files(stopped, "n1") == written) is carried_out
        log = group(stopped, "n1")
        assert log.config.rescue == 1 and log.found.last_index == 41 and group(stopped, "n2").found.damaged
        (record,) = rescue_record.read(stopped.folder("n1"))
        assert (record.number, record.lost) == (1, choice.lost) and len(record.lost) == 1
        assert record.before == ("n1", "n2", "n3", "n4", "n5")
        assert "was rescued here already (rescue 1)" in refusal(stopped, "n1", "n1", "n2")
    assert seen == {(False, False), (True, False), (True, True)}

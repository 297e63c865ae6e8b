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
from tests.unit.node.stopped import Site, hurt, in_journal

NOW = 1_800_000_000 * 10**9
TOP = Path(__file__).resolve().parents[3]


def view_of(stores: list[StoreView], stream: str = "S") -> StreamView:
    (view,) = survey(stores, f"A/{stream}")
    return view


def chosen(site: Site, kept: str, *names: str, stream: str = "S") -> Choice:
    """Everything that is looked at is closed again, as the tool does before it writes."""
    with opened(site.folders(*(names or (kept,)))) as stores:
        store = next(store for store in stores if store.identity.name == kept)
        return choose(view_of(stores, stream), store)


def refusal(site: Site, kept: str, *names: str, stream: str = "S") -> str:
    with pytest.raises(RescueRefusedError) as caught:
        chosen(site, kept, *names, stream=stream)
    return str(caught.value)


def rescue(site: Site, kept: str, *names: str) -> Choice:
    choice = chosen(site, kept, *names)
    carry_out(choice, "ops@host", NOW, SeededRng(9))
    return choice


def group(site: Site, name: str):  # type: ignore[no-untyped-def]
    return read_journal(site.folder(name) / "journal").groups[site.gids["S"]]


def test_one_replica_becomes_the_stream(site: Site) -> None:
    site.fill("n1", {"S": (40, 12)})
    choice = rescue(site, "n1")
    assert choice.number == 1 and len(choice.lost) == 1 and "only n2, n3 may have had it" in choice.lost[0]
    log = group(site, "n1")
    assert log.config == Config((site.peer("n1"),), (), 1, (site.peer("n2"), site.peer("n3")))
    assert (log.found.last_index, log.last_term, log.found.term) == (41, 1 + TERM_STEP, 1 + TERM_STEP)
    assert log.found.voted_for == site.peer("n1") and not log.found.damaged
    # The others of the journal are as they were.
    assert read_journal(site.folder("n1") / "journal").groups[1].config.voters == tuple(site.peers())
    (record,) = rescue_record.read(site.folder("n1"))
    assert (record.account, record.stream, record.number, record.server) == ("A", "S", 1, "n1")
    assert record.by == "ops@host" and record.before == ("n1", "n2", "n3") and record.lost == choice.lost
    assert (
        record.state == describe(choice.kept) and "76 messages" in record.state and "sequences 1 to 76" in record.state
    )
    assert "was rescued here already (rescue 1)" in refusal(site, "n1")


def test_the_most_advanced_of_damaged_ones_and_what_the_others_lose(site: Site) -> None:
    for name, harmed in (("n1", 20), ("n2", 30), ("n3", 25)):
        site.fill(name, {"S": (40, 12)})
        hurt(site.folder(name), site.gids["S"], harmed)
    with opened(site.folders()) as stores:
        view = view_of(stores)
        assert view.best is not None and view.best.name == "n2"
        worse = next(r for r in view.replicas if r.name == "n1")
        lost = what_may_be_lost(view, worse)
        assert "what n2 has and n1 does not: log entries up to 28 (term 1), messages 33 to 52" in lost
        assert any(text.startswith("what n3 has") for text in lost)
        assert what_may_be_lost(view, view.best) == ["on n2: its journal is damaged: it does not vote"]
    rescue(site, "n2", "n1", "n2", "n3")
    kept, others = group(site, "n2"), [group(site, name) for name in ("n1", "n3")]
    assert not kept.found.damaged and kept.config.voters == (site.peer("n2"),) and kept.found.last_index == 29
    assert all(other.found.damaged and other.config.rescue == 0 for other in others)


def test_the_whole_one_of_a_damaged_and_a_missing_one(site: Site) -> None:
    """It has everything that the damaged one still has; what was only on the disk that is gone nobody can say."""
    for name in ("n1", "n2"):
        site.fill(name, {"S": (40, 12)})
    hurt(site.folder("n2"), site.gids["S"], 20)
    with opened(site.folders("n1", "n2")) as stores:
        view = view_of(stores)
        assert view.best is not None and view.best.name == "n1" and not view.majority
    choice = rescue(site, "n1", "n1", "n2")
    assert [r.name for r in choice.others] == ["n2"]
    assert len(choice.lost) == 1 and "only n3 may have had it" in choice.lost[0]
    assert group(site, "n1").config.voters == (site.peer("n1"),) and group(site, "n2").found.damaged


def test_a_sound_survivor_does_not_vote_any_more(tmp_path: Path) -> None:
    """Two of five are left: the other one must not help those that come back with an old log."""
    site = Site(tmp_path, 5)
    site.stream("S", "n1", "n2", "n3", "n4", "n5")
    site.fill("n1", {"S": (40, 12)})
    site.fill("n2", {"S": (38, 12)})
    choice = rescue(site, "n1", "n1", "n2")
    assert [other.name for other in choice.others] == ["n2"]
    other = group(site, "n2")
    assert other.found.damaged and other.found.last_index == 38 and other.config.rescue == 0
    assert not (site.folder("n2") / RESCUES_NAME).exists()


def test_a_state_ahead_of_its_log_is_what_counts(site: Site) -> None:
    site.fill("n1", {"S": (40, 35)})
    hurt(site.folder("n1"), site.gids["S"], 20)
    rescue(site, "n1")
    log = group(site, "n1")
    assert (log.found.base_index, log.found.base_term, log.found.last_index) == (35, 1, 36)
    assert not log.found.damaged and log.config.voters == (site.peer("n1"),)


def test_a_replica_without_a_log(site: Site) -> None:
    site.fill("n1", {"S": (40, 35)})

    def forget(journal: Journal) -> Iterator[None]:
        journal.remove(site.gids["S"])
        yield

    in_journal(site.folder("n1"), forget)
    choice = rescue(site, "n1")
    assert "its log is gone" in choice.kept.problems
    log = group(site, "n1")
    assert (log.found.base_index, log.found.last_index, log.config.rescue) == (35, 36, 1)


def test_a_second_rescue_counts_on(site: Site) -> None:
    """After it was registered, grew again, and lost its majority once more."""
    site.fill("n1", {"S": (40, 12)})
    rescue(site, "n1")

    def grown(journal: Journal) -> Iterator[None]:
        from jetcluster.raft.codec import CONFIG
        from jetcluster.raft.membership import encode_config

        log = journal.groups[site.gids["S"]]
        for peer in (site.peer("n2"), site.peer("n3")):
            log.append(CONFIG, log.term, encode_config(log.config.joint((*log.config.voters, peer)).left()))
        yield
        meta = journal.groups[1]
        body = {"kind": "stream_rescue", "request": "x", "account": "A", "name": "S", "gid": site.gids["S"]}
        command = {**body, "number": 1, "kept": site.peer("n1"), "peers": [site.peer("n2"), site.peer("n3")]}
        meta.append(0, 1, json.dumps(command).encode())
        yield

    in_journal(site.folder("n1"), grown)
    choice = rescue(site, "n1")
    assert choice.number == 2
    assert group(site, "n1").config == Config((site.peer("n1"),), (), 2, (site.peer("n2"), site.peer("n3")))
    assert [record.number for record in rescue_record.read(site.folder("n1"))] == [1, 2]


def test_refusals(site: Site) -> None:
    site.fill("n1", {"S": (40, 12)})
    site.fill("n2", {"S": (40, 12)})
    site.fill("n3", {"S": (10, 10), "ONE": (10, 10)})
    assert "a majority of the replicas of A/S is whole (n1, n2): start the servers" in refusal(site, "n1", "n1", "n2")
    assert "holds nothing of A/ONE" in refusal(site, "n1", stream="ONE")
    assert "a majority of the replicas of A/ONE is whole (n3)" in refusal(site, "n3", stream="ONE")
    mark_left_out(site.folder("n1"), "rescued without n1")
    assert "the cluster goes on without this store: rescued without n1" in refusal(site, "n1")


def test_a_lone_replica_is_kept_where_its_server_would_wait_for_others(site: Site) -> None:
    """The rule is the server's: while nothing is lost it goes on by itself, after damage by the word of all others."""
    site.fill("n3", {"ONE": (10, 10)})
    hurt(site.folder("n3"), site.gids["ONE"], 5)
    with opened(site.folders("n3")) as stores:
        lines = report(view_of(stores, "ONE"))
    assert any("once all other servers have said that they have nothing of the stream" in line for line in lines)
    assert any(f"keep n3: {site.folder('n3')}" in line for line in lines)
    assert not any("needs no rescue" in line for line in lines)
    carry_out(chosen(site, "n3", stream="ONE"), "ops@host", NOW, SeededRng(9))
    found = read_journal(site.folder("n3") / "journal").groups[site.gids["ONE"]]
    assert not found.found.damaged
    assert (found.config.voters, found.config.rescue) == ((site.peer("n3"),), 1)
    assert "was rescued here already" in refusal(site, "n3", stream="ONE")


def test_an_unusable_replica_is_not_kept(site: Site) -> None:
    site.fill("n1", {"S": (40, 12)}, after=lambda journal: site.compact(journal, "S", 20))
    assert "the replica of n1 cannot be used: its log begins after 20" in refusal(site, "n1")


def journal_files(site: Site, name: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (site.folder(name) / "journal").iterdir()}


def five(tmp_path: Path, *filled: str) -> Site:
    site = Site(tmp_path, 5)
    site.stream("S", "n1", "n2", "n3", "n4", "n5")
    for name in filled:
        site.fill(name, {"S": (40, 12)})
    return site


def full_at(*hits: int) -> Callable[[], None]:
    """A disk that has no room for those of the writes of journals, counted from 1."""
    count = 0

    def write() -> None:
        nonlocal count
        count += 1
        if count in hits:
            raise OSError(errno.ENOSPC, "no room")

    return write


def test_a_store_without_room_is_told_of_and_the_next_run_finishes(tmp_path: Path) -> None:
    """The stores that can be marked are, and what a further store brings to light is added to the record."""
    site = five(tmp_path, "n1", "n2", "n3")
    for name in ("n1", "n3"):
        hurt(site.folder(name), site.gids["S"], 30)
    site.fill("n4", {"S": (38, 12)})
    stores = ("n1", "n2", "n4")
    choice = chosen(site, "n1", *stores)
    with faults.armed("journal.write", full_at(2)), pytest.raises(OSError, match="No space left on device"):
        carry_out(choice, "ops@host", NOW, SeededRng(9))
    assert group(site, "n1").config.rescue == 1
    assert not group(site, "n2").found.damaged and group(site, "n4").found.damaged
    (first,) = rescue_record.read(site.folder("n1"))
    assert len(first.lost) == 4 and "only n3, n5 may have had it" in first.lost[2]

    with opened(site.folders(*stores)) as views:
        advice = "\n".join(report(view_of(views)))
    assert "n1 was made the whole stream (rescue 1), and n2 may still vote: run the" in advice
    assert f"--keep {site.folder('n1')}" in advice
    rescue_record.add(site.folder("n1"), replace(first, told=True))
    site.fill("n5", {"S": (39, 12)})
    with faults.armed("journal.write", full_at(1)), pytest.raises(OSError, match="No space left on device"):
        rescue(site, "n1", *stores, "n5")
    assert not group(site, "n2").found.damaged and group(site, "n5").found.damaged
    assert [other.name for other in rescue(site, "n1", *stores, "n5").others] == ["n2"]
    assert group(site, "n2").found.damaged
    (second,) = rescue_record.read(site.folder("n1"))
    assert second == replace(first, lost=second.lost, told=False) and second.lost[:4] == first.lost
    assert any(text.startswith("what n5 has and n1 does not: log entries up to 39") for text in second.lost)
    assert "was rescued here already (rescue 1)" in refusal(site, "n1", *stores, "n5")


def test_a_rescue_that_the_servers_do_not_use_is_not_finished(tmp_path: Path) -> None:
    """A majority of before turns up after all: nobody takes its votes away."""
    site = five(tmp_path, "n1", "n2", "n3", "n4")
    rescue(site, "n1")
    why = refusal(site, "n1", "n1", "n2", "n3", "n4")
    assert "a majority of the replicas of A/S is whole (n2, n3, n4): start the servers" in why
    with opened(site.folders("n1", "n2", "n3", "n4")) as stores:
        assert "it needs no rescue: start the servers" in "\n".join(report(view_of(stores)))
    assert [other.name for other in rescue(site, "n1", "n1", "n2", "n3").others] == ["n2", "n3"]


def test_of_two_that_were_rescued_neither_is_marked(tmp_path: Path) -> None:
    """The first that is registered counts (`cluster.stream_rescue`)."""
    site = five(tmp_path, "n1", "n2")
    rescue(site, "n1")
    rescue(site, "n2")
    for kept in ("n1", "n2"):
        assert "was rescued here already (rescue 1)" in refusal(site, kept, "n1", "n2")


def left_out_later(site: Site, *names: str) -> None:
    """Leaves `names` out of the meta group, as the journals filled from now on know it."""
    lost = {site.peer(name): name for name in names}
    kept = {site.peer(name): name for name in site.ids if name not in names}
    rescue = {"number": 1, "at_ns": NOW, "by": "ops", "survivors": kept, "lost": lost}
    site.meta.append(json.dumps({"kind": "rescue", "request": "meta", "rescue": rescue}).encode())


def test_left_out_replicas_are_no_part_of_a_majority(tmp_path: Path) -> None:
    """Left-out replicas are those whose store says so, and those that have not met a survivor yet. They are shown; one
    with the most is not advised, and one that starts no more is not written to."""
    site = Site(tmp_path, 5)
    site.stream("S", "n1", "n2", "n3")
    site.fill("n2", {"S": (40, 12)})
    for number in range(20):  # they have gone on, without knowing
        site.meta.append(
            json.dumps({"kind": "node_drain", "request": f"d{number}", "peer": "x", "draining": True}).encode()
        )
    site.fill("n3", {"S": (40, 12)})
    del site.meta[-20:]
    left_out_later(site, "n2", "n3")
    site.fill("n1", {"S": (38, 12)})
    mark_left_out(site.folder("n2"), "the meta group was rescued without n2")
    with opened(site.folders("n1", "n2", "n3")) as stores:
        view = view_of(stores)
        assert not view.majority and view.best is not None and view.best.name == "n1"
        text = "\n".join(report(view))
    assert "needs no rescue" not in text and "a majority is missing, damaged or left out. Keep n1" in text
    assert "  n2: whole; log to entry 40" in text and "  n3: whole; log to entry 40" in text
    assert "the cluster goes on without this store: the meta group was rescued without n2\n" in text
    assert "the cluster goes on without this store: the meta group was rescued without n3 at 2027-" in text
    assert "- what n2 has and n1 does not: log entries up to 40" in text
    for name in ("n2", "n3"):
        assert "the cluster goes on without this store" in refusal(site, name, "n1", "n2", "n3")
    choice = rescue(site, "n1", "n1", "n2", "n3")
    assert [other.name for other in choice.others] == ["n3"] and group(site, "n3").found.damaged
    assert not group(site, "n2").found.damaged, "what only it has can still be saved from it"
    assert "was rescued here already" in refusal(site, "n1", "n1", "n2", "n3")


def test_left_out_with_all_replicas(tmp_path: Path) -> None:
    site = Site(tmp_path, 3)
    site.stream("S", "n1", "n2", "n3")
    site.stream("ONE", "n3")
    left_out_later(site, "n2", "n3")
    site.fill("n3", {"S": (38, 12), "ONE": (10, 10)})
    with opened(site.folders("n3")) as stores:
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
from jetcluster.node import node_jetstream
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


@pytest.mark.timeout(300)
def test_killed_at_any_step_the_old_state_is_left_or_the_new_one(tmp_path: Path) -> None:
    site = Site(tmp_path / "site", 5)
    site.stream("S", "n1", "n2", "n3", "n4", "n5")
    site.fill("n1", {"S": (40, 12)})
    site.fill("n2", {"S": (38, 12)})

    def run(limit: int) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", KILLED, str(limit), *map(str, site.folders("n1", "n2"))]
        env = {**os.environ, "PYTHONPATH": str(TOP)}
        return subprocess.run(words, capture_output=True, text=True, env=env, check=False)

    shutil.copytree(site.root, tmp_path / "before")

    def again() -> None:
        shutil.rmtree(site.root)
        shutil.copytree(tmp_path / "before", site.root)

    done = run(0)
    assert done.returncode == 0, done.stderr
    steps = int(done.stdout.split()[-1])
    assert steps > 10 and group(site, "n1").config.rescue == 1 and group(site, "n2").found.damaged
    seen = set()
    for limit in range(1 + steps % 2, steps + 1, 2):  # each costs most of a second
        again()
        killed = run(limit)
        assert killed.returncode == 9, killed.stderr
        log, other = group(site, "n1"), group(site, "n2")
        carried_out = log.config.rescue == 1
        recorded = (site.folder("n1") / RESCUES_NAME).exists()
        if carried_out:
            assert log.config.voters == (site.peer("n1"),) and log.found.last_index == 41 and recorded
        else:
            assert log.config.voters == tuple(site.peers()) and log.found.last_index == 40
            assert log.found.term == 1
        assert not log.found.damaged and other.config.rescue == 0 and other.found.last_index == 38
        assert carried_out or not other.found.damaged, "it is marked last of all, only its journal is closed then"
        assert read_journal(site.folder("n1") / "journal").damage == []
        if recorded:
            (record,) = rescue_record.read(site.folder("n1"))
            assert record.number == 1
        seen.add((recorded, carried_out))
        if other.found.damaged:
            assert "was rescued here already (rescue 1)" in refusal(site, "n1", "n1", "n2"), "nothing was left to do"
            continue
        # The next attempt goes through, and does only what is left.
        written = journal_files(site, "n1")
        choice = rescue(site, "n1", "n1", "n2")
        assert choice.from_start is not carried_out and (journal_files(site, "n1") == written) is carried_out
        log = group(site, "n1")
        assert log.config.rescue == 1 and log.found.last_index == 41 and group(site, "n2").found.damaged
        (record,) = rescue_record.read(site.folder("n1"))
        assert (record.number, record.lost) == (1, choice.lost) and len(record.lost) == 1
        assert record.before == ("n1", "n2", "n3", "n4", "n5")
        assert "was rescued here already (rescue 1)" in refusal(site, "n1", "n1", "n2")
    assert seen == {(False, False), (True, False), (True, True)}

from __future__ import annotations

from jetcluster.raft import codec
from jetcluster.raft.api import Role
from jetcluster.raft.core.peer_progress import FlowState
from tests.unit.raft.journal_rig import forget
from tests.unit.raft.loopback import Loopback, led


def test_peers_that_stand_at_the_same_place_get_the_same_frame() -> None:
    net, leader = led(after=0.1)
    frames: dict[str, list[bytes]] = {"B": [], "C": []}

    def watch(source: str, target: str, gid: int, frame: bytes) -> bool:
        if gid and source == "A" and frame[1] == codec.APPEND:
            frames[target].append(frame)
        return True

    net.filter = watch
    net.crowd(leader, 50, after=0.0)
    assert len(frames["B"]) == 1, "one append carries everything of the turn"
    assert frames["B"][0] is frames["C"][0]


def test_a_big_backlog_goes_out_in_bounded_frames() -> None:
    net, leader = led(after=0.1)
    sizes: list[int] = []

    def watch(source: str, target: str, gid: int, frame: bytes) -> bool:
        if gid and target == "B":
            sizes.append(len(frame))
        return True

    net.filter = watch
    net.crowd(leader, 40, size=60_000, after=0.5)
    assert max(sizes) <= leader.config.frame_bytes + 1_000
    assert net["B"].group().last_index == leader.last_index


def test_a_follower_that_is_probed_hears_what_is_committed_meanwhile() -> None:
    """Its answer takes a while (a slow disk); clients of its node are answered with what the others commit."""
    net, leader = led(after=0.1)
    net.cut("A", "C")
    net.run(0.1)
    net.filter = lambda source, target, gid, frame: not (gid and source == "C")
    net.connect("A", "C")
    follower = net["C"].group()
    for _ in range(5):
        net.crowd(leader, 3, after=0.05)
        assert leader.replicator.flows["C"].state is FlowState.PROBE
        assert leader.commit_index == leader.last_index == follower.told_index
    net.filter = None
    net.run(3.0)
    assert follower.commit_index == leader.commit_index


def test_a_read_in_the_turn_of_a_refusal_does_not_take_the_entry_from_the_probe() -> None:
    """The beat that confirms it to B stands at the log's end, with the numbers of the batch that C waits for."""
    net, leader = led(after=0.1)
    net.isolate("C")
    net.crowd(leader, 1, after=0.2)
    refused: list[float] = []

    def read_with_it(source: str, target: str, gid: int, frame: bytes) -> bool:
        if gid and (source, target) == ("C", "A") and frame[1] == codec.REJECT and not refused:
            refused.append(net.time.monotonic())
            net.time.call_later(net.latency, leader.read_index, lambda ok: None)
        return True

    net.filter = read_with_it
    net.connect_all()
    net.run(0.1)
    assert refused
    assert net["C"].group().last_index == leader.last_index, "it waits for the next check of what is unanswered"


def test_a_batch_that_was_swallowed_is_sent_again() -> None:
    net, leader = led(after=0.1)
    net.filter = lambda source, target, gid, frame: not (gid and target == "B")
    net.crowd(leader, 5, after=0.2)
    net.filter = None
    net.run(2.5)
    assert net["B"].group().applied_index == leader.last_index


def test_an_entry_the_leader_can_not_read_any_more_leads_to_a_snapshot() -> None:
    net, leader = led(after=0.1)
    net.isolate("C")
    net.crowd(leader, 20, after=0.1)
    log = leader.log
    log.shrink(0)
    net["A"].disk.corrupt(log._runs.segment_of(6), log._offsets[5], b"ROT")
    net.connect_all()
    net.until(lambda: bool(net["C"].machine().snapshots))
    assert any("does not validate" in text for _, text in net["A"].reports)
    assert leader.ready


def test_a_commit_reaches_followers_at_once() -> None:
    net, leader = led(after=0.1)
    leader.propose(b"x")
    net.until(lambda: net["A"].machine().commands() == [b"x"], step=0.0001)
    net.run(2 * net.latency)
    assert net["B"].machine().commands() == net["C"].machine().commands() == [b"x"]


def test_a_follower_that_holds_the_entry_at_the_base_needs_no_snapshot() -> None:
    """A has uncommitted entries of its old term and has forgotten what is committed: its refusal skips the whole term,
    to below the new leader's base, though it lacks nothing of what is there."""
    net, old = led(commands=20, after=0.3)
    net.isolate("A")
    net.crowd(old, 5, after=0.05)
    net.crash("A", lose=False)
    net.until(lambda: (found := net.leader()) is not None and found.me != "A", seconds=5.0)
    new = net.led_by()
    net.crowd(new, 10, after=0.3)
    forget(new.log, 18)
    again = net.restart("A").create(1, ("A", "B", "C"))
    again.engine.restore(0, 0)
    net.connect_all()
    net.run(1.0)
    assert net["A"].machine().snapshots == []
    assert again.last_index == new.last_index
    assert again.applied_index == new.applied_index


def test_a_follower_that_lacks_the_entry_at_the_base_is_offered_the_state() -> None:
    net, leader = led(after=0.1)
    net.isolate("C")
    net.crowd(leader, 20, after=0.3)
    forget(leader.log, 18)
    net.connect_all()
    net.run(0.3)
    assert net["C"].machine().snapshots[0][0] == "A"


def test_nothing_that_an_earlier_log_of_a_peer_had_counts_for_the_next() -> None:
    """The peer deletes its log and begins anew over the same link; acks say which log they speak of."""
    net, leader = led("ABC")
    net.crowd(leader, 20, form=b"%d", after=0.1)
    flow = leader.flows["C"]
    assert flow.match == leader.last_index == leader.engine.matches["C"]
    net["C"].node.remove_group(1)
    net["C"].machines.clear()
    net["C"].create(1, ("A", "B"))
    seen: list[tuple[int, int]] = []

    def spy(source: str, target: str, gid: int, frame: bytes) -> bool:
        if gid and (source, target) == ("A", "C"):
            seen.append((flow.match, leader.engine.matches.get("C", 0)))
        return True

    net.filter = spy
    leader.propose(b"more")
    net.until(lambda: net["C"].machine().commands() == net["A"].machine().commands(), seconds=2.0)
    assert (0, 0) in seen, "it was to begin at nothing"
    assert flow.life == net["C"].group().log.life != 0


def test_a_term_that_the_disk_does_not_have_yet_is_not_led_to_others() -> None:
    """A sole voter needs nobody to lead, and would lead the same term again if it lost the record of it."""
    net = Loopback("AB")
    net["A"].create(1, ("A",), promotes=False)
    net["B"].create(1, ("A",))
    net.run(2.0)
    net["A"].group().add_peer("B")
    net.run(0.2)
    net.crash("A")
    net.restart("A")
    net.connect_all()
    net["A"].create(1, ("A",), promotes=False)
    net["A"].writer.hold()
    net.until(lambda: net["A"].group().role is Role.LEADER)
    term = net["A"].group().term
    net["A"].group().propose(b"lost with the term")
    net.run(0.1)
    assert net["A"].group().engine.leading
    assert net["B"].group().log.last_term < term
    net.crash("A")
    net.restart("A")
    net.connect_all()
    again = net["A"].create(1, ("A",), promotes=False)
    net.run(2.0)
    assert again.term == term
    net.propose(again, b"kept", after=0.5)
    assert net["B"].machine().commands() == [b"kept"]

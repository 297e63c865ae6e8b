"""Exams of archives, servers, permissions, guards and of what overlaps are passed, and notice a mistake."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from jetcluster.api import dispatch, restore, restore_tar, streams
from jetcluster.api.request import Request
from jetcluster.auth.authenticator import Authenticator
from jetcluster.auth.permissions import UserPermissions
from jetcluster.cluster.administration import Administration
from jetcluster.cluster.restore_watch import RestoreWatch
from jetcluster.consumer import info
from jetcluster.consumer.owner.letters import LetterPublisher
from jetcluster.consumer.owner.owner import ConsumerOwner
from jetcluster.consumer.owner.push import FlowControl
from jetcluster.consumer.owner.selection import Redelivery, Selection
from jetcluster.consumer.state import archived, creation
from jetcluster.consumer.state.state import ConsumerState, KeyRows
from jetcluster.mesh import identity
from jetcluster.mesh.interest import MeshInterest
from jetcluster.meta import places
from jetcluster.meta.machine import MetaMachine
from jetcluster.mirror import upstream
from jetcluster.model import advisory
from jetcluster.model.transforms import SubjectTransform
from jetcluster.monitor import healthz
from jetcluster.monitor.source import Health
from jetcluster.monitor.system import answers
from jetcluster.monitor.system.answers import SystemAnswers
from jetcluster.monitor.system.events import SystemEvents
from jetcluster.monitor.system.subscriber_counts import SubscriberCounts, _Count
from jetcluster.protocol import writer
from jetcluster.raft.core.election import HandOver
from jetcluster.raft.core.group import Group
from jetcluster.replica.reads.demands import Age, Demands
from jetcluster.replica.reads.membership import Membership
from jetcluster.server.accounts import service_imports
from jetcluster.server.client.client import Client
from jetcluster.server.client.clients import Clients
from jetcluster.server.permissions import ConnectionPermissions
from jetcluster.stream.apply import counters, restoring, schedules
from jetcluster.stream.apply.dedupe import DedupeWindow
from jetcluster.stream.apply.fast_rows import FastRow
from jetcluster.stream.apply.guard import RetentionGuard
from jetcluster.stream.apply.jobs import Jobs
from jetcluster.stream.lead.fast_ingest import FastIngest
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.exam_rig import examined
from tests.sim.cluster.nemesis import Rage
from tests.sim.cluster.run import run_seed
from tests.sim.cluster.scenario import Scenario
from tests.sim.cluster.workloads import archive_exam, handover_exam, line_exam, visitor_exam, wait_exam
from tests.sim.cluster.workloads.leaf_exam import LeafExam

pytestmark = [pytest.mark.sim, pytest.mark.thorough]


PARTS = {
    "exam-archives": ("_damaged", "_unusual", "_given_up", "_overtaken", "_snapshots", "_silent", "_slow"),
    "exam-servers": ("_unknown", "_meta", "_emptied", "_moves", "_leads", "_consumers"),
    "exam-permits": (
        "_links", "_identities", "_pedantic", "_consumers", "_streams", "_archives", "_objects", "_long", "_flood"
    ),
    "exam-kept": ("_refuses", "_gives_up", "_grows_old", "_timers", "_consumers"),
    "exam-overlaps": (
        "_purges", "_limits", "_interest", "_consumers", "_queues", "_resets", "_levels", "_unasked"
    ),
    "exam-visitors": ("_greetings", "_infos", "_reports"),
    "exam-waits": ("_sequences", "_unled", "_deleted", "_defaults"),
    "exam-restores": ("_histories", "_damaged", "_stopped", "_counters", "_sums", "_room"),
    "exam-asked": ("_servers", "_last", "_mirrored", "_empty", "_sources", "_purged"),
    "exam-numbers": ("_plain", "_limited", "_filtered", "_purged", "_terminated", "_given_up"),
    "exam-carried": ("_copies", "_republished", "_headers_only", "_scheduled"),
    "exam-listeners": ("_unconfirmed", "_unacknowledged"),
    "exam-deaths": ("_letters", "_links"),
    "exam-fresh": ("_replicas", "_mirror", "_own"),
    "exam-handovers": ("_publishes", "_pulls", "_pushes", "_fast", "_uploads"),
    "exam-resizes": ("_updates", "_joins", "_leaves", "_races", "_balance"),
    "exam-owners": (
        "_wider", "_narrower", "_order", "_headers", "_room", "_waits", "_requests", "_push", "_removed", "_refused",
        "_leaves", "_clocks", "_restored", "_guarded", "_ended", "_told"
    ),
    "exam-ids": ("_burst", "_mixed", "_mirrored"),
    "exam-transforms": ("_stored", "_republished", "_sourced", "_changed"),
    "exam-shares": ("_pulls", "_mixed", "_again", "_first"),
    "exam-limits": (
        "_streams", "_bytes", "_updates", "_consumers", "_required", "_stored", "_history"
    ),
    "exam-lines": ("_dialogues", "_rights", "_places", "_last_words"),
    "exam-views": ("_events", "_subscribers", "_questions", "_filters", "_leaves"),
    "exam-rooms": ("_any_history",),
    "exam-buckets": ("_own", "_both", "_stock"),
    "exam-points": ("_follow", "_damaged", "_died", "_restored", "_resumed", "_renamed", "_refused"),
    "exam-reloads": (
        "_users", "_permissions", "_mappings", "_limits", "_sizes", "_tags", "_refused", "_accounts", "_connections"
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "small"), [("three", False), ("three", True), ("five", True), ("three and a plain one", False)]
)
@pytest.mark.parametrize("name", PARTS)
def test_each_part_is_passed(monkeypatch: pytest.MonkeyPatch, name: str, layout: str, small: bool) -> None:
    result = examined(monkeypatch, name, *PARTS[name], layout=layout, small=small)
    assert result.failure == ""
    assert result.counts[f"{name}: examined"] == len(PARTS[name])


def _nothing(*arguments: Any) -> None:
    return None


def test_an_archive_with_too_much_in_it_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    one = [found for found in archive_exam.damaged() if "thousand" in found[0]]
    monkeypatch.setattr(archive_exam, "damaged", lambda: one)
    monkeypatch.setattr(restore, "MAX_IGNORED_ENTRIES", 1 << 30)
    assert "a thousand things of no stream: 0, not 10062" in examined(monkeypatch, "exam-archives", "_damaged").failure


def test_a_restored_stream_that_begins_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring, "skip_to", _nothing)
    assert "exam-archives, unusual" in examined(monkeypatch, "exam-archives", "_unusual").failure


def test_a_server_that_is_emptied_without_room_elsewhere_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Administration, "_check_places", _nothing)
    assert "SERVER.EVACUATE is not refused" in examined(monkeypatch, "exam-servers", "_emptied").failure


@pytest.mark.parametrize("part", ["_consumers", "_streams", "_archives", "_objects"])
def test_a_server_that_publishes_for_anybody_is_noticed(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    monkeypatch.setattr(Request, "may_deliver_to", lambda request, subject: True)
    assert f"exam-permits, {part[1:]}" in examined(monkeypatch, "exam-permits", part).failure


def test_requests_that_are_dropped_in_silence_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    event = advisory.api_limit_reached
    monkeypatch.setattr(dispatch, "api_limit_reached", lambda server, domain, dropped: event(server, domain, 1))
    assert "answered or dropped" in examined(monkeypatch, "exam-permits", "_flood").failure


def test_a_guard_that_refuses_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetentionGuard, "refusal", _nothing)
    assert "exam-kept, refuses" in examined(monkeypatch, "exam-kept", "_refuses").failure


def test_letters_and_timers_that_an_archive_loses_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring, "_note", _nothing)
    assert "exam-kept, timers: in time" in examined(monkeypatch, "exam-kept", "_timers").failure
    monkeypatch.setattr(archived, "_kept_letters", lambda state: {})
    assert "all letters are sent" in examined(monkeypatch, "exam-kept", "_consumers").failure


def test_a_purge_that_keeps_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    purge = Jobs.purge
    monkeypatch.setattr(
        Jobs, "purge", lambda jobs, index, subject, seq, keep, **more: purge(jobs, index, subject, seq, 0, **more)
    )
    assert "exam-overlaps, purges" in examined(monkeypatch, "exam-overlaps", "_purges").failure


def test_a_consumer_that_is_set_back_too_far_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "check_reset", _nothing)
    assert "is not refused" in examined(monkeypatch, "exam-overlaps", "_resets").failure


def test_reads_that_do_not_wait_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Demands, "_await_sequence", lambda demands, seq, go_on, request: go_on())
    assert "exam-waits, sequences" in examined(monkeypatch, "exam-waits", "_sequences").failure


def test_a_replica_that_takes_itself_for_proven_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_exam, "LEASES", 0.0)
    monkeypatch.setattr(Demands, "_prove", lambda demands, request, go_on: go_on())
    assert "what must be of now" in examined(monkeypatch, "exam-waits", "_unled").failure


def test_a_server_that_believes_any_signature_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "verify", lambda key, text, signature: True)
    monkeypatch.setattr(visitor_exam, "VISITS", 99)
    assert "ends by itself" in examined(monkeypatch, "exam-visitors", "_reports").failure


def test_counters_that_forget_what_an_archive_has_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters.CounterTotals, "_stored", lambda totals, subject: counters.Tally(0, {}, b""))
    assert "exam-restores, counters" in examined(monkeypatch, "exam-restores", "_counters").failure


def test_an_old_archive_that_loses_its_configuration_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_tar, "_bare", lambda config: {"subjects": ["restored.>"]})
    assert "exam-restores, histories" in examined(monkeypatch, "exam-restores", "_histories").failure


def test_a_name_that_two_streams_answer_to_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Membership, "take_alias", _nothing)
    assert "exam-asked, last" in examined(monkeypatch, "exam-asked", "_last").failure


def test_a_restore_of_which_its_server_says_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RestoreWatch, "alive", _nothing)
    assert "exam-archives, slow" in examined(monkeypatch, "exam-archives", "_slow").failure


def test_a_consumer_that_counts_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "num_pending", lambda state, store: 0)
    assert "exam-numbers, plain: after" in examined(monkeypatch, "exam-numbers", "_plain").failure


def test_a_floor_that_stays_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumerState, "settle_floor", _nothing)
    assert "exam-numbers, limited: after" in examined(monkeypatch, "exam-numbers", "_limited").failure


def test_what_was_given_up_and_stays_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyRows, "clear", _nothing)
    assert "all is acknowledged is empty" in examined(monkeypatch, "exam-numbers", "_given_up").failure


def test_copies_with_instructions_to_their_upstream_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "_DROPPED", (b"None-",))
    assert "exam-carried, copies: headers" in examined(monkeypatch, "exam-carried", "_copies").failure


def test_messages_with_fields_of_their_schedule_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "_DROPPED", frozenset())
    assert "exam-carried, scheduled" in examined(monkeypatch, "exam-carried", "_scheduled").failure


def test_a_window_that_stays_full_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlowControl, "restart", _nothing)
    assert "exam-listeners, unconfirmed" in examined(monkeypatch, "exam-listeners", "_unconfirmed").failure


def test_leaders_that_go_without_their_answers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HandOver, "_has_answered", lambda hand_over: True)
    monkeypatch.setattr(handover_exam, "ROUNDS", 12)
    assert (
        "exam-handovers, publishes: stored without an ack"
        in examined(monkeypatch, "exam-handovers", "_publishes").failure
    )


def test_a_batch_whose_next_leader_knows_no_sequence_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    resume = FastIngest.resume

    def forgetful(ingest: FastIngest, rows: dict[bytes, FastRow], now: int) -> None:
        for row in rows.values():
            row.stored = 0
        resume(ingest, rows, now)

    monkeypatch.setattr(FastIngest, "resume", forgetful)
    assert "exam-handovers, fast: messages of the batch" in examined(monkeypatch, "exam-handovers", "_fast").failure


def test_replicas_that_take_themselves_for_current_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Demands, "_prove", lambda demands, request, go_on: go_on())
    assert "exam-fresh, replicas: the newest of NOW" in examined(monkeypatch, "exam-fresh", "_replicas").failure


def test_a_mirror_that_takes_itself_for_young_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Age, "is_within", lambda age, nanoseconds, began: True)
    assert "exam-fresh, mirror: the newest of NOWCOPY" in examined(monkeypatch, "exam-fresh", "_mirror").failure


def test_a_replica_that_does_not_wait_for_what_was_told_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "told_index", property(lambda group: group.applied_index))
    assert "exam-fresh, own: older than its own" in examined(monkeypatch, "exam-fresh", "_own").failure


def test_a_letter_that_is_sent_again_without_a_look_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LetterPublisher, "_take_up", lambda letters, seqs: letters.added(seqs))
    assert "exam-deaths, letters: messages without one" in examined(monkeypatch, "exam-deaths", "_letters").failure


def test_listeners_whose_leave_is_not_told_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = MeshInterest.interest_changed

    def deaf(interest: MeshInterest, account: str, subject: bytes, queue: bytes | None, count: int) -> None:
        if count or not subject.startswith(b"listened."):
            changed(interest, account, subject, queue, count)

    monkeypatch.setattr(MeshInterest, "interest_changed", deaf)
    assert "exam-deaths, links: exam-deaths: listened." in examined(monkeypatch, "exam-deaths", "_links").failure


def test_of_two_limits_of_consumers_the_wider_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "min", max, raising=False)
    assert "exam-limits, consumers: consumer more" in examined(monkeypatch, "exam-limits", "_consumers").failure


@pytest.mark.parametrize("part", ["_bytes", "_updates"])
def test_an_account_that_counts_one_replica_is_noticed(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    monkeypatch.setattr(places, "reserved", places.claim)
    assert f"exam-limits, {part[1:]}: c" in examined(monkeypatch, "exam-limits", part).failure


async def _settled(*arguments: Any, moves: bool) -> None:
    return None


def test_a_stream_that_is_sent_elsewhere_on_its_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_check_settled", _settled)
    assert "exam-resizes, joins: a place: 0, not 10226" in examined(monkeypatch, "exam-resizes", "_joins").failure
    assert "exam-resizes, leaves: a number" in examined(monkeypatch, "exam-resizes", "_leaves").failure


def test_servers_that_are_changed_from_what_they_were_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = MetaMachine.apply

    def apply(machine: MetaMachine, index: int, term: int, raw: bytes) -> Any:
        command = {key: value for key, value in json.loads(raw).items() if key != "from"}
        return usual(machine, index, term, json.dumps(command).encode())

    monkeypatch.setattr(MetaMachine, "apply", apply)
    assert "was decided for" in examined(monkeypatch, "exam-resizes", "_races").failure


def test_a_consumer_that_selects_as_before_its_update_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Selection, "configured", _nothing)
    assert "of two filters, and left: 6, not 3" in examined(monkeypatch, "exam-owners", "_narrower").failure
    assert "one of each key: [1, 2, 3, 4]" in examined(monkeypatch, "exam-owners", "_order").failure


def test_a_new_owner_that_does_not_know_what_is_gone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumerOwner, "_look_up_pending", _nothing)
    failure = examined(monkeypatch, "exam-owners", "_removed").failure
    assert "those that are there: [6" in failure or "wait for an ack of one, and are not there" in failure


def test_due_messages_of_members_that_are_gone_and_are_kept_for_them_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Redelivery, "unpark", _nothing)
    assert "what those that stay get" in examined(monkeypatch, "exam-owners", "_leaves").failure


def test_ids_that_nobody_knows_and_transforms_that_match_nothing_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DedupeWindow, "seq_of", _nothing)
    assert "exam-ids, burst: ack" in examined(monkeypatch, "exam-ids", "_burst").failure
    monkeypatch.setattr(SubjectTransform, "match", _nothing)
    assert "exam-transforms, stored" in examined(monkeypatch, "exam-transforms", "_stored").failure


def test_acks_that_an_import_takes_for_answers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_imports, "_ACK", b"$JS.NONE.")
    assert "exam-shares, pulls: acks go" in examined(monkeypatch, "exam-shares", "_pulls").failure


@pytest.mark.parametrize("layout", ["three and a leaf", "three and a leaf of three"])
def test_each_part_is_passed_at_a_leaf(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    parts = ("_publishes", "_pulls", "_pushes", "_reads", "_domains", "_both", "_groups", "_leaving")
    usual = Exam.examine

    async def examine(exam: LeafExam, some: Any, most: int = 5) -> None:
        await usual(exam, [getattr(exam, part) for part in parts], len(parts))

    monkeypatch.setattr(LeafExam, "examine", examine)
    plan = replace(Scenario.of(1, ("exam-leaf",)), layout=layout, rage=Rage((), 0, 1.0, 1.0), web=False, tls="")
    result = run_seed(1, scenario=plan)
    assert result.failure == "" and result.counts["exam-leaf: examined"] == len(parts)


def test_a_client_that_goes_and_keeps_its_place_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clients, "forget", _nothing)
    assert "exam-lines, places: the place of one" in examined(monkeypatch, "exam-lines", "_places").failure


def test_another_word_of_a_server_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PONG", b"PONG \r\n")
    assert "exam-lines, dialogues: " in examined(monkeypatch, "exam-lines", "_dialogues").failure


def test_last_words_that_nobody_hears_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Client.take_turn

    def take_turn(client: Client, quantum: int) -> None:
        client.commands.forget()  # what waited for this turn
        usual(client, quantum)

    monkeypatch.setattr(Client, "take_turn", take_turn)
    monkeypatch.setattr(line_exam, "LAST_WORDS", (line_exam.FLOOD,))
    assert "exam-lines, last_words: " in examined(monkeypatch, "exam-lines", "_last_words").failure


def test_a_user_who_comes_by_a_port_that_is_not_his_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Authenticator, "_admit", staticmethod(lambda user, connection_type: user.result))
    assert "exam-lines, rights: " in examined(monkeypatch, "exam-lines", "_rights").failure


@pytest.mark.parametrize(
    ("target", "name", "answer"),
    [
        (UserPermissions, "can_publish", True), (ConnectionPermissions, "_use_reply", True),
        (ConnectionPermissions, "can_subscribe", True), (ConnectionPermissions, "_is_deliverable", True),
    ],
)  # fmt: skip
def test_a_right_that_nobody_has_is_noticed(
    monkeypatch: pytest.MonkeyPatch, target: type, name: str, answer: bool
) -> None:
    monkeypatch.setattr(target, name, lambda *arguments: answer)
    assert "exam-lines, rights: " in examined(monkeypatch, "exam-lines", "_rights").failure


def test_clients_that_stay_beyond_a_new_limit_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clients, "shed_of", _nothing)
    assert "exam-reloads, connections: who stays" in examined(monkeypatch, "exam-reloads", "_connections").failure


def _well(text: str, *, details: bool) -> Health:
    return Health(200, {"status": "ok"})


@pytest.mark.parametrize(
    ("part", "target", "name", "wrong", "said"),
    [
        ("_events", SystemEvents, "disconnected", _nothing, "connections: who is left"),
        ("_events", SystemEvents, "connected", _nothing, "servers that tell of nobody"),
        ("_leaves", SystemEvents, "_about_server", _nothing, "who is said to have ended"),
        ("_subscribers", SubscriberCounts, "count", lambda *arguments: 0, "subscribers of"),
        ("_questions", SystemAnswers, "_kick", _nothing, "the end of who is kicked"),
        ("_questions", SystemAnswers, "_lame_duck", _nothing, "is not told to leave"),
        ("_filters", answers, "is_for", lambda node, options: True, "who answers"),
        ("_filters", healthz, "_bad_question", _well, "the health of"),
    ],
)  # fmt: skip
def test_what_the_system_account_is_not_told_is_noticed(
    monkeypatch: pytest.MonkeyPatch, part: str, target: Any, name: str, wrong: Any, said: str
) -> None:
    monkeypatch.setattr(target, name, wrong)
    failure = examined(monkeypatch, "exam-views", part).failure
    assert failure.startswith(f"exam-views, {part[1:]}: "), failure
    assert said in failure


def test_a_question_for_subscribers_that_stays_open_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Count, "end", _nothing)
    assert examined(monkeypatch, "exam-views", "_subscribers").failure

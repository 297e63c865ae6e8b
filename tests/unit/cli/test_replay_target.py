"""Earlier replays are found by a search, or left in doubt where a stream removed messages."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.cli import replay_target
from jetcluster.cli.replay import LetterReplay
from jetcluster.errors import CallerError
from tests.unit.cli.letter_streams import HOUR, Streams


def test_a_forged_id_behind_a_bare_lf_is_no_earlier_replay() -> None:
    streams = Streams()
    streams.add(1, age=2 * HOUR)
    streams.store("work.a", HOUR, [(b"B", b"1\nNats-Msg-Id: replay:dl:1")])
    assert streams.replay().done == 1 and len(streams.work) == 2


@pytest.mark.parametrize("direct", [False, True])
def test_an_interrupted_replay_puts_none_back_twice(direct: bool) -> None:
    streams = Streams(direct=direct)
    streams.store()
    streams.add(1, age=2 * HOUR)
    streams.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        streams.replay()
    assert len(streams.work) == 2 and len(streams.letters) == 1
    streams.interrupted = False
    streams.now += 2 * HOUR
    assert streams.replay().done == 1 and len(streams.work) == 2 and not streams.letters


def test_what_may_have_been_back_and_removed_is_left_unless_it_is_wished_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    streams = Streams()
    streams.add(1)
    streams.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        streams.replay()
    streams.interrupted = False
    streams.work.clear()  # consumed
    streams.now += HOUR // 2
    made = streams.replay()
    assert (made.done, made.left, sorted(streams.letters), streams.work) == (0, 1, [1], {})
    assert "1: left, an earlier replay may have put it back: WORK may have had" in capsys.readouterr().out
    assert streams.replay(dry_run=True).left == 1
    assert streams.replay(again=True).done == 1 and len(streams.work) == 1 and not streams.letters


def test_an_old_letter_goes_where_the_stream_removed_nothing_since() -> None:
    def after(prepare: Any) -> int:
        streams = Streams()
        streams.add(1, age=2 * HOUR)
        prepare(streams)
        return streams.replay().done

    def removed(streams: Streams, *, age: int, seq: int) -> None:
        for at in (age, HOUR, HOUR):
            streams.store("work.b", at)
        del streams.work[seq]

    assert after(lambda streams: None) == 1, "never had any"
    assert after(lambda streams: streams.store("work.b", HOUR)) == 1
    assert after(lambda streams: removed(streams, age=3 * HOUR, seq=2)) == 0, "a gap"
    assert after(lambda streams: removed(streams, age=3 * HOUR, seq=1)) == 0, "its begin"
    assert after(lambda streams: [streams.store(age=5 * HOUR), removed(streams, age=4 * HOUR, seq=1)]) == 1, "earlier"
    assert after(lambda streams: streams.names.clear()) == 0, "nobody to ask"


def test_a_stream_is_looked_through_once_for_all_letters() -> None:
    for direct, subject, most in ((True, "$JS.API.DIRECT_LEADER.GET.WORK", 3), (False, "STREAM.MSG.GET.WORK", 601)):
        streams = Streams(direct=direct)
        for _ in range(600):
            streams.store(age=HOUR)
        for seq in range(1, 21):
            streams.add(seq, age=2 * HOUR)
        assert streams.replay().done == 20 and len(streams.work) == 620
        assert streams.asked.count(subject) <= most, "one search for all"


def test_a_search_is_repeated_before_the_stream_forgets_ids() -> None:
    streams = Streams()
    for seq in (1, 2):
        streams.add(seq, age=2 * HOUR)
    made = LetterReplay(streams, "DEAD")  # type: ignore[arg-type]
    letters = made.letters(">", ())
    made.run([next(letters)], 0)
    streams.store(headers=[(b"Nats-Msg-Id", b"replay:dl:2")])  # another replay, which is interrupted
    streams.now += HOUR // 2
    made.run(letters, 0)
    assert made.done == 2 and len(streams.work) == 2 and not streams.letters


def test_ids_in_memory_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_target, "MAX_IDS", 2)
    streams = Streams()
    for number in range(3):
        streams.store(headers=[(b"Nats-Msg-Id", b"replay:%d" % number)])
    streams.add(1, age=2 * HOUR)
    with pytest.raises(CallerError, match="more than 2 replayed"):
        streams.replay()
    assert streams.letters

"""The window of a flow-controlled push consumer."""

from __future__ import annotations

import re

from jetcluster.consumer.owner.push import FIRST_WINDOW_BYTES, MAX_WINDOW_BYTES, FlowControl
from testkit.twins.time import SeededRng

PREFIX = b"$JS.FC.S.C."


def test_a_question_comes_at_half_the_window_and_only_one_at_a_time() -> None:
    flow = FlowControl(PREFIX, SeededRng(1))
    flow.sent(FIRST_WINDOW_BYTES // 2)
    assert flow.ask() == b""
    flow.sent(1)
    reply = flow.ask()
    assert re.fullmatch(rb"\$JS\.FC\.S\.C\.[A-Za-z0-9]{4}", reply)
    assert flow.reply == reply
    flow.sent(FIRST_WINDOW_BYTES // 4)
    assert flow.ask() == b"", "one is open"


def test_beyond_the_window_nothing_is_sent_until_the_answer_comes() -> None:
    flow = FlowControl(PREFIX, SeededRng(1))
    flow.sent(FIRST_WINDOW_BYTES)
    assert flow.left == 0
    reply = flow.ask()
    flow.sent(10)
    assert flow.left == -10
    assert not flow.answered(PREFIX + b"none")
    assert flow.left == -10
    assert flow.answered(reply)
    assert not flow.answered(reply), "that question is no longer open"
    assert flow.reply == b""
    # what was sent after the question is still unconfirmed, and the window has doubled
    assert flow.left == 2 * FIRST_WINDOW_BYTES - 10


def test_the_window_grows_to_its_limit() -> None:
    flow = FlowControl(PREFIX, SeededRng(1))
    replies = set()
    for _ in range(10):
        flow.sent(MAX_WINDOW_BYTES)
        replies.add(flow.ask())
        assert flow.answered(flow.reply)
    assert len(replies) == 10
    assert flow.left == MAX_WINDOW_BYTES

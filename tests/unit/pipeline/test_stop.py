"""Signals that end a following job in order."""

from __future__ import annotations

import os
import signal
import threading

from jetcluster.pipeline.stop import Stop


def test_a_signal_is_noted_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGTERM):
        with Stop() as stop:
            assert not stop.wanted
            os.kill(os.getpid(), number)
            assert stop.wanted
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_have_no_signals() -> None:
    seen: list[bool] = []

    def work() -> None:
        with Stop() as stop:
            seen.append(stop.wanted)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]

"""Profiles of rows: py-spy's raw output as a table, and the page they are merged into."""

from __future__ import annotations

from bench.profile import TOP_LINES, Profile, anchor, merged, profiled_rows

RAW = """\
thread (0x1);run (loop.py:10);feed (parser.py:5) 30
thread (0x1);run (loop.py:10);feed (parser.py:9) 20
thread (0x1);run (loop.py:10) 25
thread (0x1);run (loop.py:10);send (libc.so.6) 25
"""


def test_samples_count_for_the_function_that_ran_whatever_its_line() -> None:
    found = Profile.parse(RAW)
    assert (found.total, found.functions[0]) == (100, ("feed (parser.py)", 50))
    assert "| 50.0 % | `feed (parser.py)` |" in found.table() and "| 25.0 % | `send (libc.so.6)` |" in found.table()
    waiting = (
        "run (t.py:1);PyThread_acquire_lock_timed (libpython);0x7f12 (libc.so.6) 9\nrun (t.py:1);poll (libc.so.6) 9\n"
    )
    busy = "run (t.py:1);epoll_pwait (libc.so.6);wake (core.c:3) 1\nrun (t.py:1);0x7f12 (libc.so.6) 2\n"
    assert Profile.parse(waiting + busy).functions == [("(libc.so.6)", 2), ("wake (core.c)", 1)]
    many = Profile.parse("".join(f"a;f{n} (x.py:1) 1\n" for n in range(50)))
    assert len(many.functions) == TOP_LINES and many.total == 50


def test_the_page_keeps_other_rows_and_the_order() -> None:
    order = ["core", "R3 sync", "MSG.GET"]
    page = merged("", {"MSG.GET": Profile(1, [("a", 1)]), "core": Profile(2, [("b", 2)])}, "abc", order)
    page = merged(page, {"R3 sync": Profile(3, [("c", 3)]), "core": Profile(4, [("d", 4)])}, "def", order)
    assert [line for line in page.splitlines() if line.startswith("## ")] == ["## core", "## R3 sync", "## MSG.GET"]
    assert profiled_rows(page) == set(order)
    assert "At commit abc. 1 samples." in page and "At commit def. 4 samples." in page and "2 samples." not in page


def test_anchors_are_those_of_the_site() -> None:
    assert anchor("R3 batch=10 inflight=1") == "r3-batch10-inflight1"
    assert anchor("failover kill -9 leader") == "failover-kill-9-leader"

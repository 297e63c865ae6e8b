from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.raft.journal.runs import SegmentRuns

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 30)),
        st.tuples(st.just("roll"), st.just(0)),
        st.tuples(st.just("carry"), st.integers(0, 8)),
        st.tuples(st.just("drop_to"), st.integers(0, 40)),
        st.tuples(st.just("drop_from"), st.integers(0, 40)),
    ),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=200, deadline=None)
def test_runs_say_what_a_table_of_all_entries_says(steps: list[tuple[str, int]]) -> None:
    runs = SegmentRuns()
    table: dict[int, int] = {}
    base = last = 0
    segment = 1
    for step, number in steps:
        if step == "add":
            for _ in range(number):
                last += 1
                table[last] = segment
                runs.add(last, segment)
        elif step == "roll":
            segment += 1
        elif step == "carry" and table:
            oldest = min(table.values())
            held = [i for i in table if table[i] == oldest]
            for index in held[:number]:
                table[index] = segment
                runs.move(index, segment, last)
        elif step == "drop_to" and table:
            upto = min(base + number, last)
            table = {i: s for i, s in table.items() if i > upto}
            runs.drop_to(upto, last)
            base = upto
        elif step == "drop_from" and table:
            index = max(base + 1, last - number)
            table = {i: s for i, s in table.items() if i < index}
            runs.drop_from(index)
            last = index - 1
        assert runs.oldest() == min(table.values(), default=None)
        assert {i: runs.segment_of(i) for i in table} == table
        for old in range(1, segment + 1):
            assert [i for part in runs.up_to(old, last) for i in part] == [i for i in table if table[i] <= old]


def test_a_log_of_many_entries_has_few_runs() -> None:
    runs = SegmentRuns()
    for index in range(1, 100_001):
        runs.add(index, index // 10_000)
    assert len(runs._firsts) == 11
    for index in range(1, 10_000):
        runs.move(index, 10, 100_000)
    assert len(runs._firsts) == 11
    assert runs.oldest() == 1

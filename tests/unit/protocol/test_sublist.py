"""The subscription index against a list that is searched by `subjects.matches`."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.protocol import subjects, sublist
from jetcluster.protocol.sublist import Sublist
from testkit.twins.memory import held


@dataclass(eq=False)
class Sub:
    subject: bytes
    queue: bytes | None = None


Answer = tuple[frozenset[Sub], frozenset[tuple[bytes, frozenset[Sub]]]]


def compile_answer(subject: bytes, plain: list[Sub], queues: dict[bytes, list[Sub]]) -> Answer:
    assert len(set(plain)) == len(plain), "a subscription is found once"
    return frozenset(plain), frozenset((name, frozenset(members)) for name, members in queues.items())


def expected(subs: list[Sub], subject: bytes) -> Answer:
    found = [s for s in subs if subjects.matches(subject, s.subject)]
    names = {s.queue for s in found if s.queue is not None}
    return (
        frozenset(s for s in found if s.queue is None),
        frozenset((name, frozenset(s for s in found if s.queue == name)) for name in names),
    )


tokens = st.sampled_from([b"a", b"b", b"c"])
literals = st.lists(tokens, min_size=1, max_size=4).map(b".".join)
patterns = (
    st.lists(st.sampled_from([b"a", b"b", b"c", b"*", b">"]), min_size=1, max_size=4)
    .map(b".".join)
    .filter(subjects.is_valid)
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), patterns, st.sampled_from([None, None, b"q", b"r"])),
        st.tuples(st.just("remove"), st.integers(0, 50), st.none()),
        st.tuples(st.just("match"), literals, st.none()),
        st.tuples(st.just("remember"), literals, st.none()),
    ),
    max_size=60,
)


@pytest.mark.parametrize("deep", [1, 2, 5])
@settings(max_examples=300, deadline=None)
@given(script=steps)
def test_every_answer_is_right_whatever_is_cached(deep: int, script: list[tuple[str, object, bytes | None]]) -> None:
    index: Sublist[Sub, Answer] = Sublist(compile_answer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sublist, "ACK_TOKENS", deep)
        run_script(index, script)


def run_script(index: Sublist[Sub, Answer], script: list[tuple[str, object, bytes | None]]) -> None:
    subs: list[Sub] = []
    for action, value, queue in script:
        if action == "add":
            assert isinstance(value, bytes)
            subs.append(Sub(value, queue))
            index.insert(subs[-1])
        elif action == "remove" and subs:
            assert isinstance(value, int)
            assert index.remove(subs.pop(value % len(subs)))
        elif isinstance(value, bytes):
            assert index.match_deep(value) == expected(subs, value), value
            assert index.match(value) == expected(subs, value), value
            if action == "remember":
                index.remember(value, index.match(value))
        assert index.count == len(subs) == len(list(index))
    for s in subs:
        index.remove(s)
    assert index._root.is_empty()
    assert index._root.leaves == 0


def test_unique_replies_are_served_from_the_prefix() -> None:
    index: Sublist[Sub, Answer] = Sublist(compile_answer)
    inbox = Sub(b"_INBOX.abc.*")
    index.insert(inbox)
    for n in range(1000):
        assert index.match(b"_INBOX.abc.%d" % n)[0] == {inbox}
    assert index.matches == 1, "one walk of the trie for all of them"
    assert not index.literals


def test_a_short_subject_is_not_taken_for_what_stands_before_the_numbers() -> None:
    index: Sublist[Sub, Answer] = Sublist(compile_answer)
    five, six = Sub(b"*.*.*.*.*"), Sub(b"*.*.*.*.*.*")
    index.insert(five)
    index.insert(six)
    assert index.match_deep(b"a.1.2.3.4")[0] == {five}
    assert index.match_deep(b"a.1.2.3.4.5")[0] == {six}


def test_acks_are_served_from_what_stands_before_their_numbers() -> None:
    index: Sublist[Sub, Answer] = Sublist(compile_answer)
    acks, other = Sub(b"$JS.ACK.S.C.*.*.*.*.*"), Sub(b"$JS.ACK._.hash.S.C.>")
    index.insert(acks)
    index.insert(other)
    index.insert(Sub(b"_INBOX.a.*"))
    for n in range(1000):
        assert index.match_deep(b"$JS.ACK.S.C.1.%d.%d.%d.0" % (n, n, n))[0] == {acks}
    assert index.matches == 1
    assert not index.literals
    for short in (b"$JS.ACK.S.C.1.2.3.4", b"$JS.ACK.S.C.1.2..4.5", b"$JS.ACK.S.C.1.2.3.4.5.6", b"$JS"):
        assert index.match_deep(short)[0] == frozenset()
    assert index.match_deep(b"$JS.ACK._.hash.S.C.1.2.3.4.5.6")[0] == {other}
    before = index.matches
    index.insert(Sub(b"_INBOX.b.*"))
    index.match_deep(b"$JS.ACK.S.C.1.2.3.4.5")
    assert index.matches == before, "unrelated subscriptions do not matter"
    tap = Sub(b"$JS.ACK.>")
    index.insert(tap)
    assert index.match_deep(b"$JS.ACK.S.C.1.2.3.4.5")[0] == {acks, tap}
    index.remove(acks)
    assert index.match_deep(b"$JS.ACK.S.C.1.2.3.4.5")[0] == {tap}


def test_a_literal_beside_a_wildcard_ends_the_sharing() -> None:
    index: Sublist[Sub, Answer] = Sublist(compile_answer)
    wide, narrow = Sub(b"a.*"), Sub(b"a.x")
    index.insert(wide)
    assert index.match(b"a.x")[0] == {wide}
    index.insert(narrow)
    assert index.match(b"a.x")[0] == {wide, narrow}
    assert index.match(b"a.y")[0] == {wide}
    index.remove(narrow)
    assert index.match(b"a.x")[0] == {wide}


@pytest.mark.parametrize("subject", [b"a.", b".a", b"a..b", b"", b"."])
def test_empty_tokens_match_nothing(subject: bytes) -> None:
    index: Sublist[Sub, Answer] = Sublist(compile_answer)
    for pattern in (b">", b"a.*", b"*", b"*.*"):
        index.insert(Sub(pattern))
    index.match(b"a.b")
    assert index.match(subject) == (frozenset(), frozenset())


def test_wildcards_in_a_published_subject_are_text() -> None:
    index: Sublist[Sub, Answer] = Sublist(compile_answer)
    star, full, literal = Sub(b"foo.*"), Sub(b"foo.>"), Sub(b"foo.bar")
    for s in (star, full, literal):
        index.insert(s)
    assert index.match(b"foo.*")[0] == {star, full}
    assert index.match(b"foo.>")[0] == {star, full}


def test_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sublist, "MAX_CACHED", 100)
    index: Sublist[Sub, Answer] = Sublist(compile_answer)
    index.insert(Sub(b"a.x"))
    index.insert(Sub(b"b.*.>"))
    for n in range(1000):
        index.match(b"a.%d" % n)
        index.match(b"b.%d.y" % n)
        assert len(index.literals) <= 100
        assert len(index.prefixes) <= 100
        assert held(index) < 2_000


def test_resubscribing_does_not_grow_the_index() -> None:
    index: Sublist[Sub, Answer] = Sublist(compile_answer)
    keep = Sub(b"a.b")
    index.insert(keep)
    sizes = []
    for _ in range(100):
        s = Sub(b"a.c")
        index.insert(s)
        index.match(b"a.c")
        index.remove(s)
        index.match(b"a.c")
        sizes.append(held(index))
    assert len(set(sizes[1:])) == 1


def test_long_subjects_are_not_remembered() -> None:
    compiled: list[bytes] = []

    def compile_list(subject: bytes, plain: list[Sub], queues: dict[bytes, list[Sub]]) -> list[Sub]:
        compiled.append(subject)
        return list(plain)

    index = Sublist(compile_list)
    for pattern in (b"a.*", b"$JS.ACK.>"):
        index.insert(Sub(pattern))
    long = b"a." + b"x" * 300
    for _ in range(2):
        for subject in (long, b"x" * 300 + b".y", b"x." + b"y" * 300):
            index.match(subject)
            index.remember(subject, [])
        for stream in (b"s" * 300, b"s"):
            index.match_deep(b"$JS.ACK." + stream + b".c.1.1.1.1.0")
    assert all(len(key) <= 256 for key in (*index.literals, *index.prefixes))
    assert compiled.count(long) == 2
    acks = [len(subject) for subject in compiled if subject.startswith(b"$JS.ACK.")]
    assert len(acks) == 3, "that of the short one once"
    assert index.match(long) == index.match(b"a.y") != []

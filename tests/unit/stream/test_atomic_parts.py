from __future__ import annotations

import pytest

from jetcluster.store.batch import Batch
from jetcluster.stream.apply.staging import MAX_BLOCK_BYTES
from jetcluster.stream.log import commands
from jetcluster.stream.log.commands import BatchCommit, BatchPart, CommandError
from jetcluster.stream.ports import SIDE_BATCH_PARTS, BatchResult
from tests.unit.stream.fake_store import block
from tests.unit.stream.test_machine import Stream


def split(n: int = 9, size: int = 100) -> list[bytes]:
    """The commands of a batch of `n` messages."""
    headers = [block("Nats-Batch-Id: b", f"Nats-Batch-Sequence: {i}") for i in range(1, n + 1)]
    batch = Batch.encode([b"a"] * n, headers, [b"x" * size] * n)
    return commands.encode_atomic(1, batch, plain=True, allow_msg_id=False)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "PART_BYTES", 400)


def side_rows(stream: Stream) -> int:
    return sum(table == SIDE_BATCH_PARTS for table, _ in stream.store.side)


def test_one_command_up_to_the_part_size(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = split()
    assert len(whole) == 1
    length = len(whole[0]) - commands.HEAD.size - 4
    monkeypatch.setattr(commands, "PART_BYTES", length)
    assert len(split()) == 1
    monkeypatch.setattr(commands, "PART_BYTES", length - 1)
    part, commit = map(commands.decode, split())
    assert isinstance(part, BatchPart) and len(part.data) == length - 1
    assert isinstance(commit, BatchCommit) and isinstance(commit.body, bytes) and len(commit.body) == 1


@pytest.mark.usefixtures("small_parts")
def test_parts_are_applied_whole_with_their_commit() -> None:
    stream = Stream(allow_atomic=True)
    *parts, commit = split()
    assert len(parts) == 3
    for part in parts:
        assert stream.apply(part) == 0
        assert not stream.store.rows
        stream.restart()
    assert side_rows(stream) == 3
    assert stream.apply(commit) == BatchResult(9, 9, None)
    assert stream.seqs() == list(range(1, 10)) and not side_rows(stream)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("how", ["another command", "an entry of the raft itself", "a part is missing"])
@pytest.mark.parametrize("restart", [False, True])
def test_parts_without_their_commit_right_behind_are_void(how: str, restart: bool) -> None:
    stream = Stream(allow_atomic=True)
    *parts, commit = split()
    for part in parts[:2]:
        stream.apply(part)
    if how == "another command":
        stream.one("a")
        assert not side_rows(stream)
    elif how == "an entry of the raft itself":
        stream.index += 1
    if restart:
        stream.restart()
    if how != "a part is missing":
        stream.apply(parts[2])
    before = stream.seqs()
    result = stream.apply(commit)
    assert isinstance(result, BatchResult) and result.error is not None and result.error.err_code == 10176
    assert stream.seqs() == before and not side_rows(stream)
    for command in split():
        result = stream.apply(command)
    assert isinstance(result, BatchResult) and result.error is None and len(stream.seqs()) == len(before) + 9


@pytest.mark.usefixtures("small_parts")
def test_parts_of_another_term_are_void() -> None:
    stream = Stream(allow_atomic=True)
    *parts, commit = split()
    for part in parts:
        stream.apply(part)
    result = stream.machine.apply(stream.index + 1, 2, commit)
    assert isinstance(result, BatchResult) and result.error is not None
    assert not stream.store.rows


@pytest.mark.usefixtures("small_parts")
def test_a_new_start_replaces_an_abandoned_one() -> None:
    stream = Stream(allow_atomic=True)
    stream.apply(split()[0])
    for command in split(12):
        result = stream.apply(command)
    assert result == BatchResult(12, 12, None)


def test_a_long_batch_is_stored_in_blocks() -> None:
    stream = Stream(allow_atomic=True)
    for command in split(50, MAX_BLOCK_BYTES // 10):
        result = stream.apply(command)
    assert result == BatchResult(50, 50, None)
    assert stream.store.appends == 5
    assert [m.ts - stream.store.rows[1].ts for m in stream.store.rows.values()] == list(range(50))


def test_damaged_commands_are_refused() -> None:
    (commit,) = split()
    with pytest.raises(CommandError):
        commands.decode(commit[:-1])
    with pytest.raises(CommandError):
        commands.decode(commit[: commands.HEAD.size] + b"\x80" + commit[commands.HEAD.size + 1 :])
    with pytest.raises(CommandError):
        commands.decode(commit[: commands.HEAD.size + 2])
    with pytest.raises(CommandError):
        commands.whole_batch(b"no batch")

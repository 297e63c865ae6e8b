from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.config.account_options import AccountJetStreamOptions, AccountOptions
from jetcluster.config.options import JetStreamOptions, Options
from jetcluster.errors import ApiError
from jetcluster.node import capacity
from jetcluster.node.capacity import Capacity

GB = 1 << 30


@pytest.fixture
def options() -> Options:
    options = Options(jetstream=JetStreamOptions(enabled=True))
    options.accounts = {
        "A": AccountOptions("A", jetstream=AccountJetStreamOptions(max_memory=GB, max_store=100 * GB, max_streams=3)),
        "B": AccountOptions("B", jetstream=AccountJetStreamOptions()),
    }
    return options


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "physical_memory", lambda: 16 * GB)
    monkeypatch.setattr(capacity, "free_disk", lambda directory, files: 40 * GB)


def test_without_configuration_three_quarters_of_what_there_is(options: Options, tmp_path: Path) -> None:
    found = Capacity(options, tmp_path)
    assert (found.max_memory, found.max_storage) == (12 * GB, 30 * GB)


def test_the_configuration_wins_also_after_a_reload(options: Options, tmp_path: Path) -> None:
    found = Capacity(options, tmp_path)
    options.jetstream = JetStreamOptions(enabled=True, max_memory_store=5, max_file_store=0)
    assert (found.max_memory, found.max_storage) == (5, 0)


def test_an_account_shows_its_own_limits_alone(options: Options, tmp_path: Path) -> None:
    found = Capacity(options, tmp_path)
    own = found.own_limits("A")
    assert (own.max_memory, own.max_storage, own.max_streams) == (GB, 100 * GB, 3)
    assert (found.own_limits("B").max_storage, found.own_limits("$G").max_storage) == (-1, -1)


def test_decisions_also_look_at_what_the_servers_hold_together(options: Options, tmp_path: Path) -> None:
    found = Capacity(options, tmp_path)
    alone, three = found.limits("A", lambda: 1), found.limits("A", lambda: 3)
    assert (alone.max_memory, alone.max_storage) == (GB, 30 * GB)
    assert (three.max_memory, three.max_storage) == (GB, 90 * GB)
    assert found.limits("B", lambda: 3).max_storage == 90 * GB
    assert found.limits("B", lambda: 0).max_storage == 30 * GB  # before the meta group knows its nodes


def test_tiers_are_limits_of_one_replica(options: Options, tmp_path: Path) -> None:
    assert options.accounts is not None
    tiers = {"R1": AccountJetStreamOptions(max_memory=GB), "R3": AccountJetStreamOptions(max_store=7, max_streams=2)}
    options.accounts["T"] = AccountOptions("T", jetstream=AccountJetStreamOptions(max_streams=9, tiers=tiers))
    found = Capacity(options, tmp_path)
    own, three = found.own_limits("T"), found.limits("T", lambda: 3)
    assert (own.of(3).max_storage, own.of(3).max_streams, own.of(1).max_storage) == (7, 2, -1)
    assert (three.of(3).max_memory, three.of(3).max_storage, three.of(1).max_storage) == (12 * GB, 7, 90 * GB)
    assert (three.of(3).replicas, three.of(1).replicas, three.replicas) == (3, 1, 0)
    assert own.of(5).max_streams == 9
    with pytest.raises(ApiError, match="no JetStream default or applicable tiered limit present"):
        own.tier(5)
    assert found.own_limits("A").tier(5).max_streams == 3, "an account without tiers has one for all"


def test_the_machine_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert capacity.physical_memory() > 1 << 20
    assert capacity.free_disk(tmp_path) > 0
    assert capacity.free_disk(tmp_path / "missing") == capacity.UNKNOWN_DISK_BYTES


def test_room_that_comes_on_the_disk_is_noticed_and_what_is_stored_here_counts_as_room(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full at the start, or an earlier start has stored something there."""
    monkeypatch.setattr(capacity, "free_disk", lambda directory, files: 64 << 10)
    found = Capacity(options, tmp_path)
    assert found.max_storage == 48 << 10
    assert found.look(30 * GB, 10 * GB, 100 * GB) and found.max_storage == 30 * GB
    assert not found.look(31 * GB, 10 * GB, 100 * GB), "too little to be noticed"
    assert not found.look(GB, 10 * GB, 100 * GB) and found.max_storage == 30 * GB, (
        "what is full is the journal's to say"
    )
    assert found.look(40 * GB, 10 * GB, 0) and found.limits("B", lambda: 2).max_storage == 75 * GB
    options.jetstream = JetStreamOptions(enabled=True, max_file_store=5)
    assert not found.look(80 * GB, 10 * GB, 100 * GB) and found.max_storage == 5 and not found.by_disk


def test_what_is_stored_and_not_on_the_disk_yet_makes_no_room(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica has come with gigabytes, which its data store has in memory, or compressed on the disk."""
    monkeypatch.setattr(capacity, "free_disk", lambda directory, files: 64 << 10)
    found = Capacity(options, tmp_path)
    assert found.look(38 * GB, 15 * GB, 40 * GB) and found.max_storage == 30 * GB


def test_a_containers_limit_counts_as_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    real_memory = capacity.physical_memory
    whole = real_memory(tmp_path)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    file = tmp_path / "sys/fs/cgroup/memory.max"
    file.write_text("max\n")
    assert real_memory(tmp_path) == whole
    file.write_text(f"{64 << 20}\n")
    assert real_memory(tmp_path) == 64 << 20
    file.write_text(f"{2**63 - 4096}\n")  # how version 1 says that there is none
    assert real_memory(tmp_path) == whole

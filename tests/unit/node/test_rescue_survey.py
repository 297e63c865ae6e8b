from __future__ import annotations

import hashlib
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pytest

from jetcluster.config.options import JetStreamOptions
from jetcluster.mesh.identity import MARKER_NAME, mark_left_out
from jetcluster.node import rescue_survey
from jetcluster.node.platform import SystemPlatform
from jetcluster.node.rescue_store import describe
from jetcluster.node.rescue_survey import (
    KEY_VARIABLE,
    ReplicaView,
    RescueStoreError,
    jetstream_folder,
    locked,
    opened,
    survey,
)
from jetcluster.node.store_keys import StoreKeys
from jetcluster.sealing.api import SEALED_FILE
from jetcluster.store import keys
from jetcluster.store.batch import Batch
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.stream.apply.publish import MessageAdmission
from testkit.twins.log import ListLog
from tests.unit.node.stopped import PER_COMMAND, SECOND, START, Stopped, hurt


def look(stopped: Stopped, *names: str, verify: bool = False) -> dict[str, dict[str, ReplicaView]]:
    """Stream -> server -> its replica, closed again."""
    with opened(stopped.folders(*names)) as stores:
        views = survey(stores, verify=verify)
        return {view.label: {replica.name: replica for replica in view.replicas} for view in views}


def test_what_the_journal_has_beyond_the_data_counts(stopped: Stopped) -> None:
    stopped.fill("n1", {"S": (40, 12)})
    found = look(stopped, "n1", verify=True)
    assert list(found) == ["A/S", "A/ONE"] and not found["A/ONE"]
    replica = found["A/S"]["n1"]
    assert replica.sound and replica.place == (1, 40) and replica.applied == (12, 1) and replica.committed == 39
    assert replica.state is not None
    assert (replica.state.messages, replica.state.first_seq) == (38 * PER_COMMAND, 1)
    assert replica.state.last_seq == 38 * PER_COMMAND and replica.state.last_ts // SECOND == START // SECOND + 37


def test_an_encrypted_store_is_read_with_its_key(stopped: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped.fill("n1", {"S": (40, 12)})
    options = JetStreamOptions(encryption_key="the key")
    StoreKeys(stopped.folder("n1"), options, SystemPlatform(), ListLog()).encrypt_data()
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(RescueStoreError, match=f"give its key in the environment, as {KEY_VARIABLE}"):
        look(stopped, "n1")
    monkeypatch.setenv(KEY_VARIABLE, "another one\n\n")
    with pytest.raises(RescueStoreError, match="the configured key is not the one"):
        look(stopped, "n1")
    monkeypatch.setenv(KEY_VARIABLE, "another one\n\nthe key\n\n")
    replica = look(stopped, "n1", verify=True)["A/S"]["n1"]
    assert replica.sound and replica.applied == (12, 1) and replica.state is not None
    assert replica.state.messages == 38 * PER_COMMAND
    assert [store.keys is not None for store in [replica.store]] == [True], "a rescue writes with it"


def test_a_store_whose_encryption_was_cut_off_is_read(stopped: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys are made, and its data is plain, or is the sealed one under its first name."""
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    stopped.fill("n1", {"S": (40, 12)})
    folder = stopped.folder("n1")
    found = StoreKeys(folder, JetStreamOptions(encryption_key="the key"), SystemPlatform(), ListLog())
    replica = look(stopped, "n1", verify=True)["A/S"]["n1"]
    assert replica.sound and replica.applied == (12, 1) and replica.store.keys is None, "the plain one"
    monkeypatch.setenv(KEY_VARIABLE, "\nthe key")
    with monkeypatch.context() as patch:
        patch.setattr(rescue_survey, "needs_key", lambda _: True)
        assert look(stopped, "n1", verify=True)["A/S"]["n1"].applied == (12, 1), "the plain one, with the key"
    found.encrypt_data()
    (folder / "data").rename(folder / "data.next")
    (folder / "data.next" / MARKER_NAME).write_text("nonce\n")
    with locked([folder], to_write=True):
        assert look(stopped, "n1", verify=True)["A/S"]["n1"].applied == (12, 1)
    (folder / "data.next").rename(folder / "data")
    (folder / SEALED_FILE).unlink()
    monkeypatch.setattr(rescue_survey, "needs_key", lambda _: True)  # as its journal has sealed segments by then
    assert look(stopped, "n1", verify=True)["A/S"]["n1"].applied == (12, 1), "its mark was lost"


def test_looking_changes_nothing(stopped: Stopped) -> None:
    stopped.fill("n1", {"S": (40, 12)})
    hurt(stopped.folder("n1"), stopped.gids["S"], 30)

    def fingerprint() -> dict[str, tuple[str, int]]:
        files = [path for path in stopped.root.rglob("*") if path.is_file()]
        return {str(p): (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns) for p in files}

    before = fingerprint()
    look(stopped, "n1", verify=True)
    assert fingerprint() == before


def test_a_damaged_journal_ends_at_the_damage(stopped: Stopped) -> None:
    for name, harmed in (("n1", 20), ("n2", 30), ("n3", 0)):
        stopped.fill(name, {"S": (40, 12)})
        if harmed:
            hurt(stopped.folder(name), stopped.gids["S"], harmed)
    found = look(stopped)["A/S"]
    assert [(r.sound, r.usable, r.place) for r in found.values()] == [
        (False, True, (1, 18)), (False, True, (1, 28)), (True, True, (1, 40)),
    ], "up to what was known to be committed then"  # fmt: skip
    assert "journal is damaged" in found["n1"].problems[0]
    with opened(stopped.folders("n1", "n2")) as stores:
        (view,) = survey(stores, "A/S")
        assert view.best is not None and view.best.name == "n2" and not view.majority and view.missing == ["n3"]
    with opened(stopped.folders()) as stores:
        (view,) = survey(stores, "A/S")
        assert view.best is not None and view.best.name == "n3" and not view.majority and view.missing == []


def test_a_state_ahead_of_its_log(stopped: Stopped) -> None:
    """The data was flushed, and the journal has lost what is in it."""
    stopped.fill("n1", {"S": (40, 35)})
    hurt(stopped.folder("n1"), stopped.gids["S"], 20)
    replica = look(stopped, "n1")["A/S"]["n1"]
    assert not replica.sound and replica.usable and replica.place == (1, 35)
    assert any("its log does not hold what its state does" in problem for problem in replica.problems)
    assert replica.state is not None and replica.state.messages == 33 * PER_COMMAND


def half_fetched(stopped: Stopped, *gone: int) -> None:
    """Kinds of records that were given up and have not come."""
    kv = RocksKv(stopped.folder("n1") / "data")
    gid = stopped.gids["S"]
    kv.put(keys.stream_prefix(keys.INSTALLING, gid), b"")
    for kind in gone:
        kv.delete_range(keys.stream_prefix(kind, gid), keys.stream_end(kind, gid))
    kv.commit()
    kv.flush_now()
    kv.close()


def test_a_state_that_was_being_fetched_is_not_used_and_what_there_is_of_it_is_shown(stopped: Stopped) -> None:
    """Nothing of it may have been replaced yet."""
    stopped.fill("n1", {"S": (40, 12)})
    half_fetched(stopped)
    fits = "what is there fits together"
    for verify, said in ((False, fits), (True, f"{fits}, and can be read")):
        replica = look(stopped, "n1", verify=verify)["A/S"]["n1"]
        assert not replica.usable and replica.problems[0].endswith(said)
        assert replica.state is not None and replica.state.messages == 10 * PER_COMMAND
        assert "20 messages" in describe(replica)
    with opened(stopped.folders("n1")) as stores:
        for _ in range(2):
            (view,) = survey(stores, "A/S")
            assert not view.replicas[0].usable, "however often it is looked at"


def test_of_a_state_that_was_being_fetched_the_parts_may_not_fit_or_nothing_may_be_there(
    stopped: Stopped,
) -> None:
    stopped.fill("n1", {"S": (40, 12)})
    half_fetched(stopped, keys.POSTING)
    replica = look(stopped, "n1")["A/S"]["n1"]
    assert not replica.usable and replica.state is None
    assert "10 blocks of messages are there, and do not fit together" in replica.problems[0]
    half_fetched(stopped, keys.BLOCK, keys.INFO, keys.STATE, keys.SIDE)
    replica = look(stopped, "n1")["A/S"]["n1"]
    assert not replica.usable and "no messages are there" in replica.problems[0]


def test_a_log_that_begins_behind_its_state_is_of_no_use(stopped: Stopped) -> None:
    stopped.fill("n1", {"S": (40, 12)}, after=lambda journal: stopped.compact(journal, "S", 20))
    replica = look(stopped, "n1")["A/S"]["n1"]
    assert not replica.usable and "its log begins after 20, its state ends at 12" in replica.problems[0]


def test_rotten_records_are_found(stopped: Stopped) -> None:
    """Blocks by verifying; where the state of the meta group is hit, other stores tell of the streams."""
    stopped.fill("n1", {"S": (400, 400)})
    stopped.fill("n2", {"S": (400, 400)})
    kv = RocksKv(stopped.folder("n1") / "data")
    block = keys.block(stopped.gids["S"], 1)
    value = kv.get(block)
    assert value is not None
    kv.put(block, value[:-1] + bytes([value[-1] ^ 1]))
    kv.commit()
    kv.flush_now()
    kv.close()
    assert look(stopped, "n1")["A/S"]["n1"].usable
    replica = look(stopped, "n1", verify=True)["A/S"]["n1"]
    assert not replica.usable and "damaged block holding sequences 1..2" in replica.problems[0]
    for table in (stopped.folder("n1") / "data").glob("*.sst"):
        table.write_bytes(b"\xff" * 200 + table.read_bytes()[200:])
    found = look(stopped, "n1", "n2")["A/S"]
    assert not found["n1"].usable and found["n2"].sound
    with pytest.raises(RescueStoreError, match="says which streams there are"):
        look(stopped, "n1")


def test_what_is_no_store(stopped: Stopped, tmp_path: Path) -> None:
    with pytest.raises(RescueStoreError, match=r"no node\.json"):
        jetstream_folder(tmp_path)
    assert jetstream_folder(tmp_path / "n1") == jetstream_folder(tmp_path / "n1" / "jetstream") == stopped.folder("n1")
    stopped.fill("n1", {"S": (10, 5)})
    shutil.copytree(stopped.folder("n1"), tmp_path / "copy")
    with (
        pytest.raises(RescueStoreError, match="a copy of another one"),
        opened([stopped.folder("n1"), tmp_path / "copy"]),
    ):
        pass
    with pytest.raises(RescueStoreError, match="has no data store"), locked([stopped.folder("n2")], to_write=False):
        pass
    other = Stopped(tmp_path / "other", 1)
    other.stream("S", "n1")
    other.fill("n1", {"S": (10, 5)})
    node = other.folder("n1") / "node.json"
    node.write_text(node.read_text().replace("c1", "c2").replace(other.peer("n1"), "AAAAAAAA"))
    both = [stopped.folder("n1"), other.folder("n1")]
    with pytest.raises(RescueStoreError, match="of different clusters: c1, c2"), opened(both):
        pass
    node.write_text("{}")
    with pytest.raises(RescueStoreError, match="not a node identity"), opened([other.folder("n1")]):
        pass


def test_a_store_that_was_left_out_says_so(stopped: Stopped) -> None:
    stopped.fill("n1", {"S": (10, 5)})
    mark_left_out(stopped.folder("n1"), "gone")
    assert look(stopped, "n1")["A/S"]["n1"].store.left_out == "gone"


def _use(folder: Path, ready: object, done: object) -> None:
    kv = RocksKv(folder / "data")
    ready.set()  # type: ignore[attr-defined]
    done.wait(30)  # type: ignore[attr-defined]
    kv.close()


def test_a_store_in_use_is_not_looked_at(stopped: Stopped) -> None:
    stopped.fill("n1", {"S": (10, 5)})
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    process = context.Process(target=_use, args=(stopped.folder("n1"), ready, done))
    process.start()
    try:
        assert ready.wait(30)
        for to_write in (False, True):
            with pytest.raises(RescueStoreError, match="is in use"), locked([stopped.folder("n1")], to_write=to_write):
                pass
    finally:
        done.set()
        process.join(30)
    with locked([stopped.folder("n1")], to_write=True):
        pass


def test_a_command_that_all_replicas_refuse_does_not_end_the_look(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit = MessageAdmission.admit
    bases: list[int] = []

    def fail(self: MessageAdmission, batch: Batch, base: int, gate: Any = None) -> Any:
        if base not in bases:
            bases.append(base)
        if bases.index(base) == 1:  # the second command, each time it is tried
            admit(self, batch, base, gate)
            raise AssertionError("a hole")
        return admit(self, batch, base, gate)

    stopped.fill("n1", {"S": (40, 12)})
    before = look(stopped, "n1")["A/S"]["n1"]
    monkeypatch.setattr(MessageAdmission, "admit", fail)
    view = look(stopped, "n1")["A/S"]["n1"]
    assert view.sound and view.problems == before.problems
    assert view.state is not None and before.state is not None
    assert view.state.messages == before.state.messages - PER_COMMAND

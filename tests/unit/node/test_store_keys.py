"""The keys of a store at a start and at a reload, and a plain store that becomes an encrypted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jetcluster.config.options import JetStreamOptions
from jetcluster.mesh.identity import MARKER_NAME
from jetcluster.node import data_renewal
from jetcluster.node.data_renewal import (
    NEXT,
    PLAIN,
    QUARANTINE,
    encrypt,
    is_plain,
    needs_key,
    open_data,
    settle,
    stay_plain,
)
from jetcluster.node.platform import SystemPlatform
from jetcluster.node.store_keys import StoreKeys
from jetcluster.sealing.api import SEALED_FILE, KeyringError, is_sealed
from jetcluster.sealing.keyring import Keyring
from jetcluster.store import keys
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.kv import KvDamagedError, KvFullError
from jetcluster.store.rocks_kv import RocksKv
from testkit.twins.log import ListLog
from testkit.twins.time import ManualTime, SeededRng

BODY = b"unreadable:QZXJKVWPYF"


def opened(directory: Path, log: ListLog | None = None, **options: Any) -> StoreKeys:
    found = StoreKeys(directory, JetStreamOptions(**options), SystemPlatform(), log or ListLog())
    found.encrypt_data()
    return found


def fill(kv: RocksKv, streams: tuple[int, ...] = (2, 3)) -> None:
    kv.put(b"\x00meta", b"of the node")
    for stream in streams:
        store = BlockStore(kv, stream, memory=False)
        for number in range(1, 101):
            store.append(Batch.of([b"some.subject"], [b""], [BODY + b"%d" % number]), number, number)
        store.side_put(9, b"\0\0\0\1_INBOX.x", b"")
    kv.flush_now()


def messages(kv: RocksKv, stream: int) -> int:
    return BlockStore(kv, stream, memory=False).messages


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    kv = RocksKv(tmp_path / "data")
    (tmp_path / "data" / MARKER_NAME).write_text("nonce\n")
    fill(kv)
    kv.close()
    return tmp_path


def readable(directory: Path) -> list[str]:
    return [str(path) for path in directory.rglob("*") if path.is_file() and b"QZXJKVWPYF" in path.read_bytes()]


def test_a_store_is_made_with_a_key_and_opened_with_it(tmp_path: Path) -> None:
    log = ListLog()
    (tmp_path / "data").mkdir()
    kv = opened(tmp_path, log, encryption_key="k", cipher="aes").open_store(tmp_path / "data")
    fill(kv)
    kv.close()
    assert is_sealed(tmp_path) and not readable(tmp_path)
    assert "  Encryption:      AES-GCM" in str(log.lines)
    kv = opened(tmp_path, encryption_key="k").open_store(tmp_path / "data")
    assert messages(kv, 2) == 100
    kv.close()
    for options in ({"encryption_key": "other"}, {}):
        with pytest.raises(KeyringError, match="is encrypted, and"):
            opened(tmp_path, **options)


def test_keys_that_are_gone_are_not_made_anew(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    opened(tmp_path, encryption_key="k")
    for name in ("encryption.json", "encryption.copy.json"):
        (tmp_path / name).unlink()
    with pytest.raises(KeyringError, match="cannot be read"):
        opened(tmp_path, encryption_key="k")


def test_a_file_of_the_keys_that_is_gone_is_written_again_with_a_warning(tmp_path: Path) -> None:
    opened(tmp_path, encryption_key="k")
    (tmp_path / "encryption.copy.json").unlink()
    log = ListLog()
    opened(tmp_path, log, encryption_key="k")
    assert "it is written again" in str(log.events("warning")) and (tmp_path / "encryption.copy.json").exists()


def test_a_reload_changes_the_key_and_what_was_sealed_before_stays_readable(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    found = opened(tmp_path, encryption_key="k")
    kv = found.open_store(tmp_path / "data")
    fill(kv, (2,))
    table = max((tmp_path / "data").glob("*.sst")).read_bytes()
    found.change(JetStreamOptions(encryption_key="new", prev_encryption_key="k", cipher="aes"))
    fill(kv, (3,))
    assert messages(kv, 2) == messages(kv, 3) == 100
    kv.close()
    assert min((tmp_path / "data").glob("*.sst")).read_bytes() == table, "it is not written again"
    with pytest.raises(KeyringError):
        opened(tmp_path, encryption_key="k")
    kv = opened(tmp_path, encryption_key="new").open_store(tmp_path / "data")
    assert messages(kv, 2) == messages(kv, 3) == 100
    kv.close()


def test_a_start_with_the_previous_key_changes_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    opened(tmp_path, encryption_key="k")
    log = ListLog()
    opened(tmp_path, log, encryption_key="new", prev_encryption_key="k")
    assert "The key of the store was changed" in str(log.lines)
    opened(tmp_path, encryption_key="new")


def test_a_plain_store_is_encrypted_at_a_start_and_the_plain_one_deleted(plain: Path) -> None:
    log = ListLog()
    assert readable(plain) and is_plain(plain / "data", SystemPlatform().files)
    found = opened(plain, log, encryption_key="k")
    assert "The data store was not encrypted, and is now" in str(log.lines)
    assert not readable(plain) and not (plain / PLAIN).exists()
    assert (plain / "data" / MARKER_NAME).read_text() == "nonce\n" and (plain / SEALED_FILE).exists()
    kv, renewal = open_data(plain, renewable=True, now=1.0, open_store=found.open_store)
    assert renewal is None and messages(kv, 2) == messages(kv, 3) == 100 and kv.get(b"\x00meta") == b"of the node"
    assert list(BlockStore(kv, 2, memory=False).side_scan(9)) == [(b"\0\0\0\1_INBOX.x", b"")]
    kv.close()


STEPS = ("write", "sync", "rename", "remove_tree")


@pytest.mark.parametrize("cut", range(12))
def test_an_encryption_that_is_cut_off_is_begun_anew_or_finished(
    plain: Path, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut before each of its steps on the disk: the store is the plain one, whole, or the sealed one."""

    class Cut(Exception):
        pass

    done = 0

    def counted(real: Any) -> Any:
        def step(*args: Any) -> Any:
            nonlocal done
            done += 1
            if done > cut:
                raise Cut
            return real(*args)

        return step

    with monkeypatch.context() as patch:
        for name in ("write", "sync", "remove_tree"):
            patch.setattr(data_renewal, name, counted(getattr(data_renewal, name)))
        platform = SystemPlatform()

        class Files:
            def __getattr__(self, name: str) -> Any:
                real = getattr(SystemPlatform().files, name)
                return counted(real) if name == "rename" else real

        platform.files = Files()  # type: ignore[assignment]
        try:
            StoreKeys(plain, JetStreamOptions(encryption_key="k"), platform, ListLog()).encrypt_data()
        except Cut:
            assert done == cut + 1
    settle(plain)
    found = opened(plain, encryption_key="k")
    kv = found.open_store(plain / "data")
    assert messages(kv, 2) == messages(kv, 3) == 100 and kv.get(b"\x00meta") == b"of the node"
    kv.close()
    assert not readable(plain)


def hurt(plain: Path) -> bytes:
    """Takes a record of stream 3 away, and returns it."""
    kv = RocksKv(plain / "data")
    taken = kv.get(keys.info(3, 50))
    assert taken is not None
    kv.delete(keys.info(3, 50))
    kv.flush_now()
    kv.close()
    return taken


def test_a_store_that_is_not_sound_is_left_as_it_is(plain: Path) -> None:
    """It starts without the key, and with it once the cause is gone."""
    taken = hurt(plain)
    with pytest.raises(KvDamagedError, match="stream 3 cannot be read as a whole: start without a key"):
        opened(plain, encryption_key="k")
    assert is_plain(plain / "data") and not (plain / PLAIN).exists() and not (plain / NEXT).exists()
    assert is_sealed(plain) and not needs_key(plain)
    (plain / NEXT).mkdir()  # of one that was cut off
    log = ListLog()
    stay_plain(plain, log)
    assert "stays plain" in str(log.lines) and not (plain / NEXT).exists()
    kv = RocksKv(plain / "data")
    assert messages(kv, 2) == 100
    kv.put(keys.info(3, 50), taken)
    kv.flush_now()
    kv.close()
    kv = opened(plain, encryption_key="k").open_store(plain / "data")
    assert messages(kv, 3) == 100 and needs_key(plain)
    kv.close()


def test_a_disk_that_gets_full_leaves_the_plain_store(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(data_renewal, "write", full)
        with pytest.raises(OSError, match="No space"):
            opened(plain, encryption_key="k")
    assert is_plain(plain / "data") and not (plain / NEXT).exists() and not needs_key(plain)


def test_a_copy_that_has_no_room_is_not_begun(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(data_renewal, "free_bytes", lambda *_: 10)
        with pytest.raises(KvFullError, match="no room to encrypt the store: its data has 0"):
            opened(plain, encryption_key="k")
    assert not is_sealed(plain) and is_plain(plain / "data")
    log = ListLog()
    opened(plain, log, encryption_key="k")
    assert any(event.startswith("Encrypting 0.0") for event in log.events("info"))


def test_a_store_that_lost_its_mark_is_not_taken_for_a_plain_one(plain: Path) -> None:
    opened(plain, encryption_key="k")
    (plain / SEALED_FILE).unlink()
    log = ListLog()
    found = opened(plain, log, encryption_key="k")
    assert "data/ENCRYPTED was lost" in str(log.events("warning")) and (plain / SEALED_FILE).exists()
    assert not any("Encrypting" in event for event in log.events("info"))
    kv = found.open_store(plain / "data")
    assert messages(kv, 2) == messages(kv, 3) == 100
    kv.close()


def test_a_plain_copy_that_stays_is_told_of_at_each_start(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`remove_tree` goes as far as it can."""
    with monkeypatch.context() as patch:
        patch.setattr(data_renewal, "remove_tree", lambda *_: None)
        for _ in range(2):
            log = ListLog()
            opened(plain, log, encryption_key="k")
            assert "could not be deleted, and is plain" in str(log.events("warning"))
    log = ListLog()
    opened(plain, log, encryption_key="k")
    assert not log.events("warning") and not (plain / PLAIN).exists()


def test_what_was_put_aside_in_plain_is_told_of(plain: Path) -> None:
    log = ListLog()
    aside = plain / QUARANTINE / "data-17"
    aside.mkdir(parents=True)
    (aside / "CURRENT").write_text("MANIFEST-1\n")
    opened(plain, log, encryption_key="k")
    assert "put aside before the encryption" in str(log.lines) and "data-17" in str(log.lines)


def test_a_renewed_store_stays_encrypted(plain: Path) -> None:
    found = opened(plain, encryption_key="k")
    data_renewal.mark(plain, "a test")
    kv, renewal = open_data(plain, renewable=True, now=1_800_000_000.0, open_store=found.open_store)
    assert renewal is not None and renewal.kept == (2, 3) and messages(kv, 2) == 100
    kv.close()
    assert (plain / SEALED_FILE).exists() and not readable(plain)
    assert not encrypt(plain, SystemPlatform().files, SystemPlatform().open_store, found.open_store)


def test_plain_segments_that_go_or_stay_are_told_of_once(tmp_path: Path) -> None:
    class Segments:
        partly_plain = True
        forgotten = 0

        def forget_old(self) -> None:
            self.forgotten += 1

    for seconds, told in ((10.0, ["info"]), (70.0, ["warning", "info"])):
        time, journal, log = ManualTime(), Segments(), ListLog()
        found = opened(tmp_path, log, encryption_key="k")
        log.lines.clear()
        found.leave_plain(journal, time)  # type: ignore[arg-type]
        time.advance(seconds)
        assert journal.forgotten == 1
        journal.partly_plain = False
        time.advance(10.0)
        journal.partly_plain = True
        time.advance(100.0)
        assert [one[0] for one in log.lines] == told
        found.leave_plain(journal, time)  # type: ignore[arg-type]
        found.close()
        time.advance(100.0)
        assert len(log.lines) == len(told)


def test_a_start_without_a_key_leaves_a_data_store_that_is_under_its_first_name(plain: Path) -> None:
    Keyring.make(plain, "k", "aes", rng=SeededRng(1))
    (plain / "data").rename(plain / NEXT)
    assert not needs_key(plain)
    stay_plain(plain, ListLog())
    settle(plain)
    assert is_plain(plain / "data")

"""The data keys of a store: made, opened, wrapped anew, and told from damage."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from jetcluster.sealing.api import COPY_NAME, FILE_NAME, KeyringError, is_sealed
from jetcluster.sealing.ciphers import AES, CHACHAPOLY
from jetcluster.sealing.keyring import Keyring
from testkit.twins.time import SeededRng


def made(folder: Path, secret: str = "s3cret", cipher: str = CHACHAPOLY) -> Keyring:
    return Keyring.make(folder, secret, cipher, rng=SeededRng(1))


def test_a_store_is_opened_with_the_key_that_it_was_made_with(tmp_path: Path) -> None:
    assert not is_sealed(tmp_path)
    first = made(tmp_path)
    assert is_sealed(tmp_path)
    again = Keyring.unlock(tmp_path, "s3cret")
    assert (again.keys, again.names, again.current) == (first.keys, first.names, first.current)
    assert again.current.cipher == CHACHAPOLY
    text = (tmp_path / FILE_NAME).read_text() + (tmp_path / COPY_NAME).read_text()
    assert "s3cret" not in text and first.current.key.hex() not in text and first.names.hex() not in text


def test_a_wrong_key_or_none_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    made(tmp_path)
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(KeyringError, match="the configured key is not the one"):
        Keyring.unlock(tmp_path, "other")
    with pytest.raises(KeyringError, match="neither key nor prev_encryption_key"):
        Keyring.unlock(tmp_path, "other", "another")
    with pytest.raises(KeyringError, match="jetstream has no key"):
        Keyring.unlock(tmp_path, "", "s3cret")
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_a_rotation_wraps_the_old_keys_anew_and_adds_one(tmp_path: Path) -> None:
    old = made(tmp_path)
    ring = Keyring.unlock(tmp_path, "new", "s3cret")
    assert not ring.opens_with("new")
    assert ring.settle("new", AES) and ring.opens_with("new")
    assert ring.keys[1] == old.current and ring.names == old.names
    assert ring.current.number == 2 and ring.current.cipher == AES and ring.current.key != old.current.key
    assert not ring.settle("new", AES)
    again = Keyring.unlock(tmp_path, "new")
    assert again.keys == ring.keys and again.current == ring.current
    with pytest.raises(KeyringError):
        Keyring.unlock(tmp_path, "s3cret")


def test_another_cipher_is_a_rotation_under_the_same_key(tmp_path: Path) -> None:
    ring = made(tmp_path, cipher=AES)
    assert ring.settle("s3cret", CHACHAPOLY)
    assert [key.cipher for key in Keyring.unlock(tmp_path, "s3cret").keys.values()] == [AES, CHACHAPOLY]


@pytest.mark.parametrize("name", [FILE_NAME, COPY_NAME])
def test_either_file_may_be_damaged(tmp_path: Path, name: str) -> None:
    ring = made(tmp_path)
    text = (tmp_path / name).read_text()
    at = text.index('"wrapped"') + 20
    (tmp_path / name).write_text(text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :])
    assert Keyring.unlock(tmp_path, "s3cret").keys == ring.keys
    (tmp_path / name).unlink()
    assert Keyring.unlock(tmp_path, "s3cret").keys == ring.keys


def test_damage_of_both_files_is_not_told_as_a_wrong_key(tmp_path: Path) -> None:
    made(tmp_path)
    for name in (FILE_NAME, COPY_NAME):
        (tmp_path / name).write_text((tmp_path / name).read_text()[:-40])
    with pytest.raises(KeyringError, match="cannot be read"):
        Keyring.unlock(tmp_path, "s3cret")


def test_a_later_format_is_told(tmp_path: Path) -> None:
    made(tmp_path)
    content = json.loads((tmp_path / FILE_NAME).read_text())
    content["format"] = 2
    del content["check"]
    from jetcluster.checksum import crc32

    content["check"] = crc32(json.dumps(content, sort_keys=True).encode())
    (tmp_path / FILE_NAME).write_text(json.dumps(content))
    with pytest.raises(KeyringError, match="of format 2"):
        Keyring.unlock(tmp_path, "s3cret")


def test_a_rotation_that_cannot_be_written_leaves_the_old_key_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = made(tmp_path)

    def full(path: Path, text: str, files: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("jetcluster.sealing.keyring.write_durably", full)
    with pytest.raises(KeyringError, match=r"No space .* leave both, as key and prev_encryption_key"):
        ring.settle("new", CHACHAPOLY)
    assert ring.opens_with("s3cret") and list(ring.keys) == [1]


@pytest.mark.parametrize("failing", range(4))
def test_a_rotation_that_fails_after_a_replacement_is_taken_back(tmp_path: Path, failing: int) -> None:
    """It fails at one of the syncs of the files and of their folder."""
    synced = 0

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def fsync(self, descriptor: int) -> None:
            nonlocal synced
            synced += 1
            if synced == failing + 1:
                raise OSError(5, "Input/output error")
            os.fsync(descriptor)

    made(tmp_path)
    before = [(tmp_path / name).read_bytes() for name in (FILE_NAME, COPY_NAME)]
    ring = Keyring.unlock(tmp_path, "s3cret", files=Failing())  # type: ignore[arg-type]
    with pytest.raises(KeyringError, match="Input/output error"):
        ring.settle("new", CHACHAPOLY)
    assert [(tmp_path / name).read_bytes() for name in (FILE_NAME, COPY_NAME)] == before
    assert ring.opens_with("s3cret") and Keyring.unlock(tmp_path, "s3cret").keys == ring.keys
    assert ring.settle("new", CHACHAPOLY) and Keyring.unlock(tmp_path, "new").keys == ring.keys


@pytest.mark.parametrize("name", [FILE_NAME, COPY_NAME])
@pytest.mark.parametrize("wrong", [b"{", b"", None])
def test_a_bad_file_is_written_again(tmp_path: Path, name: str, wrong: bytes | None) -> None:
    ring = made(tmp_path)
    assert ring.mend() == ""
    before = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink() if wrong is None else (tmp_path / name).write_bytes(wrong)
    assert Keyring.unlock(tmp_path, "s3cret").mend() == name
    assert (tmp_path / name).read_bytes() == before and ring.mend() == ""


def test_a_copy_of_a_rotation_that_did_not_reach_the_file_is_replaced(tmp_path: Path) -> None:
    made(tmp_path)
    before = (tmp_path / FILE_NAME).read_bytes()
    Keyring.unlock(tmp_path, "s3cret").settle("new", AES)
    (tmp_path / FILE_NAME).write_bytes(before)
    assert Keyring.unlock(tmp_path, "s3cret").mend() == COPY_NAME
    assert (tmp_path / COPY_NAME).read_bytes() == before

"""`StoreKeys`: the keys of an encrypted store, opened at a start and changed by a reload."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jetcluster.config.options import JetStreamOptions
from jetcluster.files import exists, names_in
from jetcluster.logs import Logger
from jetcluster.node.data_renewal import PLAIN, QUARANTINE, encrypt, is_plain, mark_again, room_to_encrypt
from jetcluster.sealing.api import is_sealed
from jetcluster.sealing.keyring import Keyring
from jetcluster.sealing.names import HiddenNames
from jetcluster.sealing.segments import Segments
from jetcluster.sealing.values import Values
from jetcluster.store.seal import StoreSeal
from jetcluster.stream.ports import NAMED_TABLES

if TYPE_CHECKING:
    from jetcluster.clock import TimerHandle, Timers
    from jetcluster.node.platform import Platform
    from jetcluster.raft.journal.journal import Journal

SHOWN: Final = {"aes": "AES-GCM", "chachapoly": "ChaCha20-Poly1305"}
"""Names of the ciphers in nats-server's log."""

LOOK_SECONDS: Final = 2.0
PLAIN_LOOKS: Final = 30
"""Looks at the journal after a start until a warning tells of its plain segments: a minute."""


class StoreKeys:
    """The keys of the store in `directory`, with what they seal. Raises KeyringError, also where the store is encrypted
    and `options` have no key, KvFullError where a plain store has no room to become an encrypted one, and OSError; on
    a wrong key nothing was changed."""

    def __init__(self, directory: Path, options: JetStreamOptions, platform: Platform, log: Logger) -> None:
        files, rng = platform.files, platform.rng
        if is_sealed(directory, files):
            secret, previous = options.encryption_key, options.prev_encryption_key
            self._keyring = Keyring.unlock(directory, secret, previous, files, rng)
        else:
            room_to_encrypt(directory, files)
            self._keyring = Keyring.make(directory, options.encryption_key, options.cipher, files, rng)
        if self._keyring.settle(options.encryption_key, options.cipher):
            log.info("The key of the store was changed")
        elif wrong := self._keyring.mend():
            log.warning(
                "a file of the store's keys was damaged, missing or of another key: it is written again", file=wrong
            )
        self.segments = Segments(self._keyring, rng)
        """The journal's."""
        self._seal = StoreSeal(Values(self._keyring, rng), HiddenNames(self._keyring.names), NAMED_TABLES)
        self._directory = directory
        self._platform = platform
        self._log = log
        self._timer: TimerHandle | None = None
        self.open_store = partial(platform.open_store, seal=self._seal)
        log.info(f"  Encryption:      {SHOWN[options.cipher]}")

    def encrypt_data(self) -> None:
        """Seals a data store of before the encryption. Raises KvError and OSError."""
        directory, files, open_plain = self._directory, self._platform.files, self._platform.open_store
        if mark_again(directory, files, open_plain, self._seal):
            self._log.warning("data/ENCRYPTED was lost, and is there again: the data store is encrypted")
        if size := room_to_encrypt(directory, files):
            self._log.info(f"Encrypting {size / 1e9:.3f} GB of the data store")
        if encrypt(directory, files, open_plain, self.open_store):
            self._log.info("The data store was not encrypted, and is now")
        if exists(directory / PLAIN, files):
            text = "the copy of before the encryption could not be deleted, and is plain: delete it"
            self._log.warning(text, folder=str(directory / PLAIN))
        aside = directory / QUARANTINE
        old = [name for name in names_in(aside, files) if is_plain(aside / name, files)]
        if old:
            self._log.warning("put aside before the encryption, and not encrypted: delete it", folders=", ".join(old))

    def leave_plain(self, journal: Journal, timers: Timers) -> None:
        """Has the journal's segments of before the encryption go, and says when they are gone, or that they stay."""
        if journal.partly_plain:
            journal.forget_old()
            self._look_later(journal, timers, 1)

    def _look_later(self, journal: Journal, timers: Timers, looks: int) -> None:
        self._timer = timers.call_later(LOOK_SECONDS, self._look, journal, timers, looks)

    def _look(self, journal: Journal, timers: Timers, looks: int) -> None:
        if not journal.partly_plain:
            self._log.info("The journal was not encrypted, and is now: its plain segments are deleted")
            return
        if looks == PLAIN_LOOKS:
            self._log.warning("the journal still has segments of before the encryption, which are plain")
        self._look_later(journal, timers, looks + 1)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def change(self, options: JetStreamOptions) -> None:
        """Takes over the key and the cipher of a reload. Raises KeyringError and OSError: the old ones then stay."""
        self._keyring.settle(options.encryption_key, options.cipher)

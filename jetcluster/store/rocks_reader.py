"""`RocksReader`: the data store of a stopped server, read without changing it.

Writes stay in memory, over what is stored: so a state machine can apply further commands to show its state after them.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from jetcluster.store.rocks_kv import RocksKv

_OWN_FILES: Final = ("LOCK", "LOG")
_CONFIG: Final = "rocksdict-config.json"


class RocksReader(RocksKv):
    """A reader of directory `path`, as far as its files can be used. Raises KvError."""

    def __init__(self, path: Path) -> None:
        # rocksdict rewrites its configuration when it opens, so it gets a folder of links instead.
        self._links = tempfile.TemporaryDirectory(prefix="jetcluster-read-")
        try:
            self._link(path, Path(self._links.name))
            super().__init__(Path(self._links.name), salvage=True)
        except BaseException:
            self._links.cleanup()
            raise

    @staticmethod
    def _link(path: Path, links: Path) -> None:
        for file in path.iterdir():
            if file.name == _CONFIG:
                shutil.copyfile(file, links / file.name)
            elif file.is_file() and not file.name.startswith(_OWN_FILES):
                (links / file.name).symlink_to(file.resolve())

    def _connect(self, options: Any) -> Any:
        options.create_if_missing(False)
        return self._rocks.Rdict(str(self._path), options, access_type=self._rocks.AccessType.read_only())

    def commit(self) -> int:
        """Write nothing: all writes stay in this process."""
        return self.commits

    def close(self) -> None:
        super().close()
        self._links.cleanup()

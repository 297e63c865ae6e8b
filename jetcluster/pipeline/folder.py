"""A job's small files beside its Parquet: on this machine, or on any file system of Hadoop (hdfs, s3a)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from jetcluster.errors import JetclusterError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TakenError(JetclusterError):
    """A file that may be written only once exists already."""


class Folder(Protocol):
    """A folder; paths in it are relative."""

    url: str
    """The path in the form that Spark accepts."""

    def list(self, path: str = "") -> dict[str, int]:
        """Returns name -> bytes of the files in a folder, without hidden ones; {} for a missing folder."""

    def read(self, path: str) -> str:
        """Reads a file. Raises OSError."""

    def create(self, path: str, text: str) -> None:
        """Creates a file, which appears complete or not at all. Raises TakenError, OSError."""

    def settle(self, path: str) -> None:
        """Makes a folder that Spark wrote durable: it survives a power failure once this returns. Raises OSError."""

    def remove(self, path: str) -> None:
        """Removes a file, or a folder with its contents, if it exists."""


class LocalFolder:
    """A folder on this machine."""

    def __init__(self, top: Path) -> None:
        self._top = top.absolute()
        self.url = str(self._top)

    def list(self, path: str = "") -> dict[str, int]:
        folder = self._top / path
        if not folder.is_dir():
            return {}
        return {one.name: one.stat().st_size for one in folder.iterdir() if one.is_file() and _is_shown(one.name)}

    def read(self, path: str) -> str:
        return (self._top / path).read_text(encoding="utf-8")

    def create(self, path: str, text: str) -> None:
        target = self._top / path
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            target.hardlink_to(temporary)  # fails if the target exists, unlike a rename
        except FileExistsError:
            raise TakenError(f"{target} exists already: does another job write to {self._top}?") from None
        finally:
            temporary.unlink()
        self._settle_up(target.parent)

    def settle(self, path: str) -> None:
        target = self._top / path
        for one in target.rglob("*"):
            _sync(one)
        self._settle_up(target)

    def _settle_up(self, folder: Path) -> None:
        """Syncs a folder and its parents up to the top's: if they are new, their names must be durable, too."""
        while folder != self._top:
            _sync(folder)
            folder = folder.parent
        _sync(self._top)
        _sync(self._top.parent)

    def remove(self, path: str) -> None:
        target = self._top / path
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HadoopFolder:
    """A folder reached through the session's JVM. `create` is as atomic as the file system's rename."""

    def __init__(self, session: SparkSession, url: str) -> None:
        self.url = url.rstrip("/")
        context: Any = session.sparkContext
        self._jvm: Any = context._jvm
        self._system: Any = self._path("").getFileSystem(context._jsc.hadoopConfiguration())

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.url}/{path}" if path else self.url)

    def list(self, path: str = "") -> dict[str, int]:
        folder = self._path(path)
        if not self._system.exists(folder):
            return {}
        found = ((one.getPath().getName(), one.getLen()) for one in self._system.listStatus(folder) if one.isFile())
        return {name: int(size) for name, size in found if _is_shown(name)}

    def read(self, path: str) -> str:
        target = self._path(path)
        try:
            size = self._system.getFileStatus(target).getLen()
            stream = self._system.open(target)
            try:
                return bytes(stream.readNBytes(size)).decode()
            finally:
                stream.close()
        except Exception as error:  # noqa: BLE001 - py4j wraps all that Java throws
            raise OSError(f"{self.url}/{path}: {error}") from None

    def create(self, path: str, text: str) -> None:
        target = self._path(path)
        head, _, name = path.rpartition("/")
        temporary = self._path(f"{head}/.{name}.{os.getpid()}".lstrip("/"))
        stream = self._system.create(temporary, True)
        stream.write(bytearray(text.encode()))
        stream.close()
        if self._system.exists(target) or not self._system.rename(temporary, target):
            self._system.delete(temporary, False)
            raise TakenError(f"{self.url}/{path} exists already: does another job write there?")

    def settle(self, path: str) -> None:
        """Does nothing: the file system decides how durable a closed file is."""

    def remove(self, path: str) -> None:
        self._system.delete(self._path(path), True)


def is_local(url: str) -> bool:
    """True for a path or a `file:` URL."""
    return urlsplit(url).scheme in ("", "file")


def open_folder(session: SparkSession | None, url: str) -> Folder:
    """Opens the folder at a path or URL. Raises OSError for a remote URL without a session."""
    if is_local(url):
        return LocalFolder(Path(urlsplit(url).path if urlsplit(url).scheme else url))
    if session is None:
        raise OSError(f"{url}: only Spark reaches it")
    return HadoopFolder(session, url)


def _is_shown(name: str) -> bool:
    return not name.startswith((".", "_"))

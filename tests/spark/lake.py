"""Delta Lake and Iceberg tables read without the libraries that wrote them: their logs by the formats' own rules, and
the data files that these name by DuckDB and pyarrow."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import boto3
import duckdb
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog


class Lake:
    """A folder for one Delta table and one Iceberg table, each with its dead letters."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.delta = folder / "delta"
        self.url = f"file://{folder}"
        self.catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"{self.url}/iceberg"}

    @property
    def words(self) -> list[str]:
        """The arguments that name both tables."""
        found = ["--delta", str(self.delta), "--iceberg", "db.t"]
        for key, value in self.catalog.items():
            found += ["--catalog", f"{key}={value}"]
        return found

    def rows(self, *columns: str, dead: bool = False) -> list[tuple[Any, ...]]:
        """The rows of the Delta table, sorted; the Iceberg table must have the same. Read by DuckDB and by pyarrow."""
        delta, iceberg = self.delta_files(dead=dead), self.iceberg_files(dead=dead)
        found = [with_duckdb(files, columns) for files in (delta, iceberg)]
        found += [with_pyarrow(files, columns) for files in (delta, iceberg)]
        assert found[0] == found[1] == found[2] == found[3]
        return found[0]

    def by_libraries(self, *columns: str) -> list[tuple[Any, ...]]:
        """The rows of the Delta table by deltalake and pyarrow, sorted; those of the Iceberg table by pyiceberg must be
        the same."""
        delta = DeltaTable(str(self.delta)).to_pyarrow_table(columns=list(columns))
        iceberg = load_catalog("jetcluster", **self.catalog).load_table("db.t").scan(selected_fields=columns).to_arrow()
        found = [_sorted(table.select(columns)) for table in (delta, iceberg)]
        assert found[0] == found[1]
        return found[0]

    def delta_files(self, *, dead: bool = False) -> list[str]:
        """The files that the log has added and not removed."""
        top, files = Path(f"{self.delta}_dead_letters") if dead else self.delta, {}
        for action in self.delta_log(dead=dead):
            if "add" in action:
                files[action["add"]["path"]] = f"{top}/{unquote(action['add']['path'])}"
            elif "remove" in action:
                files.pop(action["remove"]["path"], None)
        return sorted(files.values())

    def delta_log(self, *, dead: bool = False) -> list[dict[str, Any]]:
        """All actions of the log, in order."""
        top = Path(f"{self.delta}_dead_letters") if dead else self.delta
        commits = sorted((top / "_delta_log").glob("*.json"))
        return [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]

    def iceberg_metadata_location(self, *, dead: bool = False) -> str:
        """The file that the catalog names."""
        name = "t_dead_letters" if dead else "t"
        with sqlite3.connect(f"file:{self.folder}/catalog.db?mode=ro", uri=True) as catalog:
            found = catalog.execute("select metadata_location from iceberg_tables where table_name = ?", (name,))
            (where,) = found.fetchone()
        catalog.close()
        return str(where)

    def iceberg_metadata(self, *, dead: bool = False) -> dict[str, Any]:
        metadata: dict[str, Any] = json.loads(self._path(self.iceberg_metadata_location(dead=dead)).read_text())
        return metadata

    def iceberg_files(self, *, dead: bool = False) -> list[str]:
        """The files of the current snapshot."""
        metadata = self.iceberg_metadata(dead=dead)
        current = [
            one for one in metadata.get("snapshots", []) if one["snapshot-id"] == metadata["current-snapshot-id"]
        ]
        found = []
        for snapshot in current:
            for manifest in self._avro(snapshot["manifest-list"]):
                assert manifest["content"] == 0, "deletes, which this reader does not apply"
                for entry in self._avro(manifest["manifest_path"]):
                    if entry["status"] != 2:
                        found.append(str(self._path(entry["data_file"]["file_path"])))
        return sorted(found)

    def _path(self, url: str) -> Path:
        return self.folder / url.removeprefix(f"{self.url}/")

    def _avro(self, url: str) -> list[dict[str, Any]]:
        with self._path(url).open("rb") as file:
            return list(fastavro.reader(file))


class S3Lake(Lake):
    """The same in a bucket, whose objects are copied to the folder for those who read."""

    def __init__(self, folder: Path, bucket: str, endpoint: str) -> None:
        super().__init__(folder)
        self.url = f"s3://{bucket}/lake"
        self.catalog |= {"warehouse": f"{self.url}/iceberg"}
        self._bucket = boto3.resource("s3", endpoint_url=endpoint, region_name="us-east-1").Bucket(bucket)

    @property
    def words(self) -> list[str]:
        words = super().words
        words[words.index("--delta") + 1] = f"{self.url}/delta"
        return words

    def clear(self) -> None:
        self._bucket.objects.all().delete()

    def rows(self, *columns: str, dead: bool = False) -> list[tuple[Any, ...]]:
        for one in self._bucket.objects.filter(Prefix="lake/"):
            if one.key.endswith("/"):  # pyarrow's mark that there is a folder
                continue
            place = self.folder / one.key.removeprefix("lake/")
            place.parent.mkdir(parents=True, exist_ok=True)
            self._bucket.download_file(one.key, str(place))
        return super().rows(*columns, dead=dead)


def with_duckdb(files: list[str], columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    if not files:
        return []
    names = ", ".join(f'"{name}"' for name in columns)
    with duckdb.connect() as engine:
        found = engine.sql(f"select {names} from read_parquet(?, union_by_name=true)", params=[files])
        return _sorted(found.to_arrow_table())


def with_pyarrow(files: list[str], columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    tables = [pq.ParquetFile(file).read() for file in files]
    return _sorted(pa.concat_tables(tables, promote_options="permissive").select(columns)) if tables else []


def _sorted(table: Any) -> list[tuple[Any, ...]]:
    rows = [tuple(row.values()) for row in table.to_pylist()]
    return sorted(
        rows, key=lambda row: tuple((one is None, repr(one) if isinstance(one, dict) else one) for one in row)
    )

"""DuckDB reads the tables of `lakehouse` as tables, by its own extensions for Delta Lake and Iceberg, and without a
network."""

from __future__ import annotations

import json
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("duckdb")
pytest.importorskip("fastavro")

from jetcluster.client.connection import Connection
from tests.spark.jobs import run
from tests.spark.lake import Lake
from tests.spark.streams import create, fill
from tests.spark.test_lakehouse_rows import order, orders

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(600),  # the first one starts Spark, a cluster, and pip
]

VERSION = "1.5.5"
"""The newest DuckDB of which an index has the extensions as packages. They fit this one alone, so they have an
environment of their own."""
EXTENSIONS = ("avro", "delta", "iceberg")
READ = """
import json, sys
from importlib import import_module
from pathlib import Path
import duckdb

engine = duckdb.connect()
for name in sys.argv[1].split(","):
    (file,) = Path(import_module(f"duckdb_extension_{name}").__file__).parent.rglob(f"{name}.duckdb_extension")
    engine.execute(f"load '{file}'")
print(json.dumps([engine.execute(query).fetchall() for query in sys.argv[2:]], default=bytes.hex))
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with DuckDB and its extensions."""
    top = tmp_path_factory.mktemp("duckdb") / "venv"
    venv.create(top, with_pip=True)
    packages = [f"duckdb=={VERSION}", *(f"duckdb-extension-{name}=={VERSION}" for name in EXTENSIONS)]
    command: list[Any] = [top / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    if done.returncode:
        pytest.skip(f"DuckDB's extensions cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return top / "bin/python"


def answers(engine: Path, *queries: str) -> Any:
    command: list[Any] = [engine, "-c", READ, ",".join(EXTENSIONS), *queries]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def of_both(engine: Path, lake: Lake, columns: str, *, dead: bool = False) -> Any:
    """The rows of the Delta table by their first column; the Iceberg table has to have the same."""
    delta = f"{lake.delta}_dead_letters" if dead else lake.delta
    sources = (f"delta_scan('{delta}')", f"iceberg_scan('{lake.iceberg_metadata_location(dead=dead)}')")
    by_delta, by_iceberg = answers(engine, *(f"select {columns} from {source} order by 1" for source in sources))
    assert by_delta == by_iceberg
    return by_delta


def test_rows_of_a_stream_whose_columns_grow(
    engine: Path, spark: Any, connection: Connection, servers: str, tmp_path: Path
) -> None:
    create(connection, "LAKEDUCK")
    fill(connection, orders("LAKEDUCK", 30))
    lake = Lake(tmp_path / "lake")
    words = ["--stream", "LAKEDUCK", *lake.words, "--format", "json", "--max-per-batch", "20"]
    run(spark, servers, "lakehouse", *words)
    fill(
        connection, [("lakeduck.1", order(31, tags=["a"], buyer={"name": "b1", "city": "Bern"})), ("lakeduck.1", b"no")]
    )
    run(spark, servers, "lakehouse", *words)
    found = of_both(engine, lake, "_seq, id, price, tags, buyer.name, buyer.city")
    last = [31, 31, 31 / 4, ["a"], "b1", "Bern"]
    assert found == [*([n, n, n / 4, None, f"b{n % 5}", None] for n in range(1, 31)), last]
    assert of_both(engine, lake, "seq, data", dead=True) == [[32, b"no".hex()]]


def test_keys_of_a_bucket_that_are_replaced_and_deleted(
    engine: Path, spark: Any, connection: Connection, servers: str, tmp_path: Path
) -> None:
    create(connection, "KV_DUCK", subjects=["$KV.DUCK.>"], max_msgs_per_subject=1)
    fill(connection, [(f"$KV.DUCK.k{n:02}", b"old %d" % n) for n in range(20)])
    lake = Lake(tmp_path / "lake")
    words = ["--bucket", "DUCK", *lake.words]
    run(spark, servers, "lakehouse", *words)
    fill(connection, [("$KV.DUCK.k03", b"", b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"), ("$KV.DUCK.k05", b"new")])
    run(spark, servers, "lakehouse", *words)
    wanted = [[f"k{n:02}", (b"old %d" % n).hex(), n + 1] for n in range(20) if n != 3]
    wanted[4] = ["k05", b"new".hex(), 22]
    assert of_both(engine, lake, "key, value, revision") == wanted

"""`lookup`: rows of a DataFrame with the values of a bucket under their keys, in batch and streaming queries."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from jetcluster.arrow.lookup_cache import LookupCache
from jetcluster.arrow.options import OptionError, SourceOptions
from jetcluster.spark.options import source_options
from jetcluster.spark.sentence import SentenceFirst

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from jetcluster.arrow.lookup import BucketLookup

STEP_ROWS: Final = 2048
"""Rows whose values are in memory together."""
MAX_LOOKUPS: Final = 16
"""Look-ups with a cache and a connection per worker process; a further one takes the place of the oldest."""

_lookups: dict[str, BucketLookup] = {}
"""By what they look up. Spark uses a worker process for many tasks, so the cache outlasts a micro-batch."""


def lookup(
    frame: DataFrame,
    key: str,
    bucket: str,
    options: Mapping[str, str],
    *,
    prefix: str = "",
    max_age: float = 60.0,
    max_keys: int = 100_000,
    max_bytes: int = 64 << 20,
) -> DataFrame:
    """Returns `frame` with columns `value` (binary), `revision` (bigint), `operation` (PUT, DEL or PURGE) and `created`
    (timestamp), named with `prefix` in front: of the newest message that the bucket has under the key in column `key`
    (string). All four are null for a null key and for a key that is not there; `value` also for one that is deleted.

    `options` are those of the source about servers, credentials and reading (docs/spark-source.md). A value is never
    older than `max_age` seconds; 0 asks for each 2048 rows. `max_keys` and `max_bytes` limit the cache of a worker
    process. Raises OptionError, SchemaError."""
    from pyspark.sql import types

    names = [field.name for field in frame.schema.fields]
    if names.count(key) != 1 or not isinstance(frame.schema[key].dataType, types.StringType):
        raise OptionError(f"the key is a column of type string, and {key!r} is none of this frame")
    if max_age < 0 or max_keys < 1 or max_bytes < 1:
        raise OptionError("max_age is not negative, max_keys and max_bytes are at least 1")
    added = {
        "value": types.BinaryType(), "revision": types.LongType(), "operation": types.StringType(),
        "created": types.TimestampType(),
    }  # fmt: skip
    for name in added:
        if prefix + name in names:
            raise OptionError(f"the frame has a column {prefix + name} already: give another prefix")
    source = source_options({**options, "stream": f"KV_{bucket}"})
    make = _maker(source, bucket, max_age, max_keys, max_bytes)
    make().close()  # what is wrong is said here, and not in a task
    schema = types.StructType([
        *frame.schema.fields, *(types.StructField(prefix + name, kind) for name, kind in added.items()),
    ])  # fmt: skip
    at, known = names.index(key), repr((source, bucket, max_age, max_keys, max_bytes))

    def bucket_lookup(batches: Iterator[Any]) -> Iterator[Any]:
        with SentenceFirst():
            found = kept(known, make)
            for batch in batches:
                for row in range(0, batch.num_rows, STEP_ROWS):
                    yield with_entries(batch.slice(row, STEP_ROWS), at, prefix, found)

    return frame.mapInArrow(bucket_lookup, schema)


def _maker(source: SourceOptions, bucket: str, max_age: float, max_keys: int, max_bytes: int) -> Callable[[], Any]:
    def make() -> BucketLookup:
        from jetcluster.arrow.lookup import BucketLookup

        return BucketLookup(source, bucket, LookupCache(max_age, max_keys, max_bytes), os.getpid())

    return make


def kept(known: str, make: Callable[[], BucketLookup]) -> BucketLookup:
    """Returns this process's look-up of that name, made anew if there is none."""
    found = _lookups.get(known)
    if found is None:
        while len(_lookups) >= MAX_LOOKUPS:
            _lookups.pop(next(iter(_lookups))).close()
        found = _lookups[known] = make()
    return found


def with_entries(batch: Any, at: int, prefix: str, found: BucketLookup) -> Any:
    """Returns the record batch with four columns more. `at`: the key's column. Raises what `BucketLookup.find` does."""
    import pyarrow as pa

    keys = batch.column(at).to_pylist()
    entries = found.find(keys)
    rows = [entries[key] for key in keys]
    micros = [None if row.created is None else row.created // 1000 for row in rows]
    added = {
        "value": pa.array([row.value for row in rows], pa.binary()),
        "revision": pa.array([row.revision for row in rows], pa.int64()),
        "operation": pa.array([row.operation for row in rows], pa.string()),
        "created": pa.array(micros, pa.timestamp("us", "UTC")),
    }
    schema = pa.schema([*batch.schema, *(pa.field(prefix + name, column.type) for name, column in added.items())])
    return pa.RecordBatch.from_arrays([*batch.columns, *added.values()], schema=schema)

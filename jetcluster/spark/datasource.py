"""The data source `format("jetstream")`, set up by `register(spark)` or found by Spark as `pyspark_jetstream`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter

from jetcluster.arrow.options import SourceOptions
from jetcluster.arrow.resolve import Extent, batch_extents
from jetcluster.spark.columns import columns_of, ddl
from jetcluster.spark.options import source_options
from jetcluster.spark.sentence import SentenceFirst

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamWriter
    from pyspark.sql.types import StructType


class JetStreamSource(DataSource):
    """Created by Spark for each `load()` or `save()`, asked for its schema, and pickled for the process that plans."""

    _extents: list[Extent] | None = None
    """The ranges that a batch query reads, or the start of a streaming query, once decided."""

    @classmethod
    def name(cls) -> str:
        return "jetstream"

    @functools.cached_property
    def _source(self) -> SourceOptions:
        """Raises OptionError, SchemaError."""
        return source_options(self.options)

    @SentenceFirst()
    def schema(self) -> str:
        """Asks the leaders and fixes the ranges to read. Raises what `batch_extents` raises."""
        self._extents = batch_extents(self._source)
        return ddl(self._source.names, self._source.types)

    @SentenceFirst()
    def reader(self, schema: StructType) -> DataSourceReader:
        from jetcluster.spark.source import BatchReader, PushdownReader

        kind = PushdownReader if self._source.pushdown else BatchReader
        return kind(self._source, columns_of(schema, self._source.types), self._extents)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from jetcluster.spark.source import StreamReader

        return StreamReader(self._source, columns_of(schema, self._source.types), self._extents)

    @SentenceFirst()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from jetcluster.spark.sink import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    @SentenceFirst()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from jetcluster.spark.sink import StreamWriter

        return StreamWriter(self.options, schema, overwrite)


def register(spark: SparkSession) -> None:
    """Registers `format("jetstream")` in the session."""
    source: Any = JetStreamSource
    spark.dataSource.register(source)

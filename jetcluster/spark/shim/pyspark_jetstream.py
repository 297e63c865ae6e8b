"""Found by Spark, by its name, when a session first uses a Python data source: it makes `format("jetstream")` known.

It is installed as a top-level module. An error here would break every Python data source of the session, also those
of others, so without what it needs there is just no `DefaultSource`.
"""

try:
    from jetcluster.spark.datasource import JetStreamSource as DefaultSource
except Exception:  # noqa: BLE001, S110 - register(spark) raises it for those who want this source
    pass
else:
    __all__ = ["DefaultSource"]

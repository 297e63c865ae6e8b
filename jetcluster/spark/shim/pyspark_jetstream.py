"""Makes `format("jetstream")` known to Spark, which imports it by name when a session first uses a Python data source.

It is installed as a top-level module. An error here would break every Python data source of the session, so without its
requirements it has no `DefaultSource`.
"""

try:
    from jetcluster.spark.datasource import JetStreamSource as DefaultSource
except Exception:  # noqa: BLE001, S110 - register(spark) raises it for users of this source
    pass
else:
    __all__ = ["DefaultSource"]

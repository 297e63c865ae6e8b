"""Spark on streams: the source and sink `format("jetstream")`, and the blocking NATS client under them.

Nothing is imported here: executors import only the module they need, and `connection` works without pyspark.
"""

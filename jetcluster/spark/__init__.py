"""Spark on streams: the source and sink `format("jetstream")`, clients of the server through `jetcluster.client`.

Nothing is imported here: executors import only the module they need, and `publish` works without pyspark.
"""

"""Archives of streams: Parquet files in a folder or an object store, with manifests that say which of them count.

In it: `manifest` is the form of what is stored and the order of batches; `storage` opens a folder or, by
`object_storage`, S3, Google Cloud Storage or Azure; `bounds` says which files and row groups a query can leave out;
`parquet` writes and reads files; `places` is a checksum. Not in it: Spark, and the servers. The jobs of
`jetcluster.pipeline` write archives, the source of `jetcluster.spark` reads them beside the live stream.
"""

"""Delta Lake and Iceberg tables that follow a stream: their columns, rows, files and commits.

Tasks write Parquet files into the tables' folders; the driver adds them in one commit, which also says up to which
sequence of the stream the table goes. The commits are made by deltalake and pyiceberg.
"""

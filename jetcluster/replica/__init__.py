"""One replica of a stream: its group, its machines and its reads.

Here: `stream_replica` (the whole), applying, proposals, leadership, Direct Get and confirmed reads, catch-up, drift and
repair, the hosts of consumers, mirrors and objects, and the node's context that they share. Not here: which streams a
node has (`cluster`). Promise: an ack is sent when its command is committed and applied; a replica that differs from a
majority is rebuilt; reads tell nothing older than what the connection has seen.
"""

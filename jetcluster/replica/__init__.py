"""One replica of a stream: its group, its machines and its reads.

Here: `stream_replica` (the whole), applying, proposals, leadership, Direct Get and confirmed reads, catch-up, drift and
repair, the hosts of consumers, mirrors and objects, and the node's services that they share. Not here: which streams a
node has (`cluster`). Promise: an ack is sent when its command is committed and applied; a replica that differs from a
majority is rebuilt; a read returns nothing older than what its connection has seen.

Bottom to top: `replica_state`, what is known of a replica; its parts, each of which takes that state and the few calls
it makes; `applying`, which passes each applied command to them; `stream_replica`, all of them together.
"""

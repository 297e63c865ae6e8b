"""The Raft engine, its journal and the groups of one node.

Here: terms, elections, replication, membership, snapshots' bookkeeping, the journal all groups share. Not here: what a
command means. Promise: an index is committed when a majority has it fsynced; what is in persistent state is written
before a message that tells of it leaves (Ongaro's thesis, sections 3 and 4).

Bottom to top: `journal`, the logs of all groups; `node_state`, what the groups of a node share; `core`, one replica of
one group; `admission` and `node`, all groups; `rescue`, for a group whose majority is lost.
"""

"""The Raft engine, its journal and the groups of one node.

Here: terms, elections, replication, membership, snapshots' bookkeeping, the journal that all groups share. Not here:
the meaning of a command. Promise: an index is committed when a majority has it fsynced; persistent state is on disk
before a message that depends on it leaves (Raft dissertation, sections 3 and 4).

Bottom to top: `journal`, the logs of all groups; `node_state`, what the groups of a node share; `core`, one replica of
one group; `admission` and `node`, all groups; `rescue`, for a group whose majority is lost.
"""

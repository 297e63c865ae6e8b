"""The Raft engine, its journal and the groups of one node.

Here: terms, elections, replication, membership, snapshots' bookkeeping, the journal all groups share. Not here: what a
command means. Promise: an index is committed when a majority has it fsynced; what is in persistent state is written
before a message that tells of it leaves (Ongaro's thesis, sections 3 and 4).

Bottom to top: `node_state` and `group_state`, what is known; the parts of a group (`read_index`, `changes`,
`election`, `replicator`, `snapshots`, `receiver`), each of which takes the state and those that it uses of
the parts before it; `group`, all of them together; `node`, all groups.
"""

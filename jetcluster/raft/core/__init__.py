"""One replica of one group: pysyncobj's core, made safe, and the parts around it.

Here: `engine`, the only file that knows pysyncobj; `group_state`, what is known; the parts of a group (`read_index`,
`changes`, `election`, `replicator`, `snapshots`, `receiver`), each of which takes the state and those that it uses of
the parts before it; `group`, all of them together. Not here: what the groups of a node share (`raft.node`) and where
entries lie (`raft.journal`). Promise: an index is committed when a majority has it as durably as the group asks for,
and no message leaves before what it says is on disk.
"""

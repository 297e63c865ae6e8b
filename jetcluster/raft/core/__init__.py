"""One replica of one group: pysyncobj's core, made safe, and the parts around it.

Here: `engine`, the only file that knows pysyncobj; `group_state`, the state; the parts of a group (`read_index`,
`changes`, `election`, `replicator`, `snapshots`, `receiver`), each built from the state and the earlier parts that it
uses; `group`, all of them together. Not here: what the groups of a node share (`raft.node`) and the entries
(`raft.journal`). Promise: an index is committed when a majority has it as durably as the group requires, and no
message leaves before its content is true on disk.
"""

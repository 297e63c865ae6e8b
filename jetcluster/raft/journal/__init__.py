"""The journal that all groups of a node share: segments of records, one log for each group.

Here: `log`, a group's log in memory; `records`, the format on disk; `disk` and `writer`, the blocking work; `recovery`,
the reading at start; `inspection`, of a stopped node; `retention`, the deletion of segments; `journal`, all of them
together. Not here: what an entry means, and when it counts (`raft.core`). Promise: durable records outlive a power
failure, and a durable record that is lost is noticed at the next start.
"""

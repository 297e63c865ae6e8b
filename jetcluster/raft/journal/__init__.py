"""The journal that all groups of a node share: segments of records, one log for each group.

Here: `log`, a group's log in memory; `records`, the format on disk; `disk` and `writer`, the blocking work; `recovery`
and `inspection`, what is read at start and from outside; `retention`, what may go; `journal`, all of it together. Not
here: what an entry means, and when it counts (`raft.core`). Promise: what is called durable outlives a power failure,
and a record that was lost after that is noticed at the next start.
"""

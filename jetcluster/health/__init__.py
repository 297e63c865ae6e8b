"""The health of one node: its promises, and its time.

`node_health.NodeHealth` alone owns the verdict: code that leads, votes, answers reads or delivers asks it, and each
part of the node (journal, data store, descriptors, clock, event loop, memory) reports to it.
`cluster_clock.ClusterClock` is the wall clock of all stamps: one clock that is hours off removes and stamps nothing.

Not here: the consequences of a verdict (raft hands leaderships over, replicas leave the reads, monitoring shows it).
"""

"""The health of one node: its promises, and its time.

`node_health.NodeHealth` is the one owner of the verdict: all code that leads, votes, answers reads or hands
deliveries out asks it, and the code that can see a part of the node (journal, data store, descriptors, clock, event
loop, memory) reports to it. `cluster_clock.ClusterClock` is the wall clock of all stamps: one clock that is hours off
removes nothing and stamps nothing.

Not here: the consequences of a verdict (raft hands leaderships over, replicas leave the reads, monitoring shows it).
"""
